"""A claimed job, and the ways to settle it. Values only, no I/O."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Job", "Settle", "cancel", "cancelled", "complete", "fail", "give_back", "later", "park", "retry"]


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
    """For the root of a stopped tree the cause: `failed`, `cancelled` or `timeout`. Empty for every other job."""


class Settle(msgspec.Struct, frozen=True, gc=False):
    """The decision about one job: the state that it gets, with a text and a delay.

    `counts` says whether this run counts as an attempt that ended in an error.
    """

    state: Literal["completed", "failed", "cancelled", "delayed", "waiting", "parked"]
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
    """Run the job again after `delay_ms`, without an attempt, because it could not begin; `why` is JSON text."""
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
    """Set the job aside until a worker that can run it comes. It counts neither an attempt nor a stall."""
    return Settle("parked", why)


def give_back() -> Settle:
    """Put the job back at the head of its queue, as if it had never been claimed."""
    return Settle("waiting")
