"""The rows that scripts read and answer: the fields of each stand in the order of its script's header.

Not here: any behaviour. What must always hold: each row has the fields that its script's header names, in
that order (a test compares them). `''` stands for an absent value; times and delays are whole ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

JOIN = 0
REUSE = 1
SUPERSEDE = 2
THROTTLE = 3
DEBOUNCE = 4
KEEP_LAST = 5

ROOTS = 1
NEEDS_WORKER = 2


class AddQueue(NamedTuple):
    """A queue that rows of one add refer to by its place, counted from 1.

    `traits` is the sum of `ROOTS` if its rows are roots of trees without members, which deal with their stop
    themselves (their queue has no groups and no limit in this call), and of `NEEDS_WORKER` if they are
    refused where no worker serves the queue or one of its groups.
    """

    queue: str
    has_default: int
    max_waiting: int | str
    traits: int = 0


class TimeoutRow(NamedTuple):
    """The timeout of a root in ms, from when it is due. `row` is its number among the rows of the call, from
    0.
    """

    row: int
    timeout: int


class AddRow(NamedTuple):
    """One emission. `queue` is the place of its queue in the call, counted from 1.

    `key` is the digest of the idempotency key and `print` the digest of the payload; both are `''` without
    a key. `delay` is in ms, and `due` is the Unix time in ms. `lifo` and `reply` are 1 or 0.
    """

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
    """What happens if an earlier job has the key: `JOIN`, `REUSE`, `SUPERSEDE`, `THROTTLE`, `DEBOUNCE` or
    `KEEP_LAST`.
    """
    span: int | str = ""
    """In ms: the window of a throttle; how long a debounced job waits at most, `''` for no limit."""
    limit: str = ""
    """The digest of the limit key, `''` without one."""
    keep: str = ""
    """How long the job is kept once it has ended, `completed,failed` in ms, `''` in either place for as its
    queue says.
    """


class PlainRow(NamedTuple):
    """One emission without any options except `reply`: the short form of an `AddRow`."""

    id: str
    queue: int
    body: str
    reply: int


class AddVerdict(NamedTuple):
    """What became of a row that did not simply become a new job.

    `place` counts the rows of the call from 0. `word` is `joined`, `other` (joined, but with another
    payload), `full`, `foreign` (another program's value stands in the key `text`) or `later` (nothing was
    done, because the rows before it fill the call, or one merges with its key) or `pending` (of a root: the
    key stands for a tree that is not whole yet, and nothing was added). For a joined job, `state` is `open`,
    `unlisted` (open, but so many wait for it that its end will not be told) or its final state, and `text` is
    its outcome. For `full`, `text` is the queue that is full, and `state` says whether a worker serves that
    queue: `served` or `unserved`. The word `unserved` refuses a row that needs a worker: `text` is the queue
    that none serves.
    """

    place: int
    word: str
    job: str
    state: str
    text: str


class AddAnswer(NamedTuple):
    """The answer to one add. `widths` says for each queue of the call how many jobs an emission makes
    there.
    """

    widths: list[int]
    verdicts: list[AddVerdict]


class LeaseRow(NamedTuple):
    """One lease to renew."""

    id: str
    token: str


class CancelRow(NamedTuple):
    """One job to cancel, together with the jobs of its groups, unless its id names one of the groups.

    `queue` is `''` if only the job's record knows it. `call` is fresh for each request. `text` is the outcome
    that the job's waiters get. `of` is the only state in which the job is cancelled; `''`: each open one.
    """

    id: str
    queue: str
    call: str
    text: str
    of: str = ""


class StallRow(NamedTuple):
    """What rescue did with one job: `verdict` is `rescued`, `failed`, `cancelled`, or `apart` if its record
    cannot be read.

    `worker` held the job, and last renewed its lease `age` ms ago. `lag` is how many ms that worker's
    event loop was behind at its last call.
    """

    id: str
    verdict: str
    worker: str
    age: int
    lag: int


class NoteRow(NamedTuple):
    """The progress of one job, under its lease."""

    id: str
    token: str
    progress: str


class AnnounceQueue(NamedTuple):
    """A queue that a worker serves; `group` is `''` for the default group.

    `limit` is the limit that the program declares, and `keeps` how long what has ended is kept there, as
    JSON, or `''`.
    """

    queue: str
    base: str
    group: str
    limit: str = ""
    keeps: str = ""


class JobIdRow(NamedTuple):
    """A job that a leaving worker knows of."""

    id: str


class QueueRow(NamedTuple):
    """The name of one queue."""

    queue: str


class QueueLook(NamedTuple):
    """The live workers of a queue, and its waiting jobs; times in ms, 0 if there is none.

    `announced` is when a pool last announced that it serves the queue, 0 if that is not known. `oldest`
    is since when the first or the last waiting job has been there, whichever was earlier.
    """

    workers: int
    announced: int
    waiting: int
    parked: int
    delayed: int
    oldest: int


class GroupRemoval(NamedTuple):
    """How far the removal of a group got.

    `word` is `served` (refused, because `workers` live workers serve the group), `more` (call again)
    or `done`.
    """

    word: str
    workers: int
    cancelled: int


class SweepQueue(NamedTuple):
    """A queue whose finished jobs are swept: how many of them are kept, and how long."""

    queue: str
    keep_completed: int
    age_completed: int
    keep_failed: int
    age_failed: int


class TreeHead(NamedTuple):
    """One chunk of a tree that is added. The first chunk brings the root; the last chunk opens the tree.

    `rows` and `edges` are how many rows and edges of the call belong to this chunk.
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
    """One job of a tree. A job without a body is claimed with the body of its root.

    `root` is the id of the tree that the job is a member of, `''` for the root of the tree that is added.
    `tree` is 1 for a root, also a nested one, and `''` otherwise. `on` says what becomes of the job when a
    child fails, and `up` what the job's own failure does to the jobs that wait for it: `fail`, `ignore`,
    `remove`, `wake`, or `''` (`on`: as `fail`; `up`: as the waiting job's `on` says). `delay` and
    `timeout` are in ms; only a root has a timeout.
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


class Wait(NamedTuple):
    """What a job waits for in a `mixed` wait: for its awaited children, and for what else is given here.

    It ends after `delay` ms, when the job has been sent more signals than `heard`, or if `first` when one of
    the children has ended. '' for none. `call` names a wait that several calls say together, and `total` is
    how many children it has.
    """

    mixed: int = 0
    delay: int | str = ""
    heard: int | str = ""
    first: int = 0
    call: str = ""
    total: int = 0


class EdgeRow(NamedTuple):
    """`job` waits for `needs`. One of the two is a row of the call: `row` is its place, counted from 1."""

    row: int
    job: str
    needs: str


class SaveRow(NamedTuple):
    """One checkpoint of a job: its name and its text."""

    name: str
    text: str


class TreeMember(NamedTuple):
    """One member of a tree as it is now; times in ms, 0 while there is none.

    `text` is its result or error. `needs` are the ids of the jobs that need it, joined by spaces.
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
    """A job's state, and its result or error as JSON text, `''` while there is none.

    `text` is None if a reply only announced the outcome, so that the record must be read.
    """

    job: str
    state: str
    text: str | None


class FireRow(NamedTuple):
    """One schedule that is to fire; the fields are those of `fire.lua`."""

    id: str
    gen: str
    slot: str
    fire: int | str
    next: int | str
    due: int | str
    wait: int
    missed: int
    queue: str
    has_default: int
    job: str
    body: str
    key: str
    print: str
    overlap: str
    late: int
    pauses: int
    root: int = 0
    timeout: int = 0
    limit: str = ""


class DueRow(NamedTuple):
    """One schedule that is due, and where it stands; numbers are text."""

    id: str
    gen: str
    slot: str
    lastjob: str
    held: str
    due: str
    plan: str


class ScheduleRow(NamedTuple):
    """One schedule as it is kept; numbers are text, `''` stands for what is absent."""

    id: str
    due: str
    gen: str
    slot: str
    last: str
    lastjob: str
    fired: str
    skipped: str
    missed: str
    held: str
    paused: str
    owner: str
    version: str
    digest: str
    plan: str


class LineRow(NamedTuple):
    """A log line that a job keeps, under its lease. `age` is in ms."""

    id: str
    token: str
    number: int
    age: int
    text: str


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
