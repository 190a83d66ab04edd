"""What a context needs of the flow that it belongs to, and what its calls return.

Not here: the context (`definition.context`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from eventbus import Emission
from eventbus.lowlevel import Duration, Emits, HasLifespans
from workflows.definition.middleware import FlowMiddleware
from workflows.definition.outline import StepOutline
from workflows.records.records import StepRecord

R = TypeVar("R")
T = TypeVar("T")

CallSync: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a plain function in a thread, in a copy of the caller's context."""


class StepEmission(Emission[R]):
    """The return type of `ctx.emit` for type checkers: an Emission, or in a plain function a SyncEmission.

    No instance is ever made. One context class serves async and plain functions, so this class has the
    methods of both.
    """

    __slots__ = ()

    def enqueued(self) -> Any:
        """Wait until the job is in the server; await this in an async function."""

    def cancel(self, reason: str = "", *, call_timeout: Duration | None = None) -> Any:
        """Cancel the job; await this in an async function."""

    def result(self, timeout: float | None = None) -> R:
        """Wait for the outcome in a plain function, as `SyncEmission.result` does."""
        raise NotImplementedError


class StepLoad(Coroutine[Any, Any, R]):
    """The return type of `ctx.load` for type checkers: await it, or in a plain function call `result()`.

    No instance is ever made, as of `StepEmission`.
    """

    __slots__ = ()

    def result(self, timeout: float | None = None) -> R:
        """Wait for the result in a plain function, at most `timeout` seconds. Raises TimeoutError
        after that.
        """
        raise NotImplementedError


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


class RemoteSteps(Protocol):
    """Runs the functions of steps in their pools."""

    async def run(self, step: StepOutline[Any], ctx: Any, call: Callable[[], Any]) -> Any:
        """Run the function of a step, which is also `call`, in its pool, and return its result."""
        ...


class FlowTools(HasLifespans, Protocol):
    """What a context asks of the runtime of its flow, distributed or inline."""

    @property
    def emits(self) -> Emits[Any]:
        """What to emit with where the caller runs: plain functions run in threads. Raises UsageError if there
        is nothing.
        """
        ...

    async def load_record(self, step: str) -> StepRecord | None:
        """Return the record of a step of this flow; None if the step did not complete."""
        ...

    @property
    def middleware(self) -> Sequence[FlowMiddleware]:
        """The functions around each attempt, the first one outermost."""
        ...

    @property
    def remote(self) -> RemoteSteps | None:
        """Runs the functions of steps in their pools; None if they run in threads all the same."""
        ...

    def wait(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run `work` in the event loop of the flow and wait for it in the caller's thread.

        Raises what it raises, and TimeoutError after `timeout` seconds.
        """
        ...


class FlowData:
    """The value that the `data` function of a workflow made in this activation, once it has run."""

    __slots__ = ("_lock", "has_value", "value")

    def __init__(self) -> None:
        self.has_value: bool = False
        self.value: Any = None
        self._lock: asyncio.Lock | None = None

    @property
    def lock(self) -> asyncio.Lock:
        """The lock of whoever makes the value. It is made when it is wanted, because few workflows have such
        data.
        """
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock


class FlowFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that are the same for every function of one run of a flow."""

    flow_id: str
    run: int = 1
    meta: Mapping[str, Any] = MappingProxyType({})
    correlation_id: str = ""
    tracestate: str = ""
    worker: str = ""
    provider: str = ""
    data: FlowData = msgspec.field(default_factory=FlowData)
