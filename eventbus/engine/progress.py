"""Writes the progress of running jobs to the server, under their leases.

Notes of one tick of the event loop travel in one call. Not here: what a progress value may be
(`handlers.context`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from eventbus.engine.executor import Executor
from eventbus.store.bounds import CALL_ROWS
from eventbus.store.scripting.script_rows import NoteRow
from eventbus.store.store import Store
from eventbus.telemetry.change import clip


class ProgressWriter:
    """Gathers the progress notes of one worker's jobs and writes them; one call is under way at a time."""

    def __init__(self, store: Store, executor: Executor) -> None:
        self._store = store
        self._executor = executor
        self._pending: dict[str, NoteRow] = {}
        self._flight: asyncio.Task[None] | None = None

    async def write(self, job_id: str, token: str, progress: str) -> None:
        """Record the newest progress of a job, JSON text; return when the server has answered.

        If the job's lease is lost, nothing is recorded and its handler is cancelled.
        """
        self._pending[job_id] = NoteRow(job_id, token, progress)
        if self._flight is None:
            self._flight = asyncio.create_task(self._flush(), name="eventbus-notes")
        # Shielded, because other handlers wait for the same call: a cancelled handler must not end it.
        await asyncio.shield(self._flight)

    async def _flush(self) -> None:
        try:
            await asyncio.sleep(0)  # so that further notes of this tick travel in the same call
            while self._pending:
                notes = list(self._pending.values())[:CALL_ROWS]
                for note in notes:
                    del self._pending[note.id]
                tokens = {note.id: note.token for note in notes}
                lost = await self._store.note(notes)
                self._executor.lose([(job_id, tokens[job_id]) for job_id in lost])
                if self._executor.teller.is_on:
                    self._tell(note for note in notes if note.id not in lost)
        finally:
            self._flight = None

    def _tell(self, notes: Iterable[NoteRow]) -> None:
        for note in notes:
            run = self._executor.running.get(note.id)
            if run is not None:
                given = {"state": "active", "note": clip(note.progress)}
                self._executor.teller.tell("progress", run.job.queue, note.id, **given)
