"""What people send to a flow, a signal or a trigger: the type of its payload, and its form as JSON."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from eventbus import PayloadError
from eventbus.lowlevel import Codec
from workflows.definition.codecs import MAX_VALUE

T = TypeVar("T")


class MessageType(Generic[T]):
    """The base of signals and transitions."""

    def __init__(self, name: str, type: Any, where: str) -> None:  # noqa: A002  (the word of the field)
        """Take payloads of `type`; `where` names it in messages. Raises DefinitionError for a type that
        cannot be used.
        """
        self.name: str = name
        self._codec = Codec(type, role="payload", owner=name, max_bytes=MAX_VALUE)
        self._where = where

    def encode(self, payload: T) -> str:
        """Return a payload as JSON text. Raises PayloadError if it does not fit."""
        try:
            return self._codec.encode(payload).decode()
        except PayloadError as error:
            raise PayloadError(
                f"the payload of {self._where} failed its validation: {error}",
                event=self.name,
                path=error.path,
                role="payload",
            ) from error

    def decode(self, text: str | bytes | memoryview) -> T:
        """Return the payload in JSON text. Raises PayloadError if it does not fit."""
        return self._codec.decode(text)
