"""The consumer protocol: the functions by which the engine runs the jobs of one queue.

The event bus implements it for handlers; an extension implements it for its own jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from eventbus.engine.job import Job, Settle
from eventbus.telemetry.job_failure import JobFailure


class Retention(msgspec.Struct, frozen=True):
    """How many finished jobs a queue keeps, and for how long. Ages and `key_ttl` are in ms.

    `declared` is what the queue's own definition says of it, for people, as JSON (`model.keep`); `''` if it
    says nothing.
    """

    keep_completed: int
    age_completed: int
    keep_failed: int
    age_failed: int
    key_ttl: int
    declared: str = ""


class Consumer(Protocol):
    """Runs the jobs of one queue. The engine calls it in the worker's event loop, unless stated otherwise."""

    @property
    def queue(self) -> str:
        """The queue's name."""
        ...

    @property
    def base(self) -> str:
        """The queue that emissions name; the queues of its groups are listed under it."""
        ...

    @property
    def group(self) -> str:
        """The group; empty for the default group."""
        ...

    @property
    def concurrency(self) -> int:
        """How many jobs of this queue may run at a time in this process."""
        ...

    @property
    def retention(self) -> Retention:
        """How many finished jobs are kept, and for how long."""
        ...

    @property
    def follows(self) -> Sequence[str]:
        """The queues whose jobs may become ready when jobs of this queue end.

        The call that settles the ended jobs also asks these queues.
        """
        ...

    def settled(self, job_id: str, state: str, text: str) -> None:
        """Note that the server recorded this state and text for a job. Called only if `follows` is not empty.

        It is called before the follow-up jobs that the same call claimed are started.
        """
        ...

    def surround(self) -> None:
        """Set the context variables of every job of the queue.

        Called once, in a context of which each job gets a copy.
        """
        ...

    def timeout_of(self, job: Job) -> float | None:
        """Return the seconds that one run of the job may take, None for no limit; must not raise."""
        ...

    async def run(self, job: Job) -> Settle | None:
        """Run the job; return None if it suspended itself. Raises whatever its handler raises."""
        ...

    def decide(self, job: Job, error: BaseException, /) -> Settle:
        """Decide what follows from an error that `run` raised; must not raise."""
        ...

    def facts(self, job: Job, /) -> Mapping[str, Any]:
        """Return the fields of log events about the job: names and ids, no payload.

        Called from any thread; must not raise.
        """
        ...

    def failed(self, job: Job, settle: Settle, /) -> None:
        """Log that an attempt ended in an error, or that the job ended without a result; `settle` is the
        decision.

        Called once for each such decision, but not for a job that was given back or whose lease was lost.
        """
        ...


@runtime_checkable
class LimitedConsumer(Protocol):
    """A consumer that declares a limit of its queue over the whole fleet; others have no such attribute."""

    @property
    def limit(self) -> str:
        """The limit as JSON (`model.limit`), or `''`."""
        ...


@runtime_checkable
class DefinedConsumer(Protocol):
    """A consumer whose jobs have versions: it says which ones it can run; others have no such attribute."""

    @property
    def definitions(self) -> Mapping[str, str]:
        """What each version is, as JSON for people who look without the program; `''` if it is too large to
        be told.
        """
        ...


class SharedSlots(Protocol):
    """How the jobs of a queue share slots of the worker."""

    def slots_of(self, jobs: int) -> int:
        """Return how many slots that many jobs of the queue take, those that run among them."""
        ...

    def room_for(self, jobs: int, slots: int) -> int:
        """Return how many more jobs than these fit into the slots that they take, and into `slots` further
        ones.
        """
        ...

    def hurry(self) -> None:
        """Let no job wait for others any more: the worker stops, or claims no more jobs of the queue."""
        ...

    def give_up(self, job: Job) -> None:
        """Free the slot of a job that runs on: it ignores its cancellations, and the engine has decided it
        without it.
        """
        ...


@runtime_checkable
class SharingConsumer(Protocol):
    """A consumer whose jobs share slots of the worker, because it runs many of them at once; others have no
    such attribute.
    """

    @property
    def gathering(self) -> SharedSlots:
        """How they share them."""
        ...


@runtime_checkable
class TellingConsumer(Protocol):
    """A consumer that says what hooks are told of its failed jobs; of those of others they are told the queue
    and the error.
    """

    def failure(self, job: Job, text: str) -> JobFailure | None:
        """Return what is told of a job that failed with the error `text`, JSON; None if another job tells it.
        Must not raise.

        Another worker may have run the job. If it is the root of a tree, its `stop` is set when it has failed
        for good.
        """
        ...
