"""How contexts give the values of a worker's lifespans."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar, overload

S = TypeVar("S")


class HasLifespans(Protocol):
    """What knows the values of the lifespans of a worker."""

    def shared(self, lifespan: Callable[..., Any], /) -> Any:
        """Return the value that a lifespan of this worker yielded. Raises UsageError for another function."""
        ...


class LifespanValues:
    """The base of contexts that give what lifespans have yielded."""

    __slots__ = ()

    @property
    @abstractmethod
    def _lifespans(self) -> HasLifespans:
        """Where the values are."""

    @overload
    def shared(self, lifespan: Callable[..., AsyncIterator[S]]) -> S: ...
    @overload
    def shared(self, lifespan: Callable[..., AbstractAsyncContextManager[S]]) -> S: ...
    def shared(self, lifespan: Callable[..., Any]) -> Any:
        """Return the value that a `@provider.lifespan` function yielded in this worker.

        `lifespan` is the function itself. Several threads may use the value at once, so it must be safe for
        that if plain functions ask for it. Raises UsageError if it is not a lifespan of this worker.
        """
        return self._lifespans.shared(lifespan)
