"""The schedule runner of a worker: fires the schedules that are due.

    waiting -- a turn says that schedules are due, or once a minute --> firing -- nothing is due --> waiting

Any number of workers do this; nobody leads. What must always hold: the server decides (`fire.lua`) by its own
clock whether a slot is due and whether somebody fired it before. So it does no harm if two runners fire at
once, if one dies anywhere, or if the clock of its machine is wrong. What it cannot read, for a newer release
wrote it or its machine does not know the time zone, it puts off for others.

Crash windows: `dies-before-fire` (2 s later the turn of another worker hears of it), `fired-not-answered`
(the call is repeated, and is stale), `duty-lost` (a worker of an older release took it: once a minute each
runner looks by itself).
"""

from __future__ import annotations

import asyncio

import msgspec

from eventbus.engine.reporting.job_meter import note_lateness
from eventbus.errors import DefinitionError, StoreError
from eventbus.model import chance, clock
from eventbus.runtime.upkeep import mark
from eventbus.schedules.firing import make_row, put_off
from eventbus.schedules.plan import decode_plan
from eventbus.store.scripting.script_rows import DueRow, FireRow
from eventbus.store.store import Store
from eventbus.telemetry.listeners import Teller
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.schedules")

_LOOK_EACH = 60.0
_PAUSE = 5.0  # seconds after a refusal
_PUT_OFF = 30_000
_WITHIN = 30.0


class ScheduleRunner:
    """Fires what is due, in the worker of one process."""

    def __init__(self, store: Store, *, key_ttl: float, teller: Teller | None = None) -> None:
        """`key_ttl`, seconds: how long the key of a slot stands after the end of its job."""
        self._store = store
        self._teller = teller or Teller()
        self._key_ttl_ms = round(key_ttl * 1000)
        self._duty = asyncio.Event()
        self._unread: set[tuple[str, str]] = set()

    def notice(self) -> None:
        """Fire soon: schedules are due."""
        self._duty.set()

    async def run(self) -> None:
        """Fire until cancelled; the worker runs this as one of its tasks."""
        mark("always")
        while True:
            self._duty.clear()
            try:
                await self.fire_all()
            except StoreError as error:
                _log.error("schedules not fired, trying again", error=str(error))
                self._teller.error("schedules", error)
                await asyncio.sleep(_PAUSE)
                continue
            try:
                async with asyncio.timeout(_LOOK_EACH * (1 - 0.3 * chance.jitter())):
                    await self._duty.wait()
            except TimeoutError:
                pass

    async def fire_all(self, *, now_ms: int | None = None) -> int:
        """Fire all that is due; return how many jobs were made."""
        now = "" if now_ms is None else now_ms
        rows, made = list[FireRow](), 0
        while True:
            answer = await self._store.schedules.fire(
                rows, key_ttl_ms=self._key_ttl_ms, deadline=clock.monotonic() + _WITHIN, now=now
            )
            for row, word in zip(rows, answer.words, strict=True):
                made += word == "fired"
                self._note(row, word)
                if word == "fired":
                    note_lateness(row.queue, answer.now - int(row.slot))
            if not answer.due:
                return made
            rows = list[FireRow]()
            for due in answer.due:
                rows.append(self._row(due, answer.now))
                # After a long stop a row takes 20 ms. The worker keeps its leases meanwhile.
                await asyncio.sleep(0)

    def _row(self, due: DueRow, now: int) -> FireRow:
        try:
            return make_row(due, decode_plan(due.plan), now)
        except (msgspec.MsgspecError, DefinitionError, ValueError) as error:
            if (due.id, due.gen) not in self._unread:
                self._unread.add((due.id, due.gen))
                _log.error(
                    "schedule left to others: this worker cannot read it", schedule=due.id, error=str(error)
                )
            return put_off(due, _PUT_OFF)

    def _note(self, row: FireRow, word: str) -> None:
        if word == "paused":
            _log.warning("schedule paused: its last job failed", schedule=row.id)
        elif word == "foreign":
            _log.error("schedule not fired: its queue cannot be written", schedule=row.id, queue=row.queue)
        elif row.missed or word == "missed":
            _log.warning(
                "slots missed", schedule=row.id, count=row.missed + (word == "missed"), first=row.slot
            )
