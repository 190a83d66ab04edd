"""Flows of one kind on the server, and which behaviours make no sense for which kind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from drivers.kinds.rows import given, make_row

from eventbus import EventProvider
from workflows import FlowHandle, WorkflowProvider

__all__ = ["LEFT_OUT", "MakeProvider", "Run", "Running", "Until"]

MakeProvider = Callable[..., EventProvider]
Run = Callable[..., Awaitable[Any]]
Until = Callable[..., Awaitable[None]]

_FAILS = "Its last failure ends the flow, as the tests that need `fails` show."

LEFT_OUT: dict[str, dict[str, str]] = {
    "stands": dict.fromkeys(("graph", "spread", "function", "pipeline"), _FAILS),
    "fails": {
        "machine": (
            "A transition that fails for good ends no flow: "
            "the machine stands with its error until somebody helps. "
            "`test_standing` has what it does instead."
        )
    },
    "asks": {"pipeline": "The steps of a pipeline are functions, and none of them waits for a signal."},
}
"""Why a test with the mark `needs(<behaviour>)` leaves a kind out."""


class Running:
    """Flows of one kind on the server."""

    def __init__(self, kind: str, make_provider: Callable[..., EventProvider], stack: AsyncExitStack) -> None:
        self.kind = kind
        self.row: Any = None
        self.flows: WorkflowProvider
        self._make_provider = make_provider
        self._stack = stack

    async def open(self, *, worker: bool = True, **options: Any) -> WorkflowProvider:
        """Make the row with these options, and start a provider, with a worker that runs it unless there is
        to be none.
        """
        self.row = make_row(self.kind, **options)
        provider = self._make_provider(lease=1, grace=1)  # short: a flow's timeout has the lease added
        self.flows = WorkflowProvider(provider)
        self.flows.register(self.row)
        await self._stack.enter_async_context(provider)
        if worker:
            await self._stack.enter_async_context(provider.worker())
        return self.flows

    async def start(self, number: int = 10, **options: Any) -> FlowHandle[Any]:
        """Start a flow whose input is a number."""
        return await self.flows.execute(self.row, given(self.kind, number), **options)
