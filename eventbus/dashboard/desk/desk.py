"""The desk: what all requests share, and the one way to act.

    may the actor? -> do the hooks agree? -> note it in the audit -> act -> note the outcome -> tell the hooks

What must always hold: nothing is changed around `act`; a read asks `demand` before it answers, and what one
may not see is answered as what does not exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Any, TypeAlias

import msgspec

from eventbus.admin.inspector import Inspector
from eventbus.admin.jobs.failures import FailureGroup
from eventbus.admin.server import ServerReport
from eventbus.dashboard import timeouts
from eventbus.dashboard.desk.cached_read import CachedRead
from eventbus.dashboard.desk.queue_views import QueueList, share_queues
from eventbus.dashboard.desk.repeats import Ordered, Repeats
from eventbus.dashboard.entry.audit import AuditTrail
from eventbus.dashboard.entry.gate import Asked, Caller
from eventbus.dashboard.entry.hooks import Hooks
from eventbus.dashboard.entry.rights import READS, Action, Rights, Target, reads_of
from eventbus.dashboard.entry.tail_limit import TailLimit
from eventbus.dashboard.flow_source import FlowSource
from eventbus.dashboard.problem import Problem
from eventbus.dashboard.redaction import Redact, Redaction
from eventbus.errors import EventBusError
from eventbus.provider import EventProvider
from eventbus.runtime.clean_up import run_to_end
from eventbus.store.bounds import REASON_CHARACTERS
from eventbus.store.diagnostics import Finding
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.dashboard")

_KEPT_SECONDS = 10.0
_CHECKED_SECONDS = 60.0


Reason: TypeAlias = Annotated[str, msgspec.Meta(max_length=REASON_CHARACTERS)]
"""Why somebody does something. It stands in the audit."""


class ActionResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an action did. `changed` is False if the target was already so, or cannot be changed any more."""

    changed: bool
    note: str = ""
    job_id: str = ""
    run: int = 0
    operation: str = ""
    value: Any = None


class Desk:
    """What the requests of one dashboard share."""

    def __init__(
        self,
        provider: EventProvider,
        flows: FlowSource | None,
        *,
        rights: Rights,
        hooks: Hooks,
        redact: Redact,
    ) -> None:
        self.provider = provider
        self.flows = flows
        self.rights = rights
        self.redact: Redact = redact
        self.repeats: Repeats = Repeats()
        self.tails: TailLimit = TailLimit()
        self.queues: CachedRead[QueueList] = share_queues(provider)
        """The list of queues, which all viewers share."""
        self.failures: CachedRead[list[FailureGroup]] = CachedRead(
            provider.inspector.within(timeouts.SHARED_READ).queues.failures, _KEPT_SECONDS
        )
        """The failed jobs by their error, which all viewers share: to read them is work for the server."""
        self.versions: CachedRead[Sequence[Any]] = CachedRead(self._read_versions, _KEPT_SECONDS)
        """The versions of workflows, which all viewers share: to count open flows is work for the server."""
        self.server: CachedRead[ServerReport] = CachedRead(
            provider.inspector.within(timeouts.READ).server.report
        )
        self.checks: CachedRead[list[Finding]] = CachedRead(provider.inspector.server.check, _CHECKED_SECONDS)
        """The server itself, and what its checks find, which all viewers share."""
        self._hooks = hooks
        self._working: asyncio.Task[None] | None = None
        self._is_wanted = False

    @property
    def inspector(self) -> Inspector:
        """The inspector, each of whose calls may take as long as one read."""
        return self.provider.inspector.within(timeouts.READ)

    async def _read_versions(self) -> Sequence[Any]:
        return [] if self.flows is None else await self.flows.versions(call_timeout=timeouts.SHARED_READ)

    def may(self, caller: Caller, action: Action, target: Target) -> bool:
        """Return whether the caller may do it."""
        return not self.rights.refusal(caller.actor, action, target)

    def sees(self, caller: Caller, target: Target, *, jobs: bool = False) -> bool:
        """Return whether the target exists for the caller, with `jobs` also that of its jobs.

        See `reads_of`.
        """
        return all(self.may(caller, action, target) for action in reads_of(target, jobs=jobs))

    def abilities(self, caller: Caller, target: Target, *actions: Action) -> list[str]:
        """Return those of the actions that the caller may use."""
        return [action for action in actions if self.may(caller, action, target)]

    def redaction(self, caller: Caller, target: Target) -> Redaction:
        """Return what the caller sees of the values of a target."""
        may_read = self.may(caller, "payload.read", target)
        return Redaction(self.redact, target.event, target.id, may_read=may_read)

    def demand(self, caller: Caller, action: Action, target: Target, what: str) -> None:
        """Raise a Problem, 404, unless the caller may read the target: nobody learns that it exists."""
        assert action in READS  # noqa: S101  (a mistake of ours)
        if not self.may(caller, action, target):
            raise Problem(404, f"there is no {what}")

    def demand_sight(self, caller: Caller, target: Target, what: str, *, jobs: bool = False) -> None:
        """Raise a Problem, 404, unless the caller `sees` the target."""
        if not self.sees(caller, target, jobs=jobs):
            raise Problem(404, f"there is no {what}")

    async def act(
        self,
        caller: Caller,
        action: Action,
        target: Target,
        change: Callable[[], Awaitable[ActionResult]],
        *,
        reason: str = "",
    ) -> ActionResult:
        """Do what a caller asks for, if it may. Raises Problem, 403, and what `change` raises."""
        caller.asked.append((action, target, reason))
        trail, done = AuditTrail(self.provider, caller, action, target, reason=reason), None
        try:
            refusal = await self._refusal(caller, action, target)
            if not refusal:
                await trail.begin()
                done = await change()
        except (
            BaseException
        ) as error:  # also one that is cut off after 10 s: nobody knows whether it was done
            await run_to_end(trail.end("failed", _kind_of(error)), "audit trail")
            if isinstance(error, (EventBusError, Problem)):
                await self._hooks.tell(caller.actor, action, target, "failed")
            raise
        if done is None:
            await trail.end("refused", refusal)
            raise Problem(403, refusal, action=action)
        outcome = "changed" if done.changed else "unchanged"
        await trail.end(outcome, _said(done))
        await self._hooks.tell(caller.actor, action, target, outcome)
        return done

    async def once(
        self, caller: Caller, ordered: Ordered, do: Callable[[], Awaitable[ActionResult]]
    ) -> ActionResult:
        """Do what an order asks for, or answer as before if it came with this key before; then the rights
        are asked anew.

        `do` acts for this very `caller`. Raises Problem, 422, for another order with the same key, and what
        `do` raises.
        """
        begun, is_repeat = await self.repeats.once(ordered, partial(_with_asked, caller, do))
        done, asked = begun
        if is_repeat and not asked:  # it changed nothing, as a dry run, so whoever asks looks anew
            return await do()
        if is_repeat:
            for action, target, reason in asked:
                await self._note_repeat(caller, action, target, reason)
        return done

    async def _note_repeat(self, caller: Caller, action: Action, target: Target, reason: str) -> None:
        """Ask whether the caller may have the answer to an action that was done before, and note it.

        Raises Problem.
        """
        self.demand_sight(caller, target, f"{target.kind} {target.id!r}")
        trail = AuditTrail(self.provider, caller, action, target, reason=reason)
        if refusal := await self._refusal(caller, action, target):
            await trail.end("refused", refusal)
            raise Problem(403, refusal, action=action)
        await trail.end("unchanged", "a repeat of the same key, answered as before")

    async def _refusal(self, caller: Caller, action: Action, target: Target) -> str:
        """Return why rights or hooks forbid an action; empty if nothing does."""
        refusal = self.rights.refusal(caller.actor, action, target)
        return refusal or await self._hooks.refusal(caller.actor, action, target)

    def work(self, do: Callable[[], Awaitable[None]]) -> None:
        """Let something go on behind the answer, which another process goes on with if this one ends. One at
        a time.

        What is asked for while it goes on is done once more behind it: it may have looked already.
        """
        self._is_wanted = True
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work(do), name="eventbus-dashboard-work")

    async def _work(self, do: Callable[[], Awaitable[None]]) -> None:
        try:
            while self._is_wanted:
                self._is_wanted = False
                await do()
        except EventBusError as error:
            _log.warning("dashboard stopped working at operations, workers go on", error=str(error))


async def _with_asked(
    caller: Caller, do: Callable[[], Awaitable[ActionResult]]
) -> tuple[ActionResult, Sequence[Asked]]:
    """Return what was done, and which actions were asked for, so that a repeat can ask for the same."""
    return await do(), caller.asked


def _said(done: ActionResult) -> str:
    """Return what was done, in one line; an action such as `queue.pause` is also that of a resume."""
    if done.operation:
        return f"operation {done.operation}, {done.note}"
    return f"job {done.job_id}, {done.note}" if done.job_id and done.job_id not in done.note else done.note


def _kind_of(error: BaseException) -> str:
    """Return what failed, without the text of an error, which may repeat a value."""
    return f"{error.status} {error.title}" if isinstance(error, Problem) else type(error).__name__
