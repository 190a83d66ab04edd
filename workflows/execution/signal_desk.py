"""The signals of one run of a step graph: which step that waits gets which signal.

    a step begins to wait -> a signal of its name is there | comes
                          -> given to the step, whose end takes it
                          -> its payload does not fit -> refused, and the step waits on

What must always hold: a signal goes to one step, to the one that began to wait first; signals of a name are
given in the order in which they came; a signal that no step waits for is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from eventbus import PayloadError
from eventbus.lowlevel import Signal, note_around
from workflows.execution.step_run import StepRun

__all__ = ["Inbox", "SignalDesk"]


class Inbox(Protocol):
    """The signals that a flow was sent. A desk asks it, and tells it what is refused."""

    @property
    def signals(self) -> Sequence[Signal]:
        """The signals that no entry has taken, in the order in which they came."""
        ...

    def holds(self, delay: float) -> bool:
        """Tell whether a step waits here for a signal, that many seconds (or `math.inf`), even if no other
        step runs.
        """
        ...

    async def listen(self) -> None:
        """Return when further signals may have come."""
        ...

    async def refresh(self) -> None:
        """Look for signals once."""
        ...

    async def refuse(self, run: StepRun, signal: Signal, error: PayloadError) -> None:
        """Record that a signal does not fit the type for which the step waits, and take it."""
        ...


class SignalDesk:
    """The steps of one run that wait for signals."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self._open: dict[asyncio.Future[Signal], StepRun] = {}
        self._given: set[str] = set()
        self._matching = asyncio.Lock()
        self._listener: asyncio.Task[None] | None = None

    async def enter(self, run: StepRun) -> asyncio.Future[Signal]:
        """Return the future of the signal that the step gets. Raises what `Inbox.refuse` raises."""
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
        """Look for signals now. Raises what the inbox raises."""
        await self.inbox.refresh()
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
                await self.inbox.listen()
                await self._match()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  (each step that waits ends with it)
            for arrival in self._open:
                if not arrival.done():
                    arrival.set_exception(error)

    async def _match(self) -> None:
        async with self._matching:
            for signal in list(self.inbox.signals):
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
            await self.inbox.refuse(run, signal, error)
        else:
            arrival.set_result(signal)
