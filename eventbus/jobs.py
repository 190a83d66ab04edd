"""The lower side of a provider: trees of jobs, checkpoints, and consumers that are no event handlers.

For systems built on top (`eventbus.lowlevel`). A guest brings consumers, which run in the workers of
the provider beside its handlers, under the same leases, limits and stops.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from eventbus.config import Settings
from eventbus.emission import Emission, Reading
from eventbus.engine.job import Job
from eventbus.guest import Guest
from eventbus.lifecycle import Lifecycle
from eventbus.store.keys import key_digest
from eventbus.store.rows import EdgeRow, MemberRow, Outcome, SaveRow
from eventbus.store.trees import TreePage
from eventbus.tree import Member, Tree, parts_of, rows_of

__all__ = ["Jobs"]

_PATIENCE = 30.0


class Jobs:
    """Jobs of a started provider, without events. Raises ProviderStopped while it is not started, StoreError
    when the server cannot be asked within 30 s.
    """

    def __init__(self, life: Lifecycle, settings: Settings) -> None:
        self._life = life
        self.settings = settings

    def attach(self, guest: Guest) -> None:
        """Run the consumers of a guest in the workers that start from now on."""
        self._life.guests.append(guest)

    @property
    def has_worker(self) -> bool:
        """Whether a worker of the provider runs in this process."""
        return self._life.runner is not None

    def add(self, tree: Tree, reading: Reading, *, correlation_id: str = "") -> Emission[Any]:
        """Add a tree; the emission stands for the outcome of its root, or of the one that its key met.

        Returns at once; `await emission.enqueued()` raises EmitError when it could not be added.
        """
        emitter = self._life.running(f"start {reading.name}")
        return emitter.plant(tree, reading, correlation_id=correlation_id or tree.id)

    async def result(self, job_id: str, reading: Reading, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        """Wait for the outcome of a job. Raises what `reading` revives, UnknownJob, ResponseTimeout."""
        return await self._life.running("wait for a result").result(reading, job_id, timeout)

    async def cancel(self, job_id: str, reason: str) -> bool:
        """Cancel a job, or a root with its tree; False if it had ended or was stopping. Raises UnknownJob."""
        return await self._life.running("cancel a job").cancel(job_id, reason)

    async def look(
        self, tree: str, *, listed: str = "members", first: int = 0, limit: int = 200, max_bytes: int = 0
    ) -> TreePage:
        """Look at a root and some members, `listed` as they were added (`members`) or completed (`done`)."""
        trees = self._life.running("look at a tree").store.trees
        return await trees.look(
            tree, listed=listed, first=first, limit=limit, max_bytes=max_bytes, deadline=_deadline()
        )

    async def outcomes(self, ids: Sequence[str], *, max_bytes: int | None = None) -> list[Outcome]:
        """The states of jobs with their results or errors, in the order asked; `unknown` without a record.

        With `max_bytes`, those past so many bytes, but never the first, are not read: `later`.
        """
        store = self._life.running("look jobs up").store
        return await store.look("", ids, join=False, max_bytes=max_bytes, deadline=_deadline())

    async def checkpoint(
        self, job: Job, saved: Mapping[str, str] | None = None, *, acknowledges: bool = False
    ) -> bool:
        """Save texts by name under the job's lease; False if that is lost.

        `acknowledges`: the job is a root that knows of the stop of its tree; what it settles is the end.
        """
        word = await self._life.running("save a checkpoint").store.trees.checkpoint(
            job.id, job.token, saves=_saves(saved), acknowledges=acknowledges, deadline=_deadline()
        )
        return word == "ok"

    async def spawn(
        self,
        job: Job,
        members: Sequence[Member],
        *,
        tree: str,
        awaited: Sequence[str],
        saved: Mapping[str, str] | None = None,
    ) -> str:
        """Add members to `tree` and let the job wait for those `awaited`, in the call that saves.

        Returns `waiting`: the job has given its lease up, and runs again when they have ended;
        `stopping`: its tree stops, nothing was added; `lost`: its lease is. Members that exist are none again.
        """
        trees = self._life.running("add children").store.trees
        parts = parts_of(members)
        for place, part in enumerate(parts):
            rows: Sequence[MemberRow]
            edges: Sequence[EdgeRow]
            rows, edges = rows_of(part, root=tree, parent=job.id, awaited=awaited)
            is_last = place == len(parts) - 1
            word = await trees.checkpoint(
                job.id,
                job.token,
                saves=_saves(saved) if is_last else (),
                rows=rows,
                edges=edges,
                opens=is_last,
                waits=is_last,
                deadline=_deadline(),
            )
            if word in ("stopping", "lost"):
                return word
        return "waiting"

    async def restart(self, root: str, body: str, *, run: int, timeout: float | None = None) -> str:  # noqa: ASYNC109
        """Begin the run after number `run` of a tree that has ended: its root runs again, with `body`.

        It keeps its id, key and priority, and the log of its errors; its stop, outcome, attempts and checkpoints
        are gone, and members of earlier runs stay as they ended. `timeout` in seconds from now. Returns
        `restarted`; `open`: it has not ended; `other`: somebody else has begun that run; `member`: it is part
        of another tree; `unknown`.
        """
        trees = self._life.running("run a tree again").store.trees
        return await trees.restart(
            root,
            call=secrets.token_hex(8),
            run=run,
            body=body,
            timeout_ms="" if timeout is None else round(timeout * 1000),
            deadline=_deadline(),
        )

    async def root_queues(self) -> list[str]:
        """The queues that have had roots of trees."""
        return await self._life.running("list trees").store.trees.root_queues(deadline=_deadline())

    async def roots(self, queue: str, state: str, *, first: int = 0, limit: int = 50) -> list[str]:
        """Roots of a queue, newest first: `open` ones, or those that ended in `state`."""
        trees = self._life.running("list trees").store.trees
        return await trees.roots(queue, state, first=first, limit=limit, deadline=_deadline())

    @staticmethod
    def digest(key: str) -> str:
        """What stands for an idempotency key in a `Tree`."""
        return key_digest(key)


def _saves(saved: Mapping[str, str] | None) -> list[SaveRow]:
    return [SaveRow(name, text) for name, text in (saved or {}).items()]


def _deadline() -> float:
    return time.monotonic() + _PATIENCE
