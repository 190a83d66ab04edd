"""The rows of a worker's turns, and their answers: the fields of each stand in the order of the header of
`turn.lua`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

Idle: TypeAlias = Literal[0, 1, 2, 3]
"""Whether a worker is idle: 0 no, 1 yes unless its turn claims something, 2 as an earlier turn said, 3 no
more.
"""


class TurnQueue(NamedTuple):
    """A queue of one turn: how many jobs may be claimed from it, and how long its ended jobs are kept."""

    queue: str
    quota: int
    keep_completed: int
    age_completed: int
    keep_failed: int
    age_failed: int
    key_ttl: int


class SettleRow(NamedTuple):
    """The outcome of one attempt, under its lease. `state` is the state that the job goes to."""

    id: str
    token: str
    state: str
    attempts: int | str
    text: str
    delay: int


class AppendRow(NamedTuple):
    """What a job appends to its journal, the first entry at `place`, counted from 0: how many rows of each
    kind.
    """

    id: str
    token: str
    place: int
    live: int
    taken: int
    entries: int


class LiveRow(NamedTuple):
    """A text that a job replaces whole."""

    name: str
    text: str


class TakenRow(NamedTuple):
    """A signal that an entry of the same call has taken over."""

    signal: str


class EntryRow(NamedTuple):
    """One entry of a journal."""

    text: str


class ClaimRow(NamedTuple):
    """One claimed job; `queue` is the place of its queue in the turn, counted from 1.

    `due` is negative for a job that has run before.
    """

    id: str
    queue: int
    body: str
    attempts: int
    stalls: int
    created: int
    due: int
    stop: str
    """Why the tree of this root stops: `failed`, `cancelled` or `timeout`; `''` for every other job."""


class WatchRow(NamedTuple):
    """A claimed suspect: at most `cap` may be watched together; it ran `fatal` ms at most when it was blamed
    last.
    """

    id: str
    cap: int
    fatal: int


class AppendRefusal(NamedTuple):
    """What became of an append that was not simply written; `place` counts the appends of the call from 1.

    `word` is `lost` (the lease), `behind` (the journal has only `length` entries), `torn` (it has others), or
    `stopping` (it was written, but the tree of the job stops).
    """

    place: int
    word: str
    length: int


class JournalRow(NamedTuple):
    """The journal and the inbox of one claimed job.

    `entries` are the first of `length`. `heard` is how many signals ever came. `signals` has by turns the id
    of a signal and its text.
    """

    id: str
    length: int
    heard: int
    entries: list[str]
    signals: list[str]


class TurnAnswer(NamedTuple):
    """The answer to one turn.

    `next_due` is -1 when no job is delayed. `lost` are the ids of settled jobs whose lease was lost,
    `woken` the queues of the wakes that were taken. `more` are the places of queues that have further
    ready jobs, counted from 1. `token` proves the leases of `claims`.
    """

    now: int
    next_due: int
    lost: list[str]
    woken: list[str]
    more: list[int]
    token: str
    claims: list[ClaimRow]
    foreign: list[str]
    """Queues whose waiting jobs cannot be read, because another program's value stands in their place."""
    watches: Sequence[WatchRow] = ()
    """Those of the claims that are suspects."""
    lonely: Sequence[int] = ()
    """The places of queues whose next suspect needs a worker for itself."""
    refusals: Sequence[AppendRefusal] = ()
    journals: Sequence[JournalRow] = ()
    """Of claims that have a journal or an inbox."""
    has_duty: bool = False
    """Whether schedules are due, which this worker has to fire."""
    aparts: Sequence[str] = ()
    """Jobs that the turn set apart as failed, because their records cannot be read."""
