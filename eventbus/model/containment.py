"""Containment: code of the user's that raises what is no Exception, such as SystemExit, fails alone.

`sys.exit()` and KeyboardInterrupt end an event loop if one of its tasks ends with them, and so the worker.
Any other BaseException passes each `except Exception`, and ends a role of the worker. So every call of a
user's function goes through here, unless what calls it catches BaseException itself: the executor, an
`Attempt` of flows, and the run of a durable function.

What must always hold: a cancellation passes as it is, and so does the close of a coroutine that waits here,
which is no GeneratorExit of the user's; so does what ends a run of a flow without being an error (`Passing`).
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, ParamSpec, TypeVar

# What Python itself keeps, whatever properties a class of the user's has of these names.
_MEMBERS: Any = vars(BaseExceptionGroup)["exceptions"]
_CAUSE: Any = vars(BaseException)["__cause__"]
_CONTEXT: Any = vars(BaseException)["__context__"]

P = ParamSpec("P")
T = TypeVar("T")


class Passing(BaseException):
    """Ends code of the user's without being an error of it, so it passes through every containment."""


class Contained(Exception):
    """A user's function raised what is no Exception: the cause of this one, which `describe` records."""

    def __init__(self, error: BaseException) -> None:
        text = str(error)
        super().__init__(f"{type(error).__name__}: {text}" if text else type(error).__name__)
        self.__cause__: BaseException | None = error


def contained(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a plain function of the user's. Raises Contained for what is no Exception and no cancellation."""
    try:
        return function(*args, **kwargs)
    except Exception:
        raise
    except BaseException as error:
        raise as_exception(error) from error


async def contained_await(awaited: Awaitable[T]) -> T:
    """Await what a user's function returned. Raises Contained as `contained` does."""
    try:
        return await _stepped(_await(awaited))
    except Exception:
        raise
    except _Closed as closed:
        raise GeneratorExit from closed
    except BaseException as error:
        raise as_exception(error) from error


def as_exception(error: BaseException) -> Exception:
    """Return what the user's code raised as an Exception: itself, or a Contained. Raises what has to pass."""
    if isinstance(error, Exception):
        return error
    if isinstance(error, (asyncio.CancelledError, Passing)):
        raise error
    return Contained(error)


class _Closed(BaseException):
    """The wait is closed from outside; a GeneratorExit of the user's code looks like that otherwise."""


async def _await(awaited: Awaitable[T]) -> T:
    return await awaited


@types.coroutine
def _stepped(work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Await `work` step by step. Raises _Closed if the wait is closed, and whatever `work` raises."""
    given: Any = None
    failed: BaseException | None = None
    while True:
        try:
            awaited = work.send(given) if failed is None else work.throw(failed)
        except StopIteration as end:
            return end.value
        try:
            given, failed = (yield awaited), None
        except GeneratorExit as closing:
            work.close()
            raise _Closed from closing
        except BaseException as error:  # noqa: BLE001  (a cancellation, which goes where the work waits)
            given, failed = None, error


def members_of(error: BaseException) -> Sequence[BaseException]:
    """Return the errors in a group; none for an error that is no group. Runs no code of its class."""
    return _MEMBERS.__get__(error) if issubclass(type(error), BaseExceptionGroup) else ()


def causes_of(error: BaseException) -> tuple[BaseException | None, BaseException | None]:
    """Return the cause and the context of an error. Runs no code of its class."""
    return _CAUSE.__get__(error), _CONTEXT.__get__(error)


def original(error: BaseException) -> BaseException:
    """Return the error that the user's function raised."""
    return error.__cause__ or error if isinstance(error, Contained) else error
