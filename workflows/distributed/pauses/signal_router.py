"""The root of a flow whose steps are jobs: it gives the signals that the flow is sent to the steps that wait
for them.

    a step says that it waits -> recorded
    a signal of its name is there | comes -> recorded as that step's -> given to its job
                                          -> its payload does not fit -> recorded as refused

What must always hold: a signal goes to one step, to the one that began to wait first; it is taken by the
append that records whose it is; a signal that no step waits for stays in the inbox of the root.

Crash windows: `dies-before-giving` (the next activation gives it: a step that has it already takes no second
one), `time-meets-signal` (a step whose time has come in the meantime has failed, and its signal is spent).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from eventbus import PayloadError, SignalRefused, UnknownJob
from eventbus.lowlevel import FINAL_STATES, Signal, note_around
from workflows.definition.job_tree import last_members
from workflows.distributed.activation import Activation
from workflows.distributed.pauses.member import OPENED
from workflows.distributed.worker_runtime import Flow
from workflows.execution.signal_desk import refusal_of
from workflows.records.entries import Entry, chosen_id, entries_of_run

_GIVEN = "given"  # the id of the one signal that a step's job gets


class SignalRouter:
    """One activation of the root, after its steps were added. Await `run` once."""

    def __init__(self, activation: Activation, flow: Flow) -> None:
        self._activation = activation
        self._flow = flow
        self._jobs = flow.runtime.jobs
        self._waits: dict[str, Entry] = {}
        self._given: dict[str, Entry] = {}
        run = flow.message.run
        self._note(entry for number, entry in entries_of_run(activation.entries, run) if number == run)

    async def run(self) -> str:
        """Give signals, then wait for the steps and for further signals.

        Returns `completed` if all steps have, else the word of `JobClient.spawn`. Raises FlowStops,
        LeaseLost, ServerAway.
        """
        ended = await self._ended(self._waits)
        entries, taken = self._take({name for name in self._waits if name in ended})
        if taken:
            await self._activation.append(entries, taken=taken)
            self._note(entries)
        for step, entry in self._given.items():
            if step not in ended:
                await self._give(step, entry)
        flow, job = self._flow, self._activation.job
        last = last_members(flow.workflow, job.id, flow.message)
        outcomes = await flow.runtime.ask(self._jobs.outcomes(last))
        if all(outcome.state == "completed" for outcome in outcomes):
            return "completed"
        return await flow.runtime.ask(self._jobs.spawn(job, [], tree=job.id, awaited=last, heard=job.heard))

    def _note(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.kind == "wait":
                self._waits.setdefault(entry.place, entry)
            elif entry.kind == "signal":
                self._given[entry.place] = entry

    async def _ended(self, steps: Iterable[str]) -> set[str]:
        names = list(steps)
        if not names:
            return set()
        asked = self._jobs.outcomes([self._flow.job_of(name) for name in names])
        outcomes = await self._flow.runtime.ask(asked)
        return {name for name, outcome in zip(names, outcomes, strict=True) if outcome.state in FINAL_STATES}

    def _take(self, ended: set[str]) -> tuple[list[Entry], list[str]]:
        """Return the entries about new waits and about signals that go to a step, and the signals that they
        take.
        """
        entries: list[Entry] = []
        taken: list[str] = []
        for signal in self._activation.signals:
            if signal.name == OPENED:
                taken.append(signal.id)
                step, due = msgspec.json.decode(signal.payload, type=tuple[str, int])
                # Of an earlier run there may be a late one: that step had another job.
                is_now = step in self._flow.workflow.steps and signal.id == self._flow.job_of(step)
                if is_now and step not in self._waits:
                    entries.append(self._beginning(step, due))
        waiting = [*self._waits.values(), *entries]
        waiting = [each for each in waiting if each.place not in self._given and each.place not in ended]
        for signal in self._activation.signals:
            wait = next((each for each in waiting if each.name == signal.name), None)
            if wait is not None:
                entry = self._judge(signal, wait.place)
                entries.append(entry)
                taken.append(signal.id)
                if entry.kind == "signal":
                    waiting.remove(wait)
        return entries, taken

    def _beginning(self, step: str, due: int) -> Entry:
        pause = self._flow.workflow.steps[step].pause
        name = "" if pause is None else pause.name
        return Entry(kind="wait", place=step, name=name, started_ms=self._activation.clock.now_ms, due_ms=due)

    def _judge(self, signal: Signal, step: str) -> Entry:
        """Return the entry about a signal for a step: that it is given, or refused because it does
        not fit.
        """
        pause, now = self._flow.workflow.steps[step].pause, self._activation.clock.now_ms
        try:
            if pause is not None and pause.signal is not None:
                note_around(signal.name, signal.payload, pause.signal.type)
                pause.signal.decode(signal.payload)
        except PayloadError as error:
            return refusal_of(self._flow.facts, self._flow.workflow.name, step, signal, error, now_ms=now)
        payload = msgspec.Raw(signal.payload.encode())
        return Entry(
            kind="signal",
            place=step,
            name=signal.name,
            result=payload,
            started_ms=now,
            signal=chosen_id(signal.id),
        )

    async def _give(self, step: str, entry: Entry) -> None:
        payload = bytes(entry.result).decode()
        given = self._jobs.signal(self._flow.job_of(step), entry.name, payload, signal=_GIVEN)
        try:
            await self._flow.runtime.ask(given)
        except (SignalRefused, UnknownJob):  # its wait has ended
            return
