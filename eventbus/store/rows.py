"""The rows that go into the scripts and come out of them, in the order of their headers.

Values only. A test holds each row against the header of its script. `''` stands for
absent; times and delays are whole milliseconds.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "JOIN",
    "REUSE",
    "SUPERSEDE",
    "AddQueue",
    "AddRow",
    "AddVerdict",
    "AnnounceQueue",
    "CancelRow",
    "ClaimRow",
    "EdgeRow",
    "LeaseRow",
    "MemberRow",
    "NoteRow",
    "Outcome",
    "PlainRow",
    "SaveRow",
    "SettleRow",
    "StallRow",
    "SweepQueue",
    "TreeHead",
    "TreeMember",
    "TurnAnswer",
    "TurnQueue",
]

JOIN, REUSE, SUPERSEDE = range(3)


class AddQueue(NamedTuple):
    """A queue that rows of one add refer to by its place, counted from 1."""

    queue: str
    has_default: int
    max_waiting: int | str


class AddRow(NamedTuple):
    """One emission."""

    id: str
    queue: int
    body: str
    key: str
    print: str
    delay: int | str
    due: int | str
    priority: int
    lifo: int
    reply: int
    meeting: int
    """`JOIN`, `REUSE` or `SUPERSEDE`: what happens when the key stands for a job already."""


class PlainRow(NamedTuple):
    """One emission that asks for nothing but perhaps a reply."""

    id: str
    queue: int
    body: str
    reply: int


class AddVerdict(NamedTuple):
    """What became of a row that is not simply a new job.

    `place` counts the rows of the call from 0. `word`: `joined`, `other` (joined, but with another payload) or `full`; `state` is
    `open` or the final state of the joined job, `text` its outcome.
    """

    place: int
    word: str
    job: str
    state: str
    text: str


class TurnQueue(NamedTuple):
    """A queue of one turn: how many jobs it may give, and how long it keeps what ended."""

    queue: str
    quota: int
    keep_completed: int
    age_completed: int
    keep_failed: int
    age_failed: int
    key_ttl: int


class SettleRow(NamedTuple):
    """One outcome under its lease. `state` is the state the job goes to."""

    id: str
    token: str
    state: str
    attempts: int | str
    text: str
    delay: int


class ClaimRow(NamedTuple):
    """One claimed job; `queue` is the place in the turn's queues, counted from 1."""

    id: str
    queue: int
    body: str
    attempts: int
    stalls: int
    created: int
    due: int
    stop: str
    """Why the tree of a root stops: `failed`, `cancelled` or `timeout`; `''` for every other job."""


class TurnAnswer(NamedTuple):
    """What one turn brought. `next_due` is -1 when nothing is delayed;"""

    now: int
    next_due: int
    lost: list[str]
    woken: list[str]
    more: list[int]
    token: str
    claims: list[ClaimRow]


class LeaseRow(NamedTuple):
    """One lease to renew."""

    id: str
    token: str


class CancelRow(NamedTuple):
    """One job to cancel, with those of its groups unless its id names one of them.

    `queue` is `''` where only the record knows it; `call` is fresh for each request; `text` is the
    outcome that its waiters hear.
    """

    id: str
    queue: str
    call: str
    text: str


class StallRow(NamedTuple):
    """What rescue did with one job: `verdict` is `rescued`, `failed` or `cancelled`.

    `worker` held it, and renewed its lease for the last time `age` ms ago; `lag` is how far
    behind its event loop was when it was last heard, ms.
    """

    id: str
    verdict: str
    worker: str
    age: int
    lag: int


class NoteRow(NamedTuple):
    """One progress note under a lease."""

    id: str
    token: str
    progress: str


class AnnounceQueue(NamedTuple):
    """A queue that a worker serves; `group` is `''` for the default group."""

    queue: str
    base: str
    group: str


class SweepQueue(NamedTuple):
    """A queue whose finished jobs are swept."""

    queue: str
    keep_completed: int
    age_completed: int
    keep_failed: int
    age_failed: int


class TreeHead(NamedTuple):
    """One chunk of a tree that is added. With the first comes the root; the last opens it.

    `rows` and `edges` are how many of the call's belong to it.
    """

    id: str
    is_first: int
    is_last: int
    key: str
    print: str
    meeting: int
    reply: int
    rows: int
    edges: int


class MemberRow(NamedTuple):
    """One job of a tree. Without a body of its own it is claimed with its root's.

    `root` is the tree that it is a member of, `''` for the root of the tree that is added. `tree` is 1 for
    a root, also a nested one, else `''`. `on` says what becomes of it when a child fails, `up` what its own
    failure does: `''`, `fail`, `ignore`, `remove` or `wake`. `delay` and `timeout` in ms, the latter of a root.
    """

    id: str
    root: str
    queue: str
    body: str
    priority: int
    delay: int | str
    on: str
    up: str
    tree: int | str
    timeout: int | str


class EdgeRow(NamedTuple):
    """`job` needs `needs`; `row` is the place, counted from 1, of one of the two among the rows."""

    row: int
    job: str
    needs: str


class SaveRow(NamedTuple):
    """One checkpoint of a job: its name and text."""

    name: str
    text: str


class TreeMember(NamedTuple):
    """One member of a tree as it is now; times in ms, 0 while there is none.

    `text` is its result or error, `needs` the jobs that need it, joined by spaces.
    """

    id: str
    state: str
    queue: str
    attempts: int
    stalls: int
    created: int
    claimed: int
    ended: int
    text: str
    needs: str


class Outcome(NamedTuple):
    """A job's state with its result or error as JSON text, `''` while there is none.

    `text` is None where a reply only announced the outcome and the record must be read.
    """

    job: str
    state: str
    text: str | None
