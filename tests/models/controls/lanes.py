"""Limit keys in the job model: what of each key may be claimed.

Which keys a claim takes from is the server's choice; within a key the order of claims is that of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import rule
from models.job_model_values import Job
from models.strategies import LONE

from eventbus.store.scripting.script_rows import AddRow

__all__ = ["LaneRules", "list_claimable", "split_lines"]

_KEYED = st.lists(
    st.builds(
        lambda row, limit, lifo, priority: row._replace(limit=limit, lifo=lifo, priority=priority),
        LONE,
        st.sampled_from(["p", "p", "p", "q", "r"]),
        st.sampled_from([0, 0, 0, 1]),
        st.sampled_from([0, 0, 0, -1, 2]),
    ),
    min_size=1,
    max_size=7,
)
"""Emissions with limit keys."""


def split_lines(jobs: Iterable[Job]) -> dict[tuple[bool, str], list[Job]]:
    """Return the jobs of each line of a queue: of its suspects, of each key, and of those without a key."""
    lines: dict[tuple[bool, str], list[Job]] = {}
    for job in jobs:
        lines.setdefault((job.is_suspect, "" if job.is_suspect else job.lane), []).append(job)
    return lines


def list_claimable(waiting: Iterable[Job], running: Iterable[Job], each: int) -> list[Job]:
    """Return those that wait in a queue and that its limit of each key lets start, beside those that run
    there.
    """
    counts = Counter(job.lane for job in running)
    found: list[Job] = []
    for job in waiting:
        if not job.lane or counts[job.lane] < each:
            found.append(job)
            counts[job.lane] += 1
    return found


class LaneRules:
    """Calls that concern limit keys, for the state machine of jobs."""

    rested: ClassVar[int] = 0
    """How often a key rested, in all examples."""

    @rule(
        rows=_KEYED,
        emitter=st.sampled_from(["em", "other"]),
        is_limited=st.sampled_from([False, False, True]),
    )
    def add_keyed(self: Any, rows: list[AddRow], emitter: str, is_limited: bool) -> None:
        self.add(emitter, rows, is_limited)

    @rule(
        rows=_KEYED,
        worker=st.sampled_from(["w", "x"]),
        each=st.sampled_from([1, 2]),
        state=st.sampled_from(["completed", "delayed", "waiting", "failed"]),
        loses=st.sampled_from([False, False, True]),
    )
    def fill_keys(self: Any, rows: list[AddRow], worker: str, each: int, state: str, loses: bool) -> None:
        """Keys are full, more comes, and then slots are free again: settled, or with a lease that
        runs out.
        """
        self.set_limit("a", 0, each)
        self.add("em", [row._replace(queue=1) for row in rows])
        self.claim_all(worker)
        LaneRules.rested += bool(self.snapshot.values["resting"])
        self.add("other", [row._replace(queue=1) for row in rows])
        if loses:
            self.lose_leases()
        else:
            self.settle_all(worker, state, "1", 500)
        self.claim_all("w")
        self.take_orders_back()  # else nothing of the queue would be handed over any more
