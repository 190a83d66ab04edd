"""The values of the job model; `job_model` says how they change."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from models.floors import WINDOW
from models.journals import Story
from models.snapshots import ENDED, SUSPECT

from eventbus.store.scripting.packing import Append
from eventbus.store.scripting.script_rows import (
    REUSE,
    AddRow,
    AddVerdict,
    Idle,
    SettleRow,
    SweepQueue,
    TurnAnswer,
)

__all__ = ["Job", "Memory", "Pointer", "Queue", "Stalled", "Turn"]


@dataclass(kw_only=True)
class Stalled:
    """A job that somebody may hold, of either model. `stall_model` says how its stalls change."""

    id: str
    token: str = ""
    """Who holds it."""
    claimed: tuple[int, int] = (0, 0)
    """When it was claimed, and its place among the claims of that call."""
    stalls: int = 0
    spared: int = 0
    alone: int = 0
    crowd: int = 0
    fatal: int = 0
    has_begun: bool = False
    """Whether it was retried, put off, parked or asleep, or has stalled."""
    first: int = 0
    """When it was claimed first, once a run has ended and the job has not."""

    def note_first(self) -> None:
        """Note the first start, for a run ends without an end of the job."""
        self.first = self.first or self.claimed[0]

    @property
    def is_suspect(self) -> bool:
        return self.stalls - self.spared >= SUSPECT


_MOMENTS = count(1)


@dataclass
class Queue:
    """The settings of a queue, the same for all emitters and workers."""

    name: str
    kept: SweepQueue
    key_ttl: int
    max_waiting: int | str = ""
    groups: set[str] = field(default_factory=set[str])


@dataclass
class Job(Stalled):
    """One job.

    `place` orders waiting jobs: by priority, then by a number, which rises, or falls for those that go to the
    head.
    """

    id: str
    queue: str
    body: str
    priority: int
    is_lifo: bool
    created: int
    due: int
    key: str
    emitter: str
    lane: str = ""
    """Its limit key."""
    place: tuple[int, int] = (0, 0)
    state: str = "waiting"
    attempts: int = 0
    room: str = ""
    """Until when, and the worker that makes room for it."""
    parked: int = 0
    ended: int = 0
    ended_by: str = ""
    """The worker that completed it."""
    text: str | None = ""
    """Its result or error; None while the server's own error text has not been read yet."""
    cancelled_by: str = ""
    """The call that cancelled it."""
    waiters: set[str] = field(default_factory=set[str])
    edited: str = ""
    """The call that changed it last."""
    progress: str = ""
    after: Job | None = None
    """The open job of its key that it waits for."""
    ripe: int = 0
    """When it may begin, if that one has ended."""
    story: Story = field(default_factory=Story)
    keep: str = ""
    """How long it is kept once it has ended, as its emission said."""
    moment: int = field(default=0, compare=False)
    """Its place among those that are due, or were parked, in one millisecond."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name in ("due", "parked"):
            super().__setattr__("moment", next(_MOMENTS))

    @property
    def leaves(self) -> int | None:
        """When it may go, if it has ended and goes at a time of its own."""
        age = self.keep.split(",")[self.state != "completed"] if self.keep and not self.is_open else ""
        return self.ended + max(int(age), 0 if self.state == "completed" else WINDOW) if age else None

    @property
    def is_open(self) -> bool:
        return self.state not in ENDED


@dataclass
class Pointer:
    """The job that a key points to. `expires` is in units of model time, None while the job is open."""

    job: Job
    print: str
    expires: int | None = None
    until: int = 0
    """The end of the window of a throttle."""
    following: Job | None = None
    """The job that comes after it."""
    next_print: str = ""
    seen: list[str] = field(default_factory=list[str])

    def stands(self, row: AddRow) -> bool:
        """Tell whether the key still stands for the job, so that another emission is not simply a new one."""
        return self.job.is_open or self.job.state == "completed" or row.meeting == REUSE

    def verdict(self, index: int, row: AddRow) -> AddVerdict:
        """Return what an emission hears that joins the job."""
        word = "joined" if self.print == row.print else "other"
        if self.job.is_open:
            return AddVerdict(index, word, self.job.id, "open", "")
        return AddVerdict(index, word, self.job.id, self.job.state, self.job.text or "")


@dataclass
class Turn:
    """What a worker sends in one turn; `queues` are names with quotas."""

    worker: str
    call: int
    pool: str
    want: int
    suspects: int
    watched: int
    is_alone: bool
    max_bytes: int
    queues: list[tuple[str, int]]
    settles: list[SettleRow]
    idle: Idle = 0
    appends: list[Append] = field(default_factory=list[Append])


@dataclass
class Memory:
    """What the server remembers of a worker's last call."""

    turn: Turn
    answer: TurnAnswer
    expires: int | None = None
    """In units of model time, None while the worker is registered."""
