"""A flow of a durable function whose journal is in the test: run it once, look at the journal, and run it again from that."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec

from eventbus.lowlevel import Signal as SentSignal
from workflows import Durable, FlowContext
from workflows.execution.environment import InlineTools, in_thread
from workflows.functions.calls.history import History, kept_entries
from workflows.functions.definition import DurableCodecs
from workflows.functions.endings import Ending
from workflows.functions.function_run import FunctionRun
from workflows.functions.surroundings import Children, NoChildren, Surroundings
from workflows.records.entries import Entry, encode_entry, read_entries

__all__ = ["Died", "RecordedFlow", "Told"]

Told = tuple[str, str, str]
"""Kind, place and name of an entry."""


class Died(BaseException):
    """The worker died: what it wanted to record is not recorded."""


class RecordedFlow:
    """A flow with a journal and an inbox; each `activate` is a worker that claims it."""

    def __init__(self, durable: Durable[Any, Any], given: Any = None, *, flow_id: str = "flow~1") -> None:
        self.durable = durable
        self.given = given
        self.flow_id = flow_id
        self.journal: list[str] = []
        self.inbox: list[SentSignal] = []
        self.live: dict[str, str] = {}
        self.now_ms = 1_000_000
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
        self,
        entries: Sequence[Entry],
        *,
        live: Mapping[str, str] | None = None,
        taken: Sequence[str] = (),
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
        self.now_ms = max(self.now_ms, time_ms)

    async def listen(self) -> None:
        """Return soon."""
        await asyncio.sleep(0.01)

    async def refresh(self) -> None:
        """See what is in the inbox, as always."""

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
        history = History(kept.entries, created_ms=1_000_000, number=kept.first, reopened=kept.reopened)
        run = FunctionRun(
            function,
            codecs,
            history,
            self,
            self.around(kept.again),
            has_effects=has_effects,
            is_rescued=self.is_rescued,
        )
        given = codecs.input.decode(bytes(kept.input)) if kept.input is not None else self.given
        return run, FlowContext(run, given)

    def around(self, again: int = 0) -> Surroundings:
        """What surrounds the code."""
        return Surroundings(
            flow_id=self.flow_id,
            run=f"1.{again}" if again else "1",
            workflow=self.durable.name,
            tools=self.emitter or InlineTools(None, {}),
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
