"""What the calls of a context return in a thread, where nothing can be awaited."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any

from workflows.definition.contexts.flow_tools import FlowTools

__all__ = ["Done", "ThreadLoad"]


class Done:
    """The awaitable of a call that has ended."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


class ThreadLoad:
    """What `ctx.load` returns in a thread."""

    def __init__(self, tools: FlowTools, work: Coroutine[Any, Any, Any]) -> None:
        self._tools = tools
        self._work = work

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the result. Raises what `ctx.load` raises, and TimeoutError."""
        return self._tools.wait(self._work, timeout)
