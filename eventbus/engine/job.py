"""A claimed job, and how it can be settled. Values, no I/O."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Job", "Settle", "cancel", "cancelled", "complete", "fail", "give_back", "park", "retry"]


class Job(msgspec.Struct, gc=False):
    """One job under this worker's lease.

    `attempts` counts the attempts that ended in an error before this one, `stalls` the
    leases that ran out. Times are server time, ms.
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
    """Why the tree of a claimed root stops: `failed`, `cancelled` or `timeout`; empty for every other job."""


class Settle(msgspec.Struct, frozen=True, gc=False):
    """The decision about one job: the state it goes to, with its text and delay.

    `counts` says whether this run was an attempt that ended in an error.
    """

    state: Literal["completed", "failed", "cancelled", "delayed", "waiting", "parked"]
    text: str = ""
    delay_ms: int = 0
    counts: bool = False


def complete(result: str) -> Settle:
    """The handler returned; `result` is JSON."""
    return Settle("completed", result)


def retry(error: str, delay_ms: int) -> Settle:
    """The attempt failed and another one follows after `delay_ms`; `error` is JSON."""
    return Settle("delayed", error, delay_ms, counts=True)


def fail(error: str, *, counts: bool = True) -> Settle:
    """The job fails for good; `error` is JSON."""
    return Settle("failed", error, counts=counts)


def cancelled() -> Settle:
    """The job ends as cancelled; who asked for it has said why, in the server."""
    return Settle("cancelled", '{"type":"JobCancelled"}')


def cancel(text: str) -> Settle:
    """The job ends as cancelled; `text` is the outcome that its waiters hear, JSON."""
    return Settle("cancelled", text)


def park(why: str) -> Settle:
    """This worker cannot run it: it waits for one that can. No attempt, no stall."""
    return Settle("parked", why)


def give_back() -> Settle:
    """Back to its old place in the queue, as if it had never been claimed."""
    return Settle("waiting")
