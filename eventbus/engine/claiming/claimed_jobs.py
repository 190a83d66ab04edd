"""The jobs that a turn claimed, made from its answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eventbus.engine.job import Job
from eventbus.store.calls.journal_store import read_signals
from eventbus.store.scripting.turn_rows import TurnAnswer, TurnQueue


def claimed_jobs(answer: TurnAnswer, queues: Sequence[TurnQueue], began: float) -> Iterator[Job]:
    """Yield the jobs of an answer, which came at `began`, monotonic seconds; `queues` are those that the turn
    asked.
    """
    journals = {each.id: each for each in answer.journals}
    for row in answer.claims:
        queue = queues[row.queue - 1].queue
        job = Job(
            row.id,
            answer.token,
            queue,
            row.body,
            row.attempts,
            row.stalls,
            row.created,
            abs(row.due),
            answer.now,
            row.stop,
            has_begun=row.due < 0,
            began=began,
        )
        if journals and (given := journals.get(row.id)) is not None:
            job.journal = given.entries
            job.unread = given.length - len(given.entries)
            job.signals = read_signals(given.signals)
            job.heard = given.heard
        yield job
