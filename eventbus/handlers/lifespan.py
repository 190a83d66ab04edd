"""Lifespans: values that the handlers of one worker share, made before its first job and closed after its
last.

Not here: when they are entered and left. `handlers.worker` does both in the task that runs the worker, so
that a lifespan may hold task groups and cancel scopes.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, TypeAlias, cast

from eventbus.errors import DefinitionError, UsageError
from eventbus.model.containment import contained, contained_await
from eventbus.model.names import shown

Lifespan: TypeAlias = Callable[..., AsyncIterator[Any]] | Callable[..., AbstractAsyncContextManager[Any]]
"""An async generator function that yields once, or a function that returns an async context manager. It takes
no argument, or the provider."""


def check_lifespan(given: Any) -> None:
    """Raise DefinitionError unless `given` can be a lifespan."""
    try:
        parameters = inspect.signature(given).parameters.values()
        fits = not inspect.iscoroutinefunction(given) and len(_needed(parameters)) <= 1
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise DefinitionError(
            "expected a lifespan to be an async function that yields once, with no parameter or one for "
            f"the provider, got: {shown(given)}"
            + ("; write @provider.lifespan without parentheses" if given is None else "")
        )


class Shared:
    """The lifespans of one worker and the values that they yielded."""

    def __init__(self, lifespans: Sequence[Lifespan], provider: Any) -> None:
        self._lifespans = lifespans
        self._provider = provider
        self._values: dict[Lifespan, Any] = {}
        self.current: str = ""
        """The name of the lifespan that is being entered or left, or was entered or left last."""

    async def enter(self, stack: AsyncExitStack) -> None:
        """Enter the lifespans in order; `stack` leaves them in reverse order.

        Raises the first error of a lifespan, with a note that names it, and DefinitionError for one that
        makes no async context manager.
        """
        for lifespan in self._lifespans:
            self.current = _name_of(lifespan)
            try:
                self._values[lifespan] = await stack.enter_async_context(_Contained(self._call(lifespan)))
            except Exception as error:
                error.add_note(f"in the lifespan {self.current}")
                raise
            stack.callback(self._note, self.current)  # called right before the stack leaves the lifespan

    def find(self, lifespan: Any) -> Any:
        """Return the value that a lifespan yielded. Raises UsageError if it was not entered."""
        try:
            return self._values[lifespan]
        except (KeyError, TypeError):  # TypeError: `lifespan` is not hashable
            names = ", ".join(_name_of(known) for known in self._lifespans) or "none"
            raise UsageError(
                f"{_name_of(lifespan)} is no lifespan of this worker; register it with @provider.lifespan "
                f"before the worker starts; there are: {names}"
            ) from None

    def _note(self, name: str) -> None:
        self.current = name

    def _call(self, lifespan: Lifespan) -> AbstractAsyncContextManager[Any]:
        make: Any = asynccontextmanager(lifespan) if inspect.isasyncgenfunction(lifespan) else lifespan
        needs = _needed(inspect.signature(lifespan).parameters.values())
        made = contained(make, self._provider) if needs else contained(make)
        if not isinstance(made, AbstractAsyncContextManager):
            raise DefinitionError(
                f"expected lifespan {_name_of(lifespan)} to make an async context manager, "
                f"got: {shown(made)}; write it as an async function that yields once"
            )
        return cast("AbstractAsyncContextManager[Any]", made)


class _Contained(AbstractAsyncContextManager[Any]):
    """A lifespan whose SystemExit is an error of the worker: a task that ended with it would end the loop."""

    def __init__(self, manager: AbstractAsyncContextManager[Any]) -> None:
        self._manager = manager

    async def __aenter__(self) -> Any:
        return await contained_await(self._manager.__aenter__())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await contained_await(self._manager.__aexit__(kind, error, trace))


def _name_of(lifespan: Any) -> str:
    return getattr(lifespan, "__qualname__", None) or shown(lifespan)


def _needed(parameters: Iterable[inspect.Parameter]) -> list[str]:
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
