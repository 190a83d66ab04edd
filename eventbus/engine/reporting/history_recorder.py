"""The recorder of the history: adds its tallies to the history of the queues in the server.

Each 5 s it sends what was counted since, if anything was. Each minute it also looks how many jobs wait in the
queues of the worker, and how old the oldest is; of a queue in which none waits it says nothing. So an idle
fleet writes nothing of them. Its first call says for how long a history is kept, so that scripts count, too
(`cells.lua`). Any worker may look, also several: the last one of a minute stands. Not here: what is counted
(`tallies`).

What must always hold: a call has a number, and is made again with the same number until it was answered; only
then is the next one made. What is counted meanwhile waits in memory, which is bounded: a queue has some
hundred codes.

Crash windows, which lose or move counts in charts and never change a job: `tallies-lost` (the worker dies, or
ends without a server: the last 5 s are in no chart), `tally-not-answered` (the same call again counts once),
`late-tally` (the worker hung, or had no server: its counts stand in the minute in which it tells of them).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence

from eventbus.engine.consumer import Consumer
from eventbus.engine.reporting.tallies import Tallies
from eventbus.errors import StoreError, StoreUnavailable
from eventbus.model import chance, clock
from eventbus.model.windows import Windows
from eventbus.runtime.upkeep import mark
from eventbus.store.calls.history_store import QueueTally
from eventbus.store.store import Store
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.worker")

_INTERVAL = 5.0  # seconds
_LOOK = 50.0  # seconds between two looks at what waits: each minute has one
_ANSWER_WITHIN = 4.0  # seconds
_FINISH_WITHIN = 1.0  # seconds
_CHUNK = 25  # queues of one call: one takes the server some 40 µs


class HistoryRecorder:
    """Writes the history of one worker's queues."""

    def __init__(
        self,
        store: Store,
        tallies: Tallies | None,
        consumers: Mapping[str, Consumer],
        *,
        worker: str,
        windows: Windows | None,
    ) -> None:
        """Without `tallies` or `windows` it does nothing."""
        self._store = store
        self._tallies = tallies
        self._consumers = consumers
        self._worker = worker
        self._windows = windows
        self._pending: deque[Sequence[QueueTally]] = deque([()])
        """Calls that are not answered; the number of the first is `_number`. The first of all only says that
        a history is kept.
        """
        self._number = 1
        self._is_refused = False

    async def run_once(self, *, looks: bool = False, now_ms: int | None = None) -> None:
        """Send what was counted; with `looks` also what waits. Raises StoreError, and sends the same again
        next time.
        """
        if self._windows is None or self._tallies is None:
            return
        now = "" if now_ms is None else now_ms
        await self._send(now)
        counted = self._tallies.take()  # no await until it is pending
        self._put([QueueTally(queue, "", "", counts) for queue, counts in counted.items()])
        if looks:
            self._put(await self._look(now))
        await self._send(now)

    async def _send(self, now: int | str) -> None:
        assert self._windows is not None  # noqa: S101  (else nothing is pending)
        while self._pending:
            await self._store.history.tally(
                self._worker,
                self._number,
                self._pending[0],
                minutes_ms=round(self._windows.minutes * 1000),
                hours_ms=round(self._windows.hours * 1000),
                deadline=clock.monotonic() + _ANSWER_WITHIN,
                now=now,
            )
            self._pending.popleft()
            self._number += 1

    def _put(self, tallies: Sequence[QueueTally]) -> None:
        for first in range(0, len(tallies), _CHUNK):
            self._pending.append(tallies[first : first + _CHUNK])

    async def _look(self, now: int | str) -> list[QueueTally]:
        queues = list(self._consumers)
        deadline = clock.monotonic() + _ANSWER_WITHIN
        looks = await self._store.presence.survey(queues, deadline=deadline, now=now)
        return [
            QueueTally(queue, look.waiting, look.oldest or "", {})
            for queue, look in zip(queues, looks, strict=True)
            if look.waiting
        ]

    async def run(self) -> None:
        """Record until cancelled; the worker runs this as one of its tasks."""
        mark("always")
        if self._windows is None:
            return
        looks_at = clock.monotonic() + _LOOK * chance.jitter()  # workers of a fleet look at different times
        while True:
            looks = clock.monotonic() >= looks_at
            if await self._try(looks=looks) and looks:
                looks_at = clock.monotonic() + _LOOK
            await asyncio.sleep(_INTERVAL)

    async def finish(self) -> None:
        """Send the last tallies, when everything is settled; within a second, because a stop does not wait
        for charts.
        """
        if not self._store.is_connected:
            return
        try:
            async with asyncio.timeout(_FINISH_WITHIN):
                await self._try(looks=False)
        except TimeoutError:
            pass  # they are in no chart

    async def _try(self, *, looks: bool) -> bool:
        try:
            await self.run_once(looks=looks)
        except StoreUnavailable:
            return False  # it is told once for the whole worker (`store.connection.availability`)
        except StoreError as error:
            if not self._is_refused:
                self._is_refused = True
                _log.warning("history not written, trying again", error=str(error))
            return False
        self._is_refused = False
        return True
