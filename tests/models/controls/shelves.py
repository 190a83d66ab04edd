"""Shelves in the job model: jobs that were claimed and wait elsewhere, because a part of their queue is
paused.

There is one shelf, of the queue `a`. The worker `y` serves it at times, as workers do that know a limit of
the step.
"""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from models.job_model_values import Job
from models.strategies import LONE, STATES

from eventbus.store.scripting.script_rows import AddRow, SettleRow

__all__ = ["HOME", "SHELF", "ShelfRules", "go_home", "shelve"]

HOME, SHELF = "a", "a/s"

_RANKED = st.lists(
    st.builds(
        lambda row, priority, lifo: row._replace(queue=1, priority=priority, lifo=lifo),
        LONE,
        st.sampled_from([0, 0, 0, -1, 2]),
        st.sampled_from([0, 0, 1]),
    ),
    min_size=1,
    max_size=7,
)
"""Emissions of the queue, in each order."""


def shelve(model: Any, job: Job, shelf: str) -> Job | None:
    """Settle a job as shelved. Return it if it waits on the shelf; otherwise it is given back."""
    job.state = "waiting"
    if shelf not in model.controls.paused:
        return None
    model.controls.homes[shelf] = job.queue
    job.queue = shelf
    return job


def go_home(model: Any, shelf: str, *, is_served: bool) -> None:
    """What waits on a shelf that is not paused goes home, unless workers serve the shelf."""
    controls = model.controls
    if shelf not in controls.homes or shelf in controls.paused:
        return
    for job in [] if is_served else model.waiting(shelf):
        job.queue = controls.homes[shelf]
        model.place(job)
    if not any(job.queue == shelf and job.state in ("waiting", "delayed") for job in model.jobs.values()):
        del controls.homes[shelf]


class ShelfRules:
    """The calls around a shelf, for the state machine of jobs."""

    bench: Any
    store: Any
    model: Any
    check: Any
    snapshot: Any
    shelved: ClassVar[int] = 0
    """How many jobs were put on the shelf, in all examples."""
    returned: ClassVar[int] = 0
    """How many went home."""

    def clear_shelf(self, shelf: str = SHELF) -> None:
        """Note what a call does to a shelf that may be resumed: of a queue that is none, nothing."""
        before = len(self.model.waiting(shelf))
        go_home(self.model, shelf, is_served=bool(self.snapshot.zset("pools", shelf)))
        ShelfRules.returned += before - len(self.model.waiting(shelf))

    @precondition(lambda self: any(_may_shelve(job) for job in self.model.jobs.values()))
    @rule(worker=st.sampled_from(["w", "w", "x"]), pauses=st.booleans(), most=st.sampled_from([1, 2, 50]))
    def shelve(self: Any, worker: str, pauses: bool, most: int = 50) -> None:
        """A worker finds, or believes, that what it claimed is paused."""
        if pauses:
            self.pause(SHELF)
        held = [job for job in self.model.held_by(worker) if _may_shelve(job)][:most]
        self._next_turn(
            worker, [SettleRow(job.id, job.token, "shelved", "", SHELF, 0) for job in held], want=0
        )
        ShelfRules.shelved += sum(job.queue == SHELF for job in held)

    @rule(
        rows=_RANKED,
        worker=st.sampled_from(["w", "x"]),
        deaths=st.sampled_from([0, 0, 0, 1, 3]),
        between=st.sampled_from(["", "cancel", "edit", "late", "serve"]),
        data=st.data(),
    )
    def fill_shelf(
        self: Any, rows: list[AddRow], worker: str, deaths: int, between: str, data: st.DataObject
    ) -> None:
        """Jobs of all orders stand on the shelf, also such that have stalled; something happens; and it is
        resumed.
        """
        self.take_orders_back()
        self.announce("one" if worker == "x" else "both", unpark=False)
        self.add("em", rows)
        for _ in range(deaths):
            self.claim_all(worker)
            self.lose_leases()
        self.claim_all(worker)
        self.shelve(worker, pauses=True)
        if between == "cancel" and (there := self.model.waiting(SHELF)):
            self.cancel_these([data.draw(st.sampled_from(there)).id])
        elif between == "edit":
            self.edit(data, 700, "", "", "", is_again=False)
        elif between == "late":
            self.claim_all(worker)
        elif between == "serve":
            self.serve_shelf(leaves=data.draw(st.booleans()))
        self.resume(SHELF)
        if between == "late":
            self.shelve(worker, pauses=False)

    @rule(leaves=st.sampled_from([False, False, True]))
    def serve_shelf(self: Any, leaves: bool) -> None:
        """A worker serves the shelf itself, or does so no more."""
        self.announce("shelf", unpark=True, leaves=leaves)

    @rule(state=STATES)
    def work_off_shelf(self: Any, state: str) -> None:
        """The worker that serves the shelf settles what it has, and claims what is there."""
        self._next_turn("y", self._settle_all("y", state, "1", 500))

    def empty_shelf(self: Any) -> None:
        """Run what waits on the shelf and does not go home: it came there, or came again, while a worker
        served it.
        """
        self.serve_shelf(leaves=False)
        self._next_turn("y")
        while ends := self._settle_all("y", "completed", "1"):
            self._next_turn("y", ends)
        self.serve_shelf(leaves=True)


def _may_shelve(job: Job) -> bool:
    """Return whether a job may be put on the shelf: one of its queue, without a key and a limit key."""
    return (job.queue, job.state, job.key, job.lane) == (HOME, "active", "", "")
