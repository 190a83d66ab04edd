"""Removing flows by hand: one that has ended goes with all that belongs to it.

What must always hold: a flow that is open is not removed, because nobody could undo it any more; a part of a
flow goes with the whole alone. Crash window: `answer-lost`: the flow is removed, and the same call again says
that it is unknown.
"""

from __future__ import annotations

from eventbus import EventProvider, UsageError
from eventbus.lowlevel import Duration
from workflows.records.ids import parent_of

__all__ = ["FlowRemovals"]


class FlowRemovals:
    """The part of a provider of workflows that removes flows."""

    provider: EventProvider

    async def remove(self, flow_id: str, *, call_timeout: Duration | None = None) -> bool:
        """Remove a flow that has ended: its record, its journal, its steps and its sub-workflows.

        Return False, and change nothing, while it is open: cancel it first, so that what it did is undone. A
        removed flow is listed no more and cannot be retried. Whoever awaits it still finds how it ended for
        up to four minutes. Its idempotency key answers for its time. Raises UnknownJob, UsageError for the
        flow of a sub-workflow, StoreError.
        """
        parent = parent_of(flow_id)
        if parent is not None:
            raise UsageError(
                f"flow {flow_id} is a part of flow {parent.flow_id}, whose step {parent.step!r} started it; "
                "remove that flow"
            )
        return await self.provider.inspector.within(call_timeout).trees.remove(flow_id)
