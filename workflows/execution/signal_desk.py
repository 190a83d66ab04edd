"""The signals of one run of a step graph: which step that waits gets which signal.

    a step begins to wait -> a signal of its name is there | comes
                          -> given to the step, whose end takes it
                          -> its payload does not fit -> refused, and the step waits on

What must always hold: a signal goes to one step, to the one that began to wait first; signals of a name are
given in the order in which they came; a signal that no step waits for is kept.
"""

from __future__ import annotations

import asyncio

import msgspec

from eventbus import PayloadError
from eventbus.lowlevel import Signal, describe, get_logger, hidden_around, note_around
from workflows.definition.flow_tools import FlowFacts
from workflows.execution.graph_surroundings import GraphRecorder
from workflows.execution.step_run import StepRun
from workflows.records.entries import Entry, chosen_id

_log = get_logger("workflows")


class SignalDesk:
    """The steps of one run that wait for signals."""

    def __init__(self, recorder: GraphRecorder, workflow: str, facts: FlowFacts) -> None:
        """`workflow` and `facts` stand in the log of what is refused."""
        self._recorder = recorder
        self._workflow = workflow
        self._facts = facts
        self._open: dict[asyncio.Future[Signal], StepRun] = {}
        self._given: set[str] = set()
        self._matching = asyncio.Lock()
        self._listener: asyncio.Task[None] | None = None

    async def enter(self, run: StepRun) -> asyncio.Future[Signal]:
        """Return the future of the signal that the step gets. Raises what the recorder raises."""
        arrival: asyncio.Future[Signal] = asyncio.get_running_loop().create_future()
        self._open[arrival] = run
        try:
            await self._match()
        except BaseException:
            self.leave(arrival)
            raise
        if self._listener is None and self._open:
            self._listener = asyncio.get_running_loop().create_task(self._listen())
        return arrival

    async def look(self) -> None:
        """Look for signals now. Raises what the recorder raises."""
        await self._recorder.refresh()
        await self._match()

    def leave(self, arrival: asyncio.Future[Signal]) -> None:
        """Wait no longer."""
        self._open.pop(arrival, None)
        if not self._open and self._listener is not None:
            self._listener.cancel()
            self._listener = None

    async def _listen(self) -> None:
        try:
            while self._open:
                await self._recorder.listen()
                await self._match()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  (each step that waits ends with it)
            for arrival in self._open:
                if not arrival.done():
                    arrival.set_exception(error)

    async def _match(self) -> None:
        async with self._matching:
            for signal in list(self._recorder.signals):
                if signal.id not in self._given:
                    await self._give(signal)

    async def _give(self, signal: Signal) -> None:
        waiting = (
            (arrival, run)
            for arrival, run in self._open.items()
            if not arrival.done() and run.step.pause is not None and run.step.pause.name == signal.name
        )
        arrival, run = next(waiting, (None, None))
        if arrival is None or run is None:
            return
        pause = run.step.pause
        assert pause is not None and pause.signal is not None  # noqa: S101, PT018  (it has a name)
        self._given.add(signal.id)
        try:
            note_around(signal.name, signal.payload, pause.signal.type)
            pause.signal.decode(signal.payload)
        except PayloadError as error:
            entry = refusal_of(
                self._facts, self._workflow, run.step.name, signal, error, now_ms=self._recorder.clock.now_ms
            )
            await self._recorder.append([entry], taken=[signal.id])
        else:
            arrival.set_result(signal)


def refusal_of(
    facts: FlowFacts, workflow: str, step: str, signal: Signal, error: PayloadError, *, now_ms: int
) -> Entry:
    """Log that a signal does not fit; return the entry that says so: its sender was wrong, not the flow."""
    _log.warning(
        "signal refused, its payload does not fit",
        workflow=workflow,
        flow_id=facts.flow_id,
        step=step,
        correlation_id=facts.correlation_id,
        signal=signal.name,
        error=hidden_around().shown(str(error)),
    )
    return Entry(
        kind="refused",
        place=step,
        name=signal.name,
        error=msgspec.Raw(describe(error, attempts=1).encode()),
        started_ms=now_ms,
        signal=chosen_id(signal.id),
    )
