"""The recorder of a flow in a worker: it appends to the flow's journal, under its lease."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from eventbus import StoreUnavailable
from eventbus.lowlevel import Signal
from workflows.distributed.activation import Activation
from workflows.distributed.worker_runtime import WorkerRuntime
from workflows.execution.surroundings import FlowClock, FlowStops
from workflows.records.entries import Entry

_LOOK_SECONDS = 1.0  # while steps run it looks for signals at least so often


class FlowRecorder:
    """Records through an activation, and remembers what it recorded and which signals are left."""

    def __init__(self, runtime: WorkerRuntime, activation: Activation, *, remembers: bool = True) -> None:
        """With `remembers` keep what is recorded in `entries`."""
        self.entries: list[Entry] = []
        self._remembers = remembers
        self._runtime = runtime
        self._activation = activation
        self.clock: FlowClock = activation.clock

    @property
    def signals(self) -> Sequence[Signal]:
        """The signals that no entry has taken, the oldest first."""
        return self._activation.signals

    async def append(
        self, entries: Sequence[Entry], *, live: Mapping[str, str] | None = None, taken: Sequence[str] = ()
    ) -> None:
        """Record entries, live texts and taken signals. Raises what `Activation.append` raises."""
        try:
            await self._activation.append(entries, live=live, taken=taken)
        except FlowStops:
            self._note(entries)
            raise
        self._note(entries)
        if taken:
            job = self._activation.job
            job.signals = [signal for signal in job.signals if signal.id not in taken]

    def _note(self, entries: Sequence[Entry]) -> None:
        if self._remembers:
            self.entries += entries

    async def wait_until(self, time_ms: int) -> None:
        """Wait until the clock shows a time, which is near."""
        await asyncio.sleep(max(0, time_ms - self.clock.now_ms) / 1000)

    async def listen(self) -> None:
        """Return when the server tells of a signal, or in a second."""
        try:
            await self._runtime.jobs.listen(self._activation.job, within=_LOOK_SECONDS)
        except StoreUnavailable:
            await asyncio.sleep(_LOOK_SECONDS)

    async def refresh(self) -> None:
        """Look for signals that came since."""
        await self._runtime.jobs.hear(self._activation.job)
