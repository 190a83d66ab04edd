"""A flow of a durable function whose journal is in the test: run it once, look at the journal, and run it
again from that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec

from eventbus.lowlevel import Attempt, describe, outside_job
from eventbus.lowlevel import Signal as SentSignal
from workflows import Durable, FlowContext
from workflows.execution.environment import InlineTools, in_thread
from workflows.execution.step_attempt import MemoryHost
from workflows.execution.surroundings import Children, FlowClock, NoChildren, Surroundings
from workflows.functions.calls.kept import Kept, kept_entries
from workflows.functions.definition import DurableCodecs
from workflows.functions.endings import Ending, Failed
from workflows.functions.function_run import FunctionRun
from workflows.functions.history import History
from workflows.functions.rollbacks import plan_function
from workflows.records.entries import Entry, encode_entry, read_entries

__all__ = ["Died", "RecordedFlow", "Told"]

Told = tuple[str, str, str]
"""Kind, place and name of an entry."""


class Died(BaseException):
    """The worker died: what it wanted to record is not recorded."""


async def _add_nothing(*_: Any) -> None:
    """Undo no child here."""


class StillClock(FlowClock):
    """A clock that only moves if it is moved."""

    @property
    def now_ms(self) -> int:
        """The time in ms."""
        return self._now_ms

    @now_ms.setter
    def now_ms(self, time_ms: int) -> None:
        self._now_ms = time_ms


class RecordedFlow:
    """A flow with a journal and an inbox; each `activate` is a worker that claims it."""

    def __init__(self, durable: Durable[Any, Any], given: Any = None, *, flow_id: str = "flow~1") -> None:
        self.durable = durable
        self.given = given
        self.flow_id = flow_id
        self.journal: list[str] = []
        self.inbox: list[SentSignal] = []
        self.live: dict[str, str] = {}
        self.run = 1
        """The number of the run; a retry by hand raises it."""
        self.clock = StillClock(1_000_000)
        self.dies_at: int | None = None
        self.is_rescued = False
        """Whether the worker of the activation before died after its last record."""
        self.is_dead = False
        """Whether the worker has died: it records nothing any more."""
        self.sent = 0
        self.appends = 0
        self.emitter: Any = None
        self.fleet: Children | None = None
        self.has_children = False
        """Whether there are other workers, although none of them runs anything here."""

    @property
    def entries(self) -> list[Entry]:
        """The journal, decoded."""
        return read_entries(self.flow_id, self.journal)

    @property
    def told(self) -> list[Told]:
        """The journal in short."""
        return [(entry.kind, entry.place, entry.name) for entry in self.entries]

    @property
    def signals(self) -> Sequence[SentSignal]:
        """What the run sees of the inbox."""
        return list(self.inbox)

    def send(self, name: str, payload: Any) -> None:
        """Put a signal into the inbox."""
        self.sent += 1
        self.inbox.append(SentSignal(f"s{self.sent}", self.sent, name, msgspec.json.encode(payload).decode()))

    async def append(
        self, entries: Sequence[Entry], *, live: Mapping[str, str] | None = None, taken: Sequence[str] = ()
    ) -> None:
        """Record, or die instead when the journal has `dies_at` entries."""
        await asyncio.sleep(0)
        self.is_dead |= self.dies_at is not None and len(self.journal) + len(entries) > self.dies_at
        if self.is_dead:
            raise Died
        self.appends += 1
        self.journal += [encode_entry(entry) for entry in entries]
        self.live.update(live or {})
        self.inbox = [signal for signal in self.inbox if signal.id not in taken]

    async def wait_until(self, time_ms: int) -> None:
        """Let the clock show that time."""
        self.clock.move_to(time_ms)

    async def listen(self) -> None:
        """Return soon."""
        await asyncio.sleep(0.01)

    async def refresh(self) -> None:
        """See what is in the inbox, as always."""

    async def fail(self, ending: Failed) -> None:
        """Record why the function failed, and run its rollbacks, as the worker that claims it next does."""
        raised = Entry(
            kind="raised", place=ending.step, error=msgspec.Raw(ending.failure.encode()), steps=ending.sources
        )
        await self.append([raised])
        kept = kept_entries(self.entries)
        plan = await plan_function(self.durable, kept.entries, self.around(kept), _add_nothing)
        for undo in plan.undos:
            undone = Entry(kind="undo", place=undo.path)
            try:
                await undo.perform(1, in_thread, self.flow_id)
            except Exception as error:  # noqa: BLE001  (whatever a rollback of a test raises)
                undone.error = msgspec.Raw(describe(error, attempts=1).encode())
            await self.append([undone])

    async def retry(self) -> None:
        """Begin the next run, which keeps what counts."""
        origin = str(kept_entries(self.entries).origin or 1) if self.journal else ""
        self.run += 1
        await self.append([Entry(kind="run", run=self.run, origin=origin)])

    async def activate(self, durable: Durable[Any, Any] | None = None, *, has_effects: bool = True) -> Ending:
        """Run the code, of this or of another release, from what is recorded."""
        run, context = self.prepare(durable, has_effects=has_effects)
        return await run.run(run.durable.function(context))

    def prepare(
        self, durable: Durable[Any, Any] | None = None, *, has_effects: bool = True
    ) -> tuple[FunctionRun, FlowContext[Any]]:
        """Return a run of the code that has not begun, and its context."""
        function = durable or self.durable
        self.is_dead = False
        codecs = DurableCodecs(function)
        kept = kept_entries(self.entries)
        history = History(kept.entries, created_ms=1_000_000, number=kept.first, loose=kept.loose)
        run = FunctionRun(
            function,
            codecs,
            history,
            self,
            self.around(kept),
            has_effects=has_effects,
            is_rescued=self.is_rescued,
        )
        given = codecs.input.decode(bytes(kept.input)) if kept.input is not None else self.given
        return run, FlowContext(run, given, number=self.run)

    def around(self, kept: Kept | None = None) -> Surroundings:
        """What surrounds the code."""
        kept = kept or kept_entries(self.entries)
        return Surroundings(
            flow_id=self.flow_id,
            run=kept.run_of(self.run),
            seed=kept.seed_of(self.run),
            workflow=self.durable.name,
            tools=InlineTools(self.emitter, {}),
            own=Attempt(MemoryHost(), outside_job(self.flow_id)),
            call_sync=in_thread,
            sleep=_no_sleep,
            span=_no_span,
            facts={"flow_id": self.flow_id},
            children=self.fleet or (_Elsewhere() if self.has_children else NoChildren()),
        )


class _Elsewhere(NoChildren):
    """Would start children, if a test had any."""

    are_here = False


async def _no_sleep(_seconds: float) -> None:
    await asyncio.sleep(0)


def _no_span(_what: str, _label: str, _attempt: int) -> AbstractContextManager[str]:
    return nullcontext("")
