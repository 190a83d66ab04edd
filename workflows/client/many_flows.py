"""Retrying and cancelling many flows: those of a workflow in one state, by their error and their age, a part
at a time.

    read a page of the list -> keep those that are meant -> retry or cancel each -> the place behind the page

What must always hold: one call looks at a bounded number of flows and says where it ended; a flow that came
to its state
after `before` is not meant, so one that fails again is not retried again; of two callers who saw the same
end of a flow one begins a
run. Each flow is asked for by itself, as `retry` and `cancel` do it.

Crash window: `caller-dies`: what was asked of a flow is done, and the rest is not. The same call with the
same `before`, or
with the `cursor` of the last answer, does the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from eventbus import CountChanged, DefinitionError, EventProvider, SignalRefused, UnknownJob, UsageError
from eventbus.lowlevel import Duration, JobClient, milliseconds, shown
from workflows.client.flow_lister import FlowLister
from workflows.client.flow_retry import retry_flow
from workflows.errors import FlowNotEnded
from workflows.records.report import FlowState, FlowSummary

RetriedFlowState: TypeAlias = Literal["failed", "cancelled", "waiting"]

_RETRIED = ("failed", "cancelled", "waiting")
_OPEN = ("pending", "running", "waiting", "rolling_back")
_PAGE = 100
_AT_ONCE = 20
"""Flows that are retried or cancelled side by side."""
_MOST = 1000
"""So many flows one call looks at, unless it is told otherwise."""
_COUNTED = 10_000
_SAMPLES = 20
_NEAR = 0.1
"""So much another count may be than the expected one."""


class FlowsChange(msgspec.Struct, frozen=True, kw_only=True):
    """What one call of `retry_all` or `cancel_all` did, or with `dry_run` would do.

    `count` is to how many flows it was done; `refused` how many did not allow it any more; `seen` how many
    flows were looked at.
    `samples` are the ids of the first 20 that were meant. With a `cursor` there may be more: give it to the
    next call, with
    `before`, the Unix time in ms by which a flow must have been in its state to be meant.
    """

    count: int
    refused: int = 0
    seen: int = 0
    samples: list[str] = []
    cursor: str = ""
    before: int = 0


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which flows are meant."""

    workflow: str | None
    states: tuple[str, ...]
    error: str | None
    before: int

    stands: bool = False
    """Whether a flow that waits is meant only if something failed: a state machine that stands with an
    error.
    """

    def has(self, flow: FlowSummary) -> bool:
        """Return whether a flow is meant."""
        if flow.state not in self.states or (flow.ended_ms or flow.created_ms) > self.before:
            return False
        if self.error is None:
            return bool(flow.error) or not self.stands
        return flow.error == self.error or self.error in flow.error.split(": ")


class _Pages(NamedTuple):
    """How many of the flows that are meant one call looks at, and behind which place."""

    wanted: _Wanted
    limit: int
    cursor: str


_Act: TypeAlias = Callable[[FlowSummary], Awaitable[bool]]


class ManyFlows:
    """The part of a provider of workflows that changes many flows."""

    provider: EventProvider
    _jobs: JobClient
    _lists: FlowLister

    async def retry_all(
        self,
        workflow: str | None = None,
        state: RetriedFlowState = "failed",
        error: str | None = None,
        *,
        older_than: Duration | None = None,
        resume: bool | None = None,
        dry_run: bool = False,
        expected: int | None = None,
        limit: int = _MOST,
        cursor: str = "",
        before: int = 0,
        call_timeout: Duration | None = None,
    ) -> FlowsChange:
        """Retry the flows of a workflow, or of all, in one state, as `retry` does each; return how many.
        With `dry_run` only count them.

        `error` takes only those with this error: the whole text as `flows` has it, or the type of the flow's
        error or of that of its step,
        such as `ValueError`. `older_than` (seconds, a timedelta or text) spares the flows that ended more
        lately. In the state
        `waiting` these are state machines whose transition failed. Those of sub-workflows are not listed:
        they run again with their flow.

        One call looks at `limit` flows, the newest first; with its `cursor` and `before` the next one goes
        on, also after a crash. `expected` is how
        many a call with `dry_run` has told: CountChanged is raised, and nothing is done, if there are more
        or fewer by now, give or take
        a tenth; 10,000 flows are looked at for that. `call_timeout` counts for each call to the server.
        Raises DefinitionError, StoreError.
        """
        if state not in _RETRIED:
            raise DefinitionError(
                f"expected a state, one of {', '.join(_RETRIED)}, got: {shown(state)}; "
                "retry completed flows one by one"
            )

        async def retry(flow: FlowSummary) -> bool:
            deadline = self._jobs.settings.deadline(call_timeout)
            await retry_flow(self._jobs, flow.flow_id, resume=resume, run=flow.run, deadline=deadline)
            return True

        before = before or await self._before(older_than, call_timeout)
        wanted = _Wanted(
            workflow=workflow, states=(state,), error=error, before=before, stands=state == "waiting"
        )
        pages = _Pages(wanted, limit, cursor)
        return await self._change(pages, None if dry_run else retry, expected, call_timeout)

    async def cancel_all(
        self,
        workflow: str | None = None,
        state: FlowState | None = None,
        error: str | None = None,
        *,
        older_than: Duration | None = None,
        reason: str = "",
        dry_run: bool = False,
        expected: int | None = None,
        limit: int = _MOST,
        cursor: str = "",
        before: int = 0,
        call_timeout: Duration | None = None,
    ) -> FlowsChange:
        """Cancel the open flows of a workflow, or of all, as a handle's `cancel` does each; return how many.
        With `dry_run` only count them.

        `state` takes only those that are `pending`, `running` or `waiting`; by default all that are open and
        are not stopped already.
        `error` takes those that stand with this error or are parked with it, and `older_than` spares those
        that were started more lately. What the
        flows did is rolled back. The others are as in `retry_all`.
        """
        states = _OPEN[:3] if state is None else (state,)
        if not set(states) <= set(_OPEN[:3]):
            raise DefinitionError(f"expected a state, one of {', '.join(_OPEN[:3])}, got: {shown(state)}")

        async def cancel(flow: FlowSummary) -> bool:
            return await self._jobs.cancel(flow.flow_id, reason, call_timeout=call_timeout)

        before = before or await self._before(older_than, call_timeout)
        pages = _Pages(_Wanted(workflow=workflow, states=states, error=error, before=before), limit, cursor)
        return await self._change(pages, None if dry_run else cancel, expected, call_timeout)

    async def _before(self, older_than: Duration | None, call_timeout: Duration | None) -> int:
        """Return the time of the server by which flows must have been in their state, Unix ms."""
        age = 0 if older_than is None else milliseconds(older_than, setting="older_than")
        return await self._jobs.now(call_timeout=call_timeout) - age

    async def _change(
        self, pages: _Pages, act: _Act | None, expected: int | None, call_timeout: Duration | None
    ) -> FlowsChange:
        if pages.limit < 1:
            raise DefinitionError(f"expected limit to be at least 1, got: {shown(pages.limit)}")
        if expected is not None and act is not None:
            counted = _Pages(pages.wanted, _COUNTED, pages.cursor)
            found = await self._change(counted, None, None, call_timeout)
            if abs(found.count - expected) > expected * _NEAR:
                raise CountChanged(found.count, expected)
        count = refused = seen = 0
        samples: list[str] = []
        cursor = pages.cursor
        while True:
            deadline = self._jobs.settings.deadline(call_timeout)
            most = min(_PAGE, pages.limit - seen)
            page = await self._lists.page(
                pages.wanted.workflow, state=None, limit=most, cursor=cursor, most=most, deadline=deadline
            )
            cursor, seen = page.cursor, seen + page.seen
            flows = [flow for flow in page.flows if pages.wanted.has(flow)]
            samples += [flow.flow_id for flow in flows[: _SAMPLES - len(samples)]]
            done = len(flows) if act is None else await _act_on(flows, act)
            count, refused = count + done, refused + len(flows) - done
            if not cursor or seen >= pages.limit:
                return FlowsChange(
                    count=count,
                    refused=refused,
                    seen=seen,
                    samples=samples,
                    cursor=cursor,
                    before=pages.wanted.before,
                )


async def _act_on(flows: list[FlowSummary], act: _Act) -> int:
    """Change the flows of a page, some side by side; return how many allowed it."""
    done = 0
    for first in range(0, len(flows), _AT_ONCE):
        words = await asyncio.gather(*(_try(act, flow) for flow in flows[first : first + _AT_ONCE]))
        done += sum(words)
    return done


async def _try(act: _Act, flow: FlowSummary) -> bool:
    try:
        return await act(flow)
    except (FlowNotEnded, SignalRefused, UnknownJob, UsageError):  # it has another state by now, or is gone
        return False
