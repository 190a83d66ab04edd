"""One call of a script or of a plain command, and the forms in which a script can be sent.

    FUNCTION   by the name of its function in the library, which the server keeps made
    DIGEST     by the digest of its text (`EVALSHA`): the server makes all its functions anew
    SOURCE     with its text (`EVAL`), which the server keeps from then on
    PLAIN      a command, which has no other form

What must always hold: a script does the same in each form. `repeat_policy` says when a call goes on in
another one.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

from eventbus.store.scripting.library import load_library
from eventbus.store.scripting.scripts import load_script

Command: TypeAlias = tuple[str | bytes | float, ...]


class Form(enum.Enum):
    """How a call names what it runs."""

    PLAIN = "plain"
    FUNCTION = "function"
    DIGEST = "digest"
    SOURCE = "source"


class Invocation:
    """One call, in the form in which it is sent next."""

    __slots__ = ("_arguments", "_name", "_prelude", "command", "form", "losses")

    def __init__(
        self, name: str, keys: tuple[str, ...], packed: bytes, *, form: Form, prelude: str = ""
    ) -> None:
        """Call the script `name` with one packed argument."""
        self._name = name
        self._arguments = (len(keys), *keys, packed)
        self._prelude = prelude
        self.command: Command = ()
        self.form: Form = form
        self.losses: int = 0
        """How often the server was known to have lost its scripts when this was sent."""
        self.put(form)

    @classmethod
    def plain(cls, command: Command) -> Invocation:
        """Call a command that is no script."""
        self = cls.__new__(cls)
        self.form, self.command, self.losses = Form.PLAIN, command, 0
        return self

    def put(self, form: Form) -> None:
        """Go on in this form."""
        self.form = form
        if form is Form.FUNCTION:
            self.command = ("FCALL", load_library().functions[self._name], *self._arguments)
            return
        script = load_script(self._name, self._prelude)
        if form is Form.DIGEST:
            self.command = ("EVALSHA", script.digest, *self._arguments)
        else:
            self.command = ("EVAL", script.source, *self._arguments)

    @property
    def known_by(self) -> str | None:
        """The name or digest by which the server has to know the script, if this form needs that."""
        return str(self.command[1]) if self.form in (Form.FUNCTION, Form.DIGEST) else None
