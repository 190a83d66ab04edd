"""The rollbacks of a stopped flow of a durable function, from its journal alone: the code is not run for
them.

What must always hold: each step that completed and has a rollback, and each rollback that the code has told,
is listed once, the newest first. A task that this process does not know makes the list impossible; then
another process must undo.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from eventbus import Retry
from eventbus.lowlevel import Attempt, Codec, note_around, outside_job
from workflows.definition.flow_tools import CallSync
from workflows.definition.task import Task, find_task
from workflows.execution.rollback import AddInner, RollbackResult, UndoPlan, UnknownHere
from workflows.execution.spans import traceparent_around
from workflows.execution.surroundings import Surroundings
from workflows.functions.definition import Durable
from workflows.records.entries import Entry
from workflows.records.ids import is_nested
from workflows.records.indeterminate import unknown_text


class TaskUndo(msgspec.Struct, frozen=True):
    """One rollback to run: that of a task that completed, or a task that the code named as one."""

    path: str
    task: Task[..., Any]
    entry: Entry
    durable: Durable[Any, Any]
    around: Surroundings
    traceparent: str = ""

    @property
    def owner(self) -> str:
        """The name of the durable function."""
        return self.durable.name

    @property
    def is_own(self) -> bool:
        """Whether the code named it with `ctx.rollback`, so that the task itself is what runs."""
        return self.entry.kind == "rollback"

    @property
    def rule(self) -> Retry:
        """The retry rule: its own, or else that of the durable function, for errors of any kind: it must be
        done.
        """
        own = self.task.retry if self.is_own else self.task.undo_retry
        return own or msgspec.structs.replace(self.durable.retry, only=(), never=())

    @property
    def timeout(self) -> float | None:
        """The seconds that one attempt may take; None for no limit."""
        return self.task.timeout if self.is_own else self.task.undo_timeout

    @property
    def errors(self) -> Sequence[type[Exception]]:
        """The declared errors of the durable function."""
        return self.durable.errors

    async def perform(self, number: int, call_sync: CallSync, job_id: str) -> None:
        """Call the rollback. Raises what it raises, and PayloadError for a record that does not fit."""
        key = f"{self.around.flow_id}/{self.around.run}/{self.entry.place}/undo"
        traceparent = traceparent_around(self.around.traceparent)  # the saga has opened the span
        self.around.enter_attempt(self.path, number, key, traceparent)
        host = self.around.own.host
        own = Attempt(host, outside_job(job_id), "", where=f"the rollback of {self.path!r}")
        self.around.enter_task(self.path, number, key, own)
        value: Any
        if self.is_own:
            args, kwargs = msgspec.json.decode(self.entry.result)
            value = args
            call, is_async = partial(self.task.function, *args, **kwargs), self.task.is_async
        else:
            codec: Codec = self.task.codec()
            note_around(self.path, self.entry.result, codec.type)
            value = result = codec.decode(memoryview(self.entry.result))
            assert self.task.undo is not None, "only tasks with a rollback are listed"  # noqa: S101
            call, is_async = partial(self.task.undo, result), self.task.undo_is_async
        go_on = call if is_async else partial(call_sync, call)
        await self.around.through("rollback", self.path, number, traceparent, value, go_on)


async def plan_function(
    durable: Durable[Any, Any],
    entries: Sequence[Entry],
    around: Surroundings,
    add_inner: AddInner,
    prefix: str = "",
) -> UndoPlan:
    """Return the plan of a flow, from what counts of its journal; `prefix` begins the paths of its steps.

    A flow that it started and that completed is undone where its end stands among the steps. Raises
    UnknownHere for a task that this process does not know, and what `add_inner` raises.
    """
    plan = UndoPlan(
        done=undone_in(entries),
        inherited=doubts_in(entries, prefix),
        is_doubtful=any(map(_hides_steps, entries)),
    )
    for entry in reversed(entries):
        path = f"{prefix}{entry.name}@{entry.place}"
        if entry.child and is_nested(entry.child, around.flow_id) and (entry.kind == "step" or entry.failure):
            await add_inner(
                plan, entry.child, "completed" if entry.kind == "step" else "failed", entry.failure, path
            )
        elif (undo := _undo_of(durable, entry, around, path)) is not None:
            plan.undos.append(undo)
    return plan


def _undo_of(durable: Durable[Any, Any], entry: Entry, around: Surroundings, path: str) -> TaskUndo | None:
    """Return the rollback that an entry owes; None if it owes none. Raises UnknownHere."""
    if entry.kind not in ("step", "rollback") or not entry.undo:
        return None
    task = find_task(entry.undo)
    if task is None or (entry.kind == "step" and task.undo is None):
        raise UnknownHere(f"the rollback of step {path}, task {entry.undo}")
    return TaskUndo(path, task, entry, durable, around, entry.traceparent)


def _hides_steps(entry: Entry) -> bool:
    """Tell whether steps may have taken effect that nobody knows of."""
    return entry.kind == "stop" and entry.is_lost


def doubts_in(entries: Sequence[Entry], prefix: str = "") -> list[RollbackResult]:
    """Return the steps with a rollback that may have taken effect, with the error that says so.

    The last entry of a step counts: the loser of a race is in doubt until its end is recorded.
    """
    last = {entry.place: entry for entry in entries if entry.kind in ("step", "failed", "try", "cut")}
    return [
        (f"{prefix}{entry.name}@{entry.place}", unknown_text(1, ""))
        for entry in last.values()
        if entry.kind != "step" and entry.is_lost and entry.undo
    ]


def undone_in(entries: Sequence[Entry]) -> dict[str, str]:
    """Return the outcomes of rollbacks that are recorded: path -> record of the error, empty on success."""
    return {entry.place: entry.failure for entry in entries if entry.kind == "undo"}
