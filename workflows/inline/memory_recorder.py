"""A journal and an inbox in memory, for flows of all kinds without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from eventbus.lowlevel import Passing, clock
from eventbus.lowlevel import Signal as SentSignal
from workflows.execution.surroundings import FlowClock, FlowStops
from workflows.records.entries import Entry


class RunAgain(Passing):
    """Something was recorded, and the code is to start again from its top."""


class MemoryRecorder:
    """A journal and an inbox in memory, with a clock that `wait` moves on."""

    def __init__(
        self,
        entries: Sequence[Entry] = (),
        signals: Sequence[SentSignal] = (),
        *,
        now_ms: int = 0,
        remembers: bool = True,
    ) -> None:
        """Begin with what is recorded already; with `remembers` keep what is recorded in `entries`."""
        self.entries: list[Entry] = list(entries)
        self.inbox: list[SentSignal] = list(signals)
        self.live: dict[str, str] = {}
        self.came: asyncio.Event = asyncio.Event()
        """Set by each signal that comes while the flow runs."""
        self.replays = False
        self.sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep
        self.is_busy: Callable[[], bool] = lambda: False
        """Tells whether steps run, which a new start would cancel."""
        self.clock: FlowClock = FlowClock(now_ms or round(clock.now() * 1000))
        """The real time, and what was slept."""
        self.stopped: asyncio.Event = asyncio.Event()
        """Set when the flow is stopped and may end its active steps."""
        self._sent = 0
        self._remembers = remembers

    @property
    def signals(self) -> Sequence[SentSignal]:
        """The signals that nobody has taken."""
        return self.inbox

    def take(self, name: str, payload: str) -> None:
        """Take a signal that is sent while the flow runs."""
        self._sent += 1
        self.inbox.append(SentSignal(f"sent-{self._sent}", self._order(), name, payload))
        self.came.set()

    def _order(self) -> int:
        return max((signal.order for signal in self.inbox), default=self._sent) + 1

    async def append(
        self, entries: Sequence[Entry], *, live: Mapping[str, str] | None = None, taken: Sequence[str] = ()
    ) -> None:
        """Record, after a round of the event loop. Raises FlowStops (recorded, but the flow is stopped), and
        RunAgain if the code is to start again.
        """
        await asyncio.sleep(0)  # as an append to a server: an endless function leaves others their turn
        if self._remembers:
            self.entries += entries
        self.live.update(live or {})
        for name in [name for name, text in self.live.items() if not text]:
            del self.live[name]
        self.inbox = [signal for signal in self.inbox if signal.id not in taken]
        if self.stopped.is_set():
            raise FlowStops
        if self.replays and entries and not self.is_busy():
            raise RunAgain

    async def wait_until(self, time_ms: int) -> None:
        """Sleep until a time, and let the clock show it."""
        if (left := time_ms - self.clock.now_ms) > 0:
            await self.sleep(left / 1000)
        self.clock.move_to(time_ms)

    async def listen(self) -> None:
        """Return when a signal has come since the last call returned."""
        await self.came.wait()
        self.came.clear()

    async def refresh(self) -> None:
        """Do nothing: signals come from the caller of the flow."""
