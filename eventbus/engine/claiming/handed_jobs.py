"""The jobs that a worker is handed: they start without a claim, and a lone one is settled without a turn.

A worker that a turn leaves with nothing is idle. The next emission that comes alone is handed to it: the call
that adds the job gives the worker the hold, and the job itself in the message that ends the worker's blocked
read (`handing.lua`). If the job completes and the worker still has nothing else, a short call settles it, and
says that the worker is idle again. All else goes through turns, as if the job had been claimed.

Not here: which slots are free, and what a turn settles (`claimer`); who reads the messages (`wake_listener`).

What must always hold: a job whose short settle was not answered `done` or `lost` goes through a turn, which
is safe because its hold is the fence; what the worker believes of its being idle may be wrong, and costs only
speed.

Crash windows: those of `handing.lua`, and `lone-settle-not-answered` (the same call is made again, and then a
turn).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from eventbus.engine.job import Job, Settle
from eventbus.model import clock
from eventbus.store.bounds import HANDED_MS
from eventbus.store.scripting.script_rows import Idle, TurnAnswer
from eventbus.store.store import Store

ECHO = "read"
"""A message of a worker to itself; the server puts it behind the jobs that it has handed to the worker."""

_TOKEN = "h"  # noqa: S105  (of a hold, not a secret)
_INLINE = 8192  # characters of a result that the short call takes
_ECHO_WITHIN = 4.0  # seconds
_PATIENCE = 5.0  # seconds, after which a turn settles the job
_LATE = HANDED_MS - 500  # ms after which a job is perhaps about to be given back


class HandedJobs:
    """Reads and settles the jobs that one worker is handed."""

    def __init__(self, store: Store, worker: str) -> None:
        self._store = store
        self._worker = worker
        self._token = f"{worker}:{_TOKEN}"
        self._is_offered = False
        """Whether the server counts this worker as idle, as far as the worker knows."""
        self._is_refusing = False
        self._ahead = 0.0
        """How far the server's time is ahead of the monotonic clock, in ms."""
        self.heard: asyncio.Event = asyncio.Event()
        """Set when the message ECHO was read."""
        self.is_settling: bool = False
        """Whether a short call is under way."""

    def refuse(self) -> None:
        """Take no more jobs from the next turn on; what was handed over before still comes."""
        self._is_refusing = True

    async def hear_all(self) -> bool:
        """Wait until every job that was handed over before now has come; return whether that is so."""
        self.heard.clear()
        await self._store.poke(self._worker, ECHO)
        try:
            async with asyncio.timeout(_ECHO_WITHIN):
                return await self.heard.wait()
        except TimeoutError:
            return False  # the message was lost with a connection

    def offer(self, *, is_idle: bool) -> Idle:
        """Return what the next turn says; `is_idle` says whether nothing runs or waits to be settled here."""
        if self._is_offered:
            return 3 if self._is_refusing else 2
        return 1 if is_idle and not self._is_refusing else 0

    def answered(self, offer: Idle, answer: TurnAnswer) -> None:
        """Note the answer of a turn that said `offer`."""
        self._ahead = answer.now - 1000 * clock.monotonic()
        has_nothing = not (answer.claims or answer.more or answer.woken)
        self._is_offered = has_nothing if offer == 1 else offer == 2 and not answer.claims

    def read(self, message: str) -> Job | None:
        """Return the job of a message; None if somebody else wrote it."""
        self._is_offered = False
        try:
            job_id, queue, text, body = message.split("\n", 3)
            time = int(text)
        except ValueError:
            return None
        return Job(job_id, self._token, queue, body, 0, 0, time, time, time, began=clock.monotonic())

    def is_late(self, job: Job) -> bool:
        """Return whether the job may have been given back before its message was read, because this process
        hung.
        """
        return self._ahead + 1000 * clock.monotonic() - job.claimed_ms > _LATE

    def is_short(self, job: Job, settle: Settle) -> bool:
        """Return whether the short call may settle the job."""
        return job.token == self._token and settle.state == "completed" and len(settle.text) <= _INLINE

    def settle(
        self, job: Job, text: str, *, pool: str, keep: int, age: int, on_answer: Callable[[str], None]
    ) -> None:
        """Settle a job by a call of its own; `on_answer` gets `done`, `lost`, or `long` if a turn must settle
        it.

        The worker is idle in `pool` then, unless it takes no more jobs. `keep` and `age`: as of `Retention`.
        """
        self.is_settling = True
        pool = "" if self._is_refusing else pool
        answer = self._store.settle_one(
            worker=self._worker,
            job=job.id,
            text=text,
            pool=pool,
            keep=keep,
            age=age,
            deadline=clock.monotonic() + _PATIENCE,
        )
        answer.add_done_callback(partial(self._on_answer, bool(pool), on_answer))

    def _on_answer(
        self, is_offered: bool, on_answer: Callable[[str], None], answer: asyncio.Future[str]
    ) -> None:
        self.is_settling = False
        word = "long" if answer.cancelled() or answer.exception() is not None else answer.result()
        if word == "done":
            self._is_offered = is_offered
        on_answer(word)
