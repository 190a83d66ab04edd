"""Lifespans: what the handlers of one worker share, made before its first job and left after its last.

Not here: when; the runner enters them in the task that runs the worker and leaves them in it, so
that a lifespan may hold task groups and cancel scopes.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias, cast

from eventbus.errors import DefinitionError, UsageError
from eventbus.names import shown

__all__ = ["Lifespan", "Shared", "check_lifespan"]

Lifespan: TypeAlias = Callable[..., AsyncIterator[Any]] | Callable[..., AbstractAsyncContextManager[Any]]
"""An async generator function that yields once, or what makes an async context manager; it takes
nothing, or the provider."""


def check_lifespan(given: Any) -> None:
    """Raises DefinitionError for what cannot be a lifespan."""
    try:
        parameters = inspect.signature(given).parameters.values()
        fits = not inspect.iscoroutinefunction(given) and len(_needed(parameters)) <= 1
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise DefinitionError(
            "expected a lifespan to be an async function that yields once, with no parameter or one for "
            f"the provider, got: {shown(given)}"
        )


class Shared:
    """The lifespans of one worker and what they yielded."""

    def __init__(self, lifespans: Sequence[Lifespan], provider: Any) -> None:
        self._lifespans = lifespans
        self._provider = provider
        self._values: dict[Lifespan, Any] = {}

    async def enter(self, stack: AsyncExitStack) -> None:
        """Enter them in order; `stack` leaves them in reverse. Raises what the first of them raises.

        That error has a note that names the lifespan.
        """
        for each in self._lifespans:
            try:
                self._values[each] = await stack.enter_async_context(self._call(each))
            except Exception as error:
                error.add_note(f"in the lifespan {_name_of(each)}")
                raise

    def find(self, lifespan: Any) -> Any:
        """Return what a lifespan yielded. Raises UsageError for one that was not entered."""
        try:
            return self._values[lifespan]
        except (KeyError, TypeError):
            names = ", ".join(_name_of(each) for each in self._lifespans) or "none"
            raise UsageError(
                f"{_name_of(lifespan)} is no lifespan of this worker; register it with @provider.lifespan "
                f"before the worker starts; there are: {names}"
            ) from None

    def _call(self, lifespan: Lifespan) -> AbstractAsyncContextManager[Any]:
        make: Any = asynccontextmanager(lifespan) if inspect.isasyncgenfunction(lifespan) else lifespan
        made = make(self._provider) if _needed(inspect.signature(lifespan).parameters.values()) else make()
        if not isinstance(made, AbstractAsyncContextManager):
            raise DefinitionError(
                f"expected lifespan {_name_of(lifespan)} to make an async context manager, got: {shown(made)}; "
                "write it as an async function that yields once"
            )
        return cast("AbstractAsyncContextManager[Any]", made)


def _name_of(lifespan: Any) -> str:
    return getattr(lifespan, "__qualname__", None) or shown(lifespan)


def _needed(parameters: Iterable[inspect.Parameter]) -> list[str]:
    return [
        each.name
        for each in parameters
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
