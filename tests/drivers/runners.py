"""The runners of the contract suite: they run flows inline, or distributed over jobs.

Every runner runs the steps in the test's process and event loop, so step functions may write into a
list of the test. Tests must not rely on anything else about a runner.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from eventbus import EventProvider
from workflows import Signal, WorkflowProvider
from workflows.definition.workflow import Workflow
from workflows.records.report import FlowReport, FlowStatus
from workflows.testing import InlineHandle, start_inline

__all__ = [
    "RUNNERS",
    "DistributedRunner",
    "FlowHandle",
    "InlineRunner",
    "Runner",
    "open_runner",
    "states_of",
    "wait_states",
]


class FlowHandle(Protocol):
    """One flow."""

    @property
    def id(self) -> str:
        """The flow id."""
        ...

    async def result(self) -> Any:
        """Return the output, or raise the flow's error."""
        ...

    async def status(self) -> FlowStatus:
        """Return the status of the flow."""
        ...

    async def cancel(self, reason: str = "") -> bool:
        """Cancel the flow; return False if it has ended or is already stopping."""
        ...

    async def signal(self, signal: Signal[Any], payload: Any) -> None:
        """Send a signal to the flow."""
        ...

    async def report(self) -> FlowReport:
        """Return the report so far, step by step."""
        ...


class Runner(Protocol):
    """Starts flows."""

    async def start(self, workflow: Workflow[Any, Any], given: Any, **options: Any) -> FlowHandle:
        """Start a flow; options are `meta`, `timeout` and `middleware`. Errors are raised before any step
        runs.
        """
        ...

    def context(self, **meta: Any) -> AbstractContextManager[None]:
        """Add meta to every flow that is started inside, as `provider.context` does."""
        ...

    async def aclose(self) -> None:
        """End the flows that still run."""
        ...


class InlineRunner:
    """Runs flows in this process."""

    def __init__(self) -> None:
        self._provider = EventProvider("memory:")  # never started, because only its context is used
        self._handles: list[InlineHandle[Any]] = []

    async def start(self, workflow: Workflow[Any, Any], given: Any, **options: Any) -> FlowHandle:
        handle = start_inline(workflow, given, **options)
        self._handles.append(handle)
        return handle

    def context(self, **meta: Any) -> AbstractContextManager[None]:
        return self._provider.context(**meta)

    async def aclose(self) -> None:
        for handle in self._handles:
            await handle.aclose()


class DistributedRunner:
    """Runs flows on a server, by a worker in this process and event loop for each workflow."""

    def __init__(self, make_provider: Callable[..., EventProvider], *, spread: bool) -> None:
        """With `spread` each step is a job of its own."""
        self._make_provider = make_provider
        self._spread = spread
        self._stack = AsyncExitStack()
        self._flows: dict[int, WorkflowProvider] = {}
        self._outside = EventProvider("memory:")  # never started, because only its context is used

    async def start(self, workflow: Workflow[Any, Any], given: Any, **options: Any) -> FlowHandle:
        middleware = options.pop("middleware", ())
        if id(workflow) not in self._flows:
            provider = self._make_provider(lease=1, grace=1)  # short: a flow's timeout has the lease added
            flows = WorkflowProvider(provider)
            for each in (workflow, *workflow.nested()):
                each.spread = self._spread
            flows.register(workflow)
            for each in middleware:
                flows.use(each)
            await self._stack.enter_async_context(provider)
            await self._stack.enter_async_context(provider.worker())
            self._flows[id(workflow)] = flows
        return await self._flows[id(workflow)].execute(workflow, given, **options)

    def context(self, **meta: Any) -> AbstractContextManager[None]:
        return self._outside.context(**meta)

    async def aclose(self) -> None:
        await self._stack.aclose()


RUNNERS = ("inline", "local", "spread")
"""Each way to run a flow."""


@asynccontextmanager
async def open_runner(name: str, make_provider: Callable[..., EventProvider]) -> AsyncGenerator[Runner]:
    """Run flows in one of these ways, and end those that still run."""
    runner: Runner = (
        InlineRunner() if name == "inline" else DistributedRunner(make_provider, spread=name == "spread")
    )
    try:
        yield runner
    finally:
        await runner.aclose()


async def states_of(handle: FlowHandle) -> dict[str, str]:
    """The state of each step."""
    return {name: step.state for name, step in (await handle.report()).steps.items()}


async def wait_states(handle: FlowHandle, expected: Mapping[str, str], *, within: float = 240.0) -> None:
    """Wait until these steps are in these states."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within
    while (
        found := {name: state for name, state in (await states_of(handle)).items() if name in expected}
    ) != (expected):
        assert loop.time() < end, f"not within {within:g} s: {expected}, but {found}"
        await asyncio.sleep(0.002)
