"""Changes of jobs that wait, in the job model, and the calls that make them."""

from __future__ import annotations

import hashlib
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from eventbus.store.calls.control_store import Edit

__all__ = ["EditRules"]

_STATES = ("waiting", "delayed")


def _edit(model: Any, edit: Edit) -> str:
    """Change a job of the model, and return what the call must answer."""
    job = model.jobs.get(edit.job)
    if job is None:
        return "unknown"
    if job.edited == edit.call:
        return "changed"
    if job.state not in _STATES:
        return job.state
    if job.story.journal or job.story.listens:
        return "begun"
    if edit.print and edit.print != _print(job.body):
        return "other"
    job.edited = edit.call
    if edit.priority != "":
        job.priority = int(edit.priority)
    job.body = edit.body or job.body
    moves = edit.priority != "" or edit.limit not in ("", job.lane)
    job.lane = edit.limit or job.lane
    if job.after and edit.due != "":
        job.ripe = model.now + int(edit.due)
        if edit.due:
            job.due = job.ripe
    elif edit.due != "" and (edit.due != 0 or job.state == "delayed"):
        job.due = model.now + int(edit.due)
        if edit.due:
            job.state = "delayed"
        else:
            model.place(job)
    elif moves and job.state == "waiting":
        model.place(job)
    return "changed"


def _print(body: str) -> str:
    return hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest()


class EditRules:
    """The calls that change jobs, for the state machine of jobs."""

    bench: Any
    store: Any
    model: Any
    check: Any
    count: int
    edits: list[Edit]

    @rule(
        data=st.data(),
        due=st.sampled_from(["", 0, 700, 40_000]),
        priority=st.sampled_from(["", 0, 3, -4000]),
        body=st.sampled_from(["", "new", "n" * 300]),
        limit=st.sampled_from(["", "p", "q"]),
        is_again=st.booleans(),
    )
    def edit(
        self, data: st.DataObject, due: int | str, priority: int | str, body: str, limit: str, is_again: bool
    ) -> None:
        """Send a new change, or repeat the last one, as if its answer was lost."""
        if not (is_again and self.edits):
            open_ones = [each.id for each in self.model.jobs.values() if each.state in _STATES]
            job = data.draw(st.sampled_from(["none", *list(self.model.jobs)[-4:], *open_ones]))
            known = self.model.jobs.get(job)
            is_right = data.draw(st.booleans())
            print_ = _print(known.body if known and is_right else "else") if body else ""
            self.count, call = self.count + 1, f"e{self.count}"
            self.edits = [Edit(job, call, _STATES, due, priority, print_, body, limit if body else "")]
        (edit,) = self.edits
        expected = _edit(self.model, edit)
        assert self.bench.run(self.store.controls.edit, edit, now=self.model.now) == expected
        self.check()
