"""The rescuer of a worker: gives back the jobs whose leases ran out, of any worker.

It looks when the earliest lease ends. Every worker rescues; there is no leader. Not here: the rules of
rescue, and the gap after which nothing is rescued for one lease (`heard.lua`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from eventbus.engine.consumer import Consumer
from eventbus.engine.job import Job
from eventbus.engine.reporting.failure_listener import FailureListener
from eventbus.engine.reporting.job_meter import note_stall
from eventbus.errors import StoreError
from eventbus.model import chance, clock
from eventbus.model.states import JobState
from eventbus.runtime.upkeep import mark
from eventbus.store.bounds import CALL_ROWS
from eventbus.store.scripting.script_rows import StallRow
from eventbus.store.store import Store
from eventbus.telemetry.listeners import Teller
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.worker")

_LOOK_WITHIN = 1.0  # seconds that reading the records of failed jobs may delay their log events
_LOOK, _APART = 0.4, 0.05  # of a lease; their sum is less than the half that counts as a gap

_STATES: dict[str, JobState] = {"rescued": "waiting", "failed": "failed", "cancelled": "cancelled"}
_VERDICTS = {
    "rescued": "job stalled, given back",
    "failed": "job stalled too often, failed",
    "apart": "job stalled and failed, its record cannot be read",
    "cancelled": "job stalled, ended as cancelled as was asked",
}


class Rescuer:
    """Ends leases that ran out: gives their jobs back, or fails those that stalled too often."""

    def __init__(
        self,
        store: Store,
        *,
        lease_ms: int,
        max_stalls: int,
        key_ttl_ms: int,
        consumers: Mapping[str, Consumer] | None = None,
        teller: Teller | None = None,
    ) -> None:
        """`consumers` give the fields of log events about their jobs. `teller` hears of each stall."""
        self._teller = teller or Teller()
        self._store = store
        self._consumers: Mapping[str, Consumer] = {} if consumers is None else consumers
        self.failures: FailureListener | None = None
        """Hears of the jobs that failed; None if nobody wants to know."""
        self._lease_ms = lease_ms
        self._max_stalls = max_stalls
        self._key_ttl_ms = key_ttl_ms

    async def run_once(self, *, now_ms: int | None = None) -> float:
        """Rescue the stalled jobs, up to 200; return the seconds until the next look. Raises StoreError.

        A lease that begins after this look ends one lease later at the earliest, so one look per lease
        would see every end in time. The looks come more often, because they also prove that the server
        was reachable all along. Otherwise a single worker that has no leases to renew would see a gap
        each time, and would put its rescue off for ever (see `heard.lua`).
        """
        lease = self._lease_ms / 1000
        next_ms, stalls = await self._store.rescue(
            lease_ms=self._lease_ms,
            limit=CALL_ROWS,
            max_stalls=self._max_stalls,
            key_ttl_ms=self._key_ttl_ms,
            now="" if now_ms is None else now_ms,
        )
        await self._tell(stalls)
        if len(stalls) >= CALL_ROWS:
            return 0.0
        longest = _LOOK * lease
        return longest if next_ms < 0 else min(longest, next_ms / 1000)

    async def _tell(self, stalls: Sequence[StallRow]) -> None:
        """Tell of the rescued jobs, also if this is cancelled while it reads records: they were rescued
        already.
        """
        deadline = clock.monotonic() + _LOOK_WITHIN
        facts: dict[str, Mapping[str, Any]] = {}
        for stall in stalls:
            if stall.verdict in ("failed", "apart") and self.failures is not None:
                self.failures.note_unseen(stall.id)
        try:
            for stall in stalls:
                if stall.verdict == "failed" and self._consumers:
                    facts[stall.id] = await self._facts(stall.id, deadline)
        finally:
            for stall in stalls:
                note_stall(stall.verdict)
                _log.warning(
                    _VERDICTS[stall.verdict],
                    **{**facts.get(stall.id, {}), "job_id": stall.id},
                    holder=stall.worker,
                    renewed_ago=stall.age / 1000,
                    loop_lag=stall.lag / 1000,
                )
                self._teller.tell(
                    "stalled", job_id=stall.id, worker=stall.worker, state=_STATES[stall.verdict]
                )

    async def _facts(self, job_id: str, deadline: float) -> Mapping[str, Any]:
        """Return log fields of a failed job. Another worker ran it, so its record is read from the server."""
        try:
            look = await self._store.inspection.job(job_id, deadline=deadline)
        except StoreError:
            return {}
        queue = look.fields.get("queue", "")
        attempts = look.fields.get("attempts", "")
        consumer = self._consumers.get(queue)
        if consumer is None:
            return {"queue": queue} if queue else {}
        ended = Job(job_id, "", queue, look.body, int(attempts) if attempts.isdecimal() else 0, 0, 0, 0, 0)
        return {**consumer.facts(ended), "queue": queue}

    async def run(self) -> None:
        """Rescue until cancelled; the worker runs this as one of its tasks."""
        mark("idle")
        while True:
            try:
                pause = await self.run_once()
            except StoreError as error:
                _log.error("rescue refused", error=str(error))
                self._teller.error("rescuer", error)
                pause = self._lease_ms / 1000
            # By chance a little later, so that the workers of a fleet do not all look at once.
            await asyncio.sleep(pause + min(0.5, _APART * self._lease_ms / 1000) * chance.jitter())
