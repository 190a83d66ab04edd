"""The words of the model of the life of jobs: values, what they are is told in `model`."""

from __future__ import annotations

from dataclasses import dataclass, field

from snapshots import ENDED

from eventbus.store.rows import SettleRow, SweepQueue, TurnAnswer

__all__ = ["Job", "Memory", "Pointer", "Queue", "Turn"]


@dataclass
class Queue:
    """How a queue is used, the same by everybody."""

    name: str
    kept: SweepQueue
    key_ttl: int
    max_waiting: int | str = ""
    groups: set[str] = field(default_factory=set[str])


@dataclass
class Job:
    """One job. `place` is its order among those that wait: priority, then a rising or falling number."""

    id: str
    queue: str
    body: str
    place: tuple[int, int]
    is_lifo: bool
    created: int
    due: int
    key: str
    emitter: str
    state: str = "waiting"
    attempts: int = 0
    stalls: int = 0
    token: str = ""
    lease_end: int = 0
    ended: int = 0
    text: str | None = ""
    """Its result or error; None where the words are the server's own, until they are seen."""
    cancelled_by: str = ""
    """The call that asked for its end."""
    waiters: dict[str, str] = field(default_factory=dict[str, str])
    progress: str = ""

    @property
    def is_open(self) -> bool:
        return self.state not in ENDED


@dataclass
class Pointer:
    """What a key stands for. `expires` in units of model time, None while its job is open."""

    job: Job
    print: str
    expires: int | None = None


@dataclass
class Turn:
    """What a worker asks in one turn; `queues` are names with quotas."""

    worker: str
    call: int
    pool: str
    want: int
    suspects: bool
    max_bytes: int
    queues: list[tuple[str, int]]
    settles: list[SettleRow]


@dataclass
class Memory:
    """What the server keeps of a worker's last call."""

    turn: Turn
    answer: TurnAnswer
    expires: int
