"""The job client: trees of jobs, checkpoints, and consumers that are not event handlers.

It is a part of the low-level API (`eventbus.lowlevel`), for systems built on top. An extension brings
consumers. They run in the provider's workers beside its handlers, under the same leases, limits and stops.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eventbus.emit.emission import Emission, OutcomeDecoder
from eventbus.emit.job_tree import Member, Tree, parts_of, rows_of
from eventbus.engine.job import Job
from eventbus.handlers.extension import Extension
from eventbus.lifecycle import Lifecycle
from eventbus.model import clock
from eventbus.model.durations import Duration
from eventbus.settings.settings import Settings
from eventbus.store.keys import key_digest, payload_digest
from eventbus.store.scripting.script_rows import EdgeRow, MemberRow, Outcome, SaveRow
from eventbus.store.tree_store import PAGE, TreePage

__all__ = ["JobClient"]

_PATIENCE = 30.0
"""Seconds for a call of a consumer; not `reply_timeout`, which may be short although nobody waits here."""


class JobClient:
    """Adds, reads, cancels and retries trees of jobs in the server of a started provider.

    Each method raises ProviderStopped while the provider is not started, and StoreError when the server does
    not answer in time. Calls for users take a `call_timeout`, by default the provider's `reply_timeout`; or a
    `deadline` by the monotonic clock, so that several calls may share one (`settings.deadline`). Calls that a
    consumer makes under its lease have 30 s, whatever timeouts users chose, because a worker makes them and
    no user waits.
    """

    def __init__(self, life: Lifecycle, settings: Settings) -> None:
        self._life = life
        self.settings = settings

    def attach(self, extension: Extension) -> None:
        """Run the consumers of an extension in the workers that start from now on."""
        self._life.extensions.append(extension)

    @property
    def has_worker(self) -> bool:
        """Whether a worker of the provider runs in this process."""
        return self._life.worker is not None

    def shared(self, lifespan: Callable[..., Any]) -> Any:
        """Return the object that a lifespan of this process's worker yielded. Raises UsageError."""
        return self._life.tools.shared(lifespan)

    def add(
        self,
        tree: Tree,
        reading: OutcomeDecoder,
        *,
        correlation_id: str = "",
        call_timeout: Duration | None = None,
    ) -> Emission[Any]:
        """Add a tree and return an emission for the outcome of its root, without waiting.

        If the idempotency key of the root meets a root in the server, the emission is for that one's outcome.
        `await emission.enqueued()` raises EmitError when the tree could not be added.
        """
        emitter = self._life.running(f"start {reading.name}")
        correlation_id = correlation_id or tree.id
        return emitter.add_tree(tree, reading, correlation_id=correlation_id, call_timeout=call_timeout)

    async def result(self, job_id: str, reading: OutcomeDecoder, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        """Wait for the outcome of a job, at most `timeout` seconds; None: without limit.

        Raises the error that `reading` makes of a failure, UnknownJob and ResponseTimeout.
        """
        return await self._life.running("wait for a result").result(reading, job_id, timeout)

    async def cancel(self, job_id: str, reason: str, *, call_timeout: Duration | None = None) -> bool:
        """Cancel a job, or a root with its tree. Raises UnknownJob.

        Returns True if the job ends as cancelled. Returns False if it had ended or was stopping, so that its
        outcome has another cause. Jobs that still run in a tree that stops are cancelled all the same.
        """
        return await self._life.running("cancel a job").cancel(job_id, reason, call_timeout=call_timeout)

    async def look(
        self,
        tree: str,
        *,
        listed: str = "members",
        first: int = 0,
        limit: int = PAGE,
        max_bytes: int = 0,
        deadline: float | None = None,
    ) -> TreePage:
        """Return a root and one page of its members.

        `listed` is `members` (in the order in which they were added) or `done` (in which they completed).
        The page begins at member number `first` (from 0) and has at most `limit` members. Without a
        `deadline` the call has 30 s, because consumers make it too.
        """
        trees = self._life.running("look at a tree").store.trees
        until = _deadline() if deadline is None else deadline
        return await trees.look(
            tree, listed=listed, first=first, limit=limit, max_bytes=max_bytes, deadline=until
        )

    async def outcomes(self, ids: Sequence[str], *, max_bytes: int | None = None) -> list[Outcome]:
        """Return the states of jobs with their results or errors, in the order of `ids`.

        A job without a record has the state `unknown`. At most `max_bytes` of results are read, but always
        the first; jobs beyond them have the state `later`.
        """
        store = self._life.running("look jobs up").store
        return await store.look("", ids, join=False, max_bytes=max_bytes, deadline=_deadline())

    async def checkpoint(
        self, job: Job, saved: Mapping[str, str] | None = None, *, acknowledges: bool = False
    ) -> bool:
        """Save texts by name under the job's lease. Return False if the lease is lost.

        With `acknowledges` the job says that it is a root and knows of the stop of its tree: the outcome that
        it settles next is final. If `cancel` has returned True for the tree, that outcome is recorded as
        cancelled.
        """
        status = await self._life.running("save a checkpoint").store.trees.checkpoint(
            job.id, job.token, saves=_saves(saved), acknowledges=acknowledges, deadline=_deadline()
        )
        return status == "ok"

    async def spawn(
        self,
        job: Job,
        members: Sequence[Member],
        *,
        tree: str,
        awaited: Sequence[str],
        saved: Mapping[str, str] | None = None,
    ) -> str:
        """Add members to `tree`, save texts by name, and let the job wait for the `awaited` members.

        Returns `waiting`: the job has given up its lease, and runs again when those members have ended;
        `stopping`: the tree stops, so nothing was added; `lost`: the job's lease is lost. Members that exist
        already are not added again, so the call may be repeated.
        """
        trees = self._life.running("add children").store.trees
        parts = parts_of(members)
        for index, part in enumerate(parts):
            rows: Sequence[MemberRow]
            edges: Sequence[EdgeRow]
            rows, edges = rows_of(part, root=tree, parent=job.id, awaited=awaited)
            # The last call saves and gives up the lease. A crash before it leaves a job that adds its members
            # again.
            is_last = index == len(parts) - 1
            status = await trees.checkpoint(
                job.id,
                job.token,
                saves=_saves(saved) if is_last else (),
                rows=rows,
                edges=edges,
                opens=is_last,
                waits=is_last,
                deadline=_deadline(),
            )
            if status in ("stopping", "lost"):
                return status
        return "waiting"

    async def restart(
        self,
        root: str,
        body: str,
        *,
        run: int,
        timeout: float | None = None,  # noqa: ASYNC109  (of the run, kept in the server)
        deadline: float | None = None,
    ) -> str:
        """Run the root of an ended tree again with `body`, as the run after number `run`.

        The root keeps its id, key, priority and log of errors. Its stop, outcome, attempts and checkpoints
        are removed. Members of earlier runs keep their outcomes. `timeout` is in seconds from now; None: no
        limit. Returns `restarted`; `open`: the tree has not ended; `other`: another caller has begun that
        run; `member`: the job is a part of another tree; `unknown`: no record.
        """
        trees = self._life.running("run a tree again").store.trees
        return await trees.restart(
            root,
            call=secrets.token_hex(8),
            run=run,
            body=body,
            timeout_ms="" if timeout is None else round(timeout * 1000),
            deadline=self._until(deadline),
        )

    async def root_queues(self, *, deadline: float | None = None) -> list[str]:
        """Return the queues that have or had roots of trees."""
        trees = self._life.running("list trees").store.trees
        return await trees.root_queues(deadline=self._until(deadline))

    async def roots(
        self, queue: str, state: str, *, first: int = 0, limit: int = 50, deadline: float | None = None
    ) -> list[str]:
        """Return the ids of roots of a queue, newest first: `open` ones, or those that ended in `state`.

        The page begins at root number `first` (from 0) and has at most `limit` roots.
        """
        trees = self._life.running("list trees").store.trees
        until = self._until(deadline)
        return await trees.roots(queue, state, first=first, limit=limit, deadline=until)

    def _until(self, deadline: float | None) -> float:
        return self.settings.deadline() if deadline is None else deadline

    @staticmethod
    def digest(key: str) -> str:
        """Return the digest that a `Tree` holds in place of its idempotency key."""
        return key_digest(key)

    @staticmethod
    def payload_digest(payload: bytes) -> str:
        """Return the digest that a `Tree` holds as the `print` of its payload."""
        return payload_digest(payload)


def _saves(saved: Mapping[str, str] | None) -> list[SaveRow]:
    return [SaveRow(name, text) for name, text in (saved or {}).items()]


def _deadline() -> float:
    return clock.monotonic() + _PATIENCE
