"""A flow of a durable function that runs in this process, without a server: the same run, with a journal in
memory.

With `replays` the code starts again from its top after each record, so that it cannot rely on clocks, random
numbers or variables that no replay brings back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from eventbus import UsageError
from eventbus.lowlevel import Outcome
from eventbus.lowlevel import Signal as SentSignal
from workflows.definition.flow_tools import FlowFacts
from workflows.definition.signal import Signal, signal_by
from workflows.execution.environment import Environment
from workflows.execution.rollback import UndoPlan
from workflows.functions.calls.child_call import end_entry
from workflows.functions.calls.kept import kept_entries
from workflows.functions.context import FlowContext
from workflows.functions.definition import Durable, DurableCodecs
from workflows.functions.endings import Again, Asleep, Completed, Diverged, Ending, Failed
from workflows.functions.function_run import FunctionRun
from workflows.functions.history import History
from workflows.functions.rollbacks import plan_function
from workflows.inline.code_flow import CodeFlow
from workflows.inline.inline_children import InlineChildren
from workflows.inline.inner import OpenInner
from workflows.inline.memory_recorder import RunAgain
from workflows.records.entries import Entry


class InlineDurable(CodeFlow):
    """One inline flow of a durable function."""

    def __init__(
        self,
        durable: Durable[Any, Any],
        given: bytes,
        facts: FlowFacts,
        environment: Environment,
        *,
        timeout: float | None,
        open_inner: OpenInner,
        signals: Sequence[tuple[Signal[Any] | str, Any]] = (),
        replays: bool = False,
    ) -> None:
        """Run `durable` with the input `given`. The signals are in the inbox from the start; raises
        PayloadError for one that does not fit.
        """
        super().__init__(
            durable,
            given,
            facts,
            environment,
            InlineChildren(self._open_child),
            timeout=timeout,
            open_inner=open_inner,
        )
        self.durable = durable
        self.recorder.inbox += [
            _sent(durable, signal, payload, order) for order, (signal, payload) in enumerate(signals, start=1)
        ]
        self.recorder.replays = replays
        self._codecs = DurableCodecs(durable)

    async def plan_undo(self, prefix: str = "") -> UndoPlan:
        """Return what is to be undone of it and of its completed children."""
        entries = kept_entries(self.recorder.entries).entries
        return await plan_function(self.durable, entries, self._around("1"), self._children.add_inner, prefix)

    async def _advance(self) -> Completed | Failed:
        while True:
            self.recorder.came.clear()
            try:
                ending = await self._once()
            except RunAgain:
                continue
            if isinstance(ending, (Completed, Failed)):
                return ending
            if isinstance(ending, Diverged):
                raise ending.error
            if isinstance(ending, Again):
                self.recorder.entries.append(Entry(kind="again", result=msgspec.Raw(ending.text)))
                continue
            await self._sleep(ending)

    async def _once(self) -> Ending:
        kept = kept_entries(self.recorder.entries)
        history = History(kept.entries, created_ms=self.created_ms, number=kept.first)
        around = self._around(kept.run_of(1), self._children)
        run = FunctionRun(self.durable, self._codecs, history, self.recorder, around)
        self.recorder.is_busy = lambda: run.is_working
        given = bytes(kept.input) if kept.input is not None else self.given
        context: FlowContext[Any] = FlowContext(run, self._codecs.input.decode(given))
        return await run.run(self.durable.function(context))

    async def _sleep(self, ending: Asleep) -> None:
        if ending.children:
            # If a test makes time pass at once, children go first.
            is_real = self._environment.sleep is asyncio.sleep
            await self._wait_first(ending.children, ending.until_ms if is_real else None)
        elif ending.until_ms is None and not self.is_open:
            raise UsageError(
                f"flow {self.facts.flow_id} waits for a signal that does not come; give it: "
                "run_inline(..., signals=[(signal, payload)])"
            )
        else:
            await self._wait_first((), ending.until_ms)

    def check_signal(self, signal: Signal[Any] | str) -> Signal[Any]:
        """Return a signal that is given by itself or by its name. Raises DefinitionError."""
        return _known(self.durable, signal)

    def send(self, signal: Signal[Any], payload: Any) -> None:
        """Take a signal that is sent while it runs. Raises PayloadError."""
        self.recorder.take(signal.name, signal.encode(payload))

    async def _stop_children(self) -> Mapping[str, Outcome]:
        recorder, flow_id = self.recorder, self.facts.flow_id
        ends = await super()._stop_children()
        for entry in History(kept_entries(recorder.entries).entries).open_children.values():
            end = ends.get(entry.child, Outcome(entry.child, "unknown", ""))
            recorder.entries.append(
                end_entry(entry, end, flow_id=flow_id, now_ms=recorder.clock.now_ms, is_wanted=False)
            )
        return ends


def _sent(durable: Durable[Any, Any], given: Signal[Any] | str, payload: Any, order: int) -> SentSignal:
    """Return a signal in the inbox. Raises DefinitionError for one that the function does not declare,
    PayloadError.
    """
    signal = _known(durable, given)
    return SentSignal(str(order), order, signal.name, signal.encode(payload))


def _known(durable: Durable[Any, Any], given: Signal[Any] | str) -> Signal[Any]:
    signal = signal_by(given, durable.signals)
    return durable.check_signal(signal.name) or signal
