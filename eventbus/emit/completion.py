"""The completion tracker: the emissions of one provider that wait for an outcome.

    registered -> in the wait list -> settled by an outcome, an error, the timeout or the stop

Not here: which outcome belongs to which emission (`wait_list`), and how outcomes arrive (`reply_reader`); the
providers of one uplink share both.

What must always hold:
- an emission is registered before its job is sent, so that no outcome finds it missing;
- the stop of a provider ends its own emissions, and no others that wait for the same jobs;
- an emission leaves the tracker by its outcome, by an error, by its timeout or by the stop, never
  silently.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import Iterator
from typing import Any

from eventbus.emit.attendance import Attendance
from eventbus.emit.emission import PendingEmission
from eventbus.emit.lookup import Lookup
from eventbus.emit.uplink import Uplink
from eventbus.emit.wait_list import WaitList
from eventbus.engine.drain import HandlerWait
from eventbus.errors import ProviderStopped, UnknownJob
from eventbus.model import chance, clock
from eventbus.model.durations import Duration
from eventbus.runtime.timers import TimerWheel
from eventbus.settings.settings import Settings
from eventbus.store.scripting.script_rows import CancelRow
from eventbus.store.store import Store
from eventbus.telemetry.failure import describe_cancelled
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.emission")

_TELL_LOST_EACH = 5.0  # seconds


class CompletionTracker:
    """The emissions of one emitter that wait for an outcome."""

    def __init__(self, store: Store, uplink: Uplink, *, settings: Settings | None = None) -> None:
        """`store` is the provider's own; the tracker's calls end with it."""
        self.loop: asyncio.AbstractEventLoop = uplink.loop
        """The event loop in which outcomes arrive."""
        self.deadlines: TimerWheel = uplink.waits.deadlines
        self._store = store
        self._uplink = uplink
        self.waits: WaitList = uplink.waits
        self._jobs = uplink.waits.jobs  # without a detour, for speed
        self.attendance: Attendance = uplink.attendance
        """What the server knows of what this process awaits."""
        self.lookup: Lookup = Lookup(store, uplink.id, uplink.waits, uplink.attendance)
        self._settings = settings or Settings()
        self._is_stopping = False
        self._failed: weakref.WeakSet[PendingEmission[Any]] = weakref.WeakSet()
        """The failed emissions to which somebody still holds a reference."""
        self._lost: dict[str, tuple[float, int]] = {}
        """Event -> when emissions were logged that were given up, and how many were since. Events are few."""

    @property
    def waiting(self) -> int:
        """How many emissions of this provider wait."""
        return sum(1 for _ in self._own())

    def register(self, emission: PendingEmission[Any], *, delay: float) -> None:
        """Wait for the emission's new job. The reply timeout starts after `delay` seconds."""
        self._jobs[emission.job_id] = [emission]
        if emission.reply_timeout is not None:
            emission.bucket = self.deadlines.add(emission, delay + emission.reply_timeout)

    def watch(self, emission: PendingEmission[Any]) -> None:
        """Wait for a job that is in the server; its outcome may have been sent, so look it up after this."""
        emission.mark_enqueued()
        self.waits.watch(emission)

    def overdue(self, emission: PendingEmission[Any]) -> None:
        """Look up the job of an emission whose time is over, because its outcome may have been lost."""
        if not emission.is_enqueued and not self._is_stopping:
            # Not in the server yet, so its sender ends it at its own deadline. Ask again in 50 ms.
            emission.bucket = self.deadlines.add(emission, 0.05)
            return
        self._uplink.reader.overdue(emission)

    def note_failed(self, emission: PendingEmission[Any], error: Exception) -> None:
        """Remember a failed emission, so that `close` logs the error if nobody has asked for it by then.

        The object may live longer than the provider, so its own log event might come too late. An emission
        that fails because of the stop is not remembered: its waiters may still ask for the error.
        """
        if not isinstance(error, ProviderStopped):
            self._failed.add(emission)

    def count_lost(self, event: str) -> int:
        """Count an emission that was given up and not awaited. Return how many to log now, 0 for none yet."""
        now = clock.monotonic()
        told_at, count = self._lost.get(event, (-math.inf, 0))
        is_due = now - told_at >= _TELL_LOST_EACH
        self._lost[event] = (now, 0) if is_due else (told_at, count + 1)
        return count + 1 if is_due else 0

    async def cancel(
        self, job_id: str, reason: str, *, queue: str = "", call_timeout: Duration | None = None
    ) -> bool:
        """Cancel a job and the jobs of its groups; see `EventProvider.cancel`.

        `queue` is needed if only the jobs of the groups have records.
        """
        if self._is_stopping:
            raise ProviderStopped("cannot cancel a job: the provider has stopped", job_id=job_id)
        # A fresh token for this request: a repeated call with it gets the same answer.
        row = CancelRow(job_id, queue, chance.token(8), describe_cancelled(reason))
        deadline = self._settings.deadline(call_timeout)
        key_ttl_ms = round(self._settings.key_ttl * 1000)
        (word,) = await self._store.cancel([row], key_ttl_ms=key_ttl_ms, deadline=deadline)
        if word == "unknown":
            raise UnknownJob(job_id)
        return word != "over"

    def find_waits(self) -> list[HandlerWait]:
        """Return which running jobs wait for which jobs: their handlers await their own emissions."""
        return [HandlerWait(*wait) for emission in self._own() if (wait := emission.find_wait()) is not None]

    def dismiss(self, error: Exception) -> None:
        """Fail the emissions whose jobs are in the server. The senders end the others."""
        for emission in [own for own in self._own() if own.is_enqueued]:
            self.waits.forget(emission, error)

    def close(self, error: Exception) -> None:
        """Fail all emissions of this provider that still wait. Log failures that nobody asked for."""
        self._is_stopping = True
        for emission in list(self._own()):
            self.waits.forget(emission, error)
        for emission in list(self._failed):
            emission.tell_unheard()
        for event, (_, count) in self._lost.items():
            if count:
                _log.error("emission failed and nobody awaited it", event_name=event, count=count)
        self._lost.clear()

    def _own(self) -> Iterator[PendingEmission[Any]]:
        """Return the emissions of this provider. Looks at those of all providers, so it is for rare calls."""
        return (one for waiting in self._jobs.values() for one in waiting if one.belongs_to(self))
