"""A claimed job, and the ways to settle it. Values only, no I/O."""

from __future__ import annotations

from typing import Literal

import msgspec

from eventbus.store.bounds import WHY_BYTES
from eventbus.store.calls.journal_store import SentSignal


class Job(msgspec.Struct, gc=False):
    """One job under this worker's lease.

    `token` proves the lease. `attempts` is the number of earlier attempts that ended in an error, `stalls`
    the number of leases that ran out. Times are in ms of the server's clock.
    """

    id: str
    token: str
    queue: str
    body: str
    attempts: int
    stalls: int
    created_ms: int
    due_ms: int
    claimed_ms: int
    stop: str = ""
    """For the root of a stopped tree the cause: `failed`, `cancelled` or `timeout`. Empty for every other
    job.
    """
    journal: list[str] = []
    """What the job has appended to its journal, in this run and in earlier ones."""
    unread: int = 0
    """How many further entries the journal has, because the claim brings only the first ones of a
    long one.
    """
    passed: int = 0
    """How many entries stand before those of `journal`, which this process does not have (`keep_newest`)."""
    keeps: int = 0
    """How many of its newest entries the journal keeps; 0 for all."""
    signals: list[SentSignal] = []
    """The signals that the job was sent before its claim, and that no entry has taken, in the order in which
    they came.
    """
    heard: int = 0
    """How many signals the job was ever sent before its claim."""
    has_begun: bool = False
    """Whether it has run before, and was retried, rescued, put off, parked or asleep."""
    began: float = 0.0
    """When this worker got it, in monotonic seconds."""
    ending: Literal["", "timeout", "shutdown", "lease", "cancel"] = ""
    """Why its executor cancelled it; empty while it did not. May be read in any thread."""

    def keep_newest(self, count: int) -> None:
        """Let each append of this run drop all but the newest `count` entries of the journal, and keep none
        of them here.

        If the server forgets entries in a failover, the lease counts as lost: what goes with them, live
        texts, is lost too, and the next run begins with what the server has. Call it before the first append
        of a run.
        """
        self.passed += len(self.journal) + self.unread
        self.journal, self.unread, self.keeps = [], 0, count


def outside_job(job_id: str) -> Job:
    """Make the job of an attempt outside of a worker, in a process or inline: it has an id alone."""
    return Job(
        id=job_id, token="", queue="", body="", attempts=0, stalls=0, created_ms=0, due_ms=0, claimed_ms=0
    )


class Settle(msgspec.Struct, frozen=True, gc=False):
    """The decision about one job: the state that it gets, with a text and a delay.

    `counts` says whether this run counts as an attempt that ended in an error.
    """

    state: Literal["completed", "failed", "cancelled", "delayed", "waiting", "parked", "shelved", "suspended"]
    text: str = ""
    delay_ms: int = 0
    counts: bool = False


def complete(result: str) -> Settle:
    """Complete the job; `result` is JSON text."""
    return Settle("completed", result)


def retry(error: str, delay_ms: int) -> Settle:
    """Count a failed attempt and run the job again after `delay_ms`; `error` is JSON text."""
    return Settle("delayed", error, delay_ms, counts=True)


def later(why: str, delay_ms: int) -> Settle:
    """Run the job again after `delay_ms`, without an attempt; `why` is JSON text for its log, or empty."""
    return Settle("delayed", why, delay_ms)


def fail(error: str, *, counts: bool = True) -> Settle:
    """Fail the job for good; `error` is JSON text."""
    return Settle("failed", error, counts=counts)


def cancelled() -> Settle:
    """End the job as cancelled, as a user asked; the server has the reason already."""
    return Settle("cancelled", '{"type":"JobCancelled"}')


def cancel(text: str) -> Settle:
    """End the job as cancelled; `text` is the outcome that its waiters receive, as JSON text."""
    return Settle("cancelled", text)


def park(why: str) -> Settle:
    """Set the job aside until a worker that can run it comes. It counts neither an attempt nor a stall.

    Of `why` the server keeps 64 bytes. A longer one is cut here, so that it ends neither within a character
    nor within a quote.
    """
    return Settle("parked", _cut(why))


def _cut(why: str) -> str:
    whole = why.encode("utf-8", "replace")
    if len(whole) <= WHY_BYTES:
        return why
    for end in ("...", "...'"):
        cut = whole[: WHY_BYTES - len(end)].decode("utf-8", "ignore")
        if (cut + end).count("'") % 2 == 0:
            return cut + end
    return cut + "..."  # the character that the longer cut had more was the quote


def suspend(*, delay_ms: int | None = None, heard: int | None = None) -> Settle:
    """Let the job sleep without a worker, and run it again after `delay_ms` or as soon as it is sent a
    signal.

    At least one of the two must be given. `heard` is how many signals the job knows of (`Job.heard`): one
    that came later wakes it at once. With None no signal wakes it. The sleep forgets earlier attempts and
    stalls, because the job got on.
    """
    if delay_ms is None and heard is None:
        raise ValueError("nothing would wake the job: give delay_ms, heard, or both")
    listens = "" if heard is None else str(heard)
    return Settle("suspended", listens, -1 if delay_ms is None else max(0, delay_ms))


def give_back(*, has_begun: bool = True) -> Settle:
    """Put the job back at the head of its queue. What it has begun counts: its ttl is over, and its payload
    stays.
    """
    return Settle("waiting", "begun" if has_begun else "")


def shelve(shelf: str) -> Settle:
    """Let the job wait in the paused queue `shelf` until that is resumed, and then in its own queue again.

    The run counts for nothing. The job must have no idempotency key, as members of trees have none. If
    `shelf` is not paused any more, the job is given back to its queue.
    """
    return Settle("shelved", shelf)
