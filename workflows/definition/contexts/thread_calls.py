"""What the calls of a context return in a thread, where nothing can be awaited."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any

__all__ = ["Done", "ThreadLoad"]


class Done:
    """The awaitable of a call that has ended."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


class ThreadLoad:
    """What `ctx.load` and `ctx.saved` return in a thread."""

    def __init__(self, wait: Callable[..., Any], work: Coroutine[Any, Any, Any]) -> None:
        """`wait(work, timeout)` waits in a thread for what runs elsewhere."""
        self._wait = wait
        self._work = work
        self._found: tuple[Any] | None = None

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the result; it stays the same. Raises what the call raises, and TimeoutError."""
        if self._found is None:
            self._found = (self._wait(self._work, timeout),)
        return self._found[0]
