"""Containment: code of the user's that raises what is no Exception, such as SystemExit, fails alone.

`sys.exit()` and KeyboardInterrupt end an event loop if one of its tasks ends with them, and so the worker.
Any other BaseException passes each `except Exception`, and ends a role of the worker. So every call of a
user's function goes through here, unless what calls it catches BaseException itself: the executor, an
`Attempt` of flows, and the run of a durable function.

What must always hold: a cancellation, and the end of a generator, pass as they are; so does what ends a run
of a flow without being an error (`Passing`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

__all__ = ["Contained", "Passing", "contained", "contained_await", "original"]

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
    except (Exception, asyncio.CancelledError, Passing):
        raise
    except BaseException as error:
        raise Contained(error) from error


async def contained_await(awaited: Awaitable[T]) -> T:
    """Await what a user's function returned. Raises Contained as `contained` does."""
    try:
        return await awaited
    except (Exception, asyncio.CancelledError, GeneratorExit, Passing):
        raise
    except BaseException as error:
        raise Contained(error) from error


def original(error: BaseException) -> BaseException:
    """Return the error that the user's function raised."""
    return error.__cause__ or error if isinstance(error, Contained) else error
