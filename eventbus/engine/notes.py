"""Progress of running jobs, recorded under their leases; notes of one tick travel together."""

from __future__ import annotations

import asyncio

from eventbus.engine.executor import Executor
from eventbus.store.rows import NoteRow
from eventbus.store.store import Store

__all__ = ["Notes"]


class Notes:
    """Gathers notes and writes them."""

    def __init__(self, store: Store, executor: Executor) -> None:
        self._store = store
        self._executor = executor
        self._pending: dict[str, NoteRow] = {}
        self._flight: asyncio.Task[None] | None = None

    async def write(self, job_id: str, token: str, progress: str) -> None:
        """Record the newest progress of a job; returns when the server has it.

        A job whose lease is lost gets nothing written, and its handler is cancelled.
        """
        self._pending[job_id] = NoteRow(job_id, token, progress)
        if self._flight is None:
            self._flight = asyncio.create_task(self._flush(), name="eventbus-notes")
        await asyncio.shield(self._flight)

    async def _flush(self) -> None:
        try:
            await asyncio.sleep(0)  # what else this tick brings travels along
            while self._pending:
                notes = list(self._pending.values())[:200]
                for note in notes:
                    del self._pending[note.id]
                tokens = {note.id: note.token for note in notes}
                lost = await self._store.note(notes)
                self._executor.lose([(each, tokens[each]) for each in lost])
        finally:
            self._flight = None
