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
from eventbus.lowlevel import (
    Attempt,
    Codec,
    note_around,
    outside_job,
)
from workflows.definition.flow_tools import CallSync
from workflows.definition.task import Task, find_task
from workflows.execution.rollback import RollbackResult
from workflows.execution.spans import traceparent_around
from workflows.execution.surroundings import Surroundings
from workflows.functions.definition import Durable
from workflows.records.entries import Entry
from workflows.records.ids import is_nested
from workflows.records.indeterminate import unknown_text
from workflows.records.records import read_flow_failure, stalls_in

__all__ = ["TaskUndo", "UnknownTask", "doubts_in", "inherited_in", "undo_of", "undone_in", "undos_of"]


class UnknownTask(Exception):
    """This process has not imported a task whose rollback must run."""


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


def undos_of(durable: Durable[Any, Any], entries: Sequence[Entry], around: Surroundings) -> list[TaskUndo]:
    """Return the rollbacks to run, the newest first. Raises UnknownTask."""
    every = (undo_of(durable, entry, around, f"{entry.name}@{entry.place}") for entry in reversed(entries))
    return [undo for undo in every if undo is not None]


def undo_of(durable: Durable[Any, Any], entry: Entry, around: Surroundings, path: str) -> TaskUndo | None:
    """Return the rollback that an entry owes; None if it owes none. Raises UnknownTask."""
    if entry.kind not in ("step", "rollback") or not entry.undo:
        return None
    task = find_task(entry.undo)
    if task is None or (entry.kind == "step" and task.undo is None):
        raise UnknownTask(f"the rollback of step {path}, task {entry.undo}")
    return TaskUndo(path, task, entry, durable, around, entry.traceparent)


def inherited_in(
    entries: Sequence[Entry], flow_id: str, prefix: str = ""
) -> tuple[list[RollbackResult], bool]:
    """Return the rollbacks that failed in child flows that did not complete, and whether steps of those are
    in doubt.
    """
    found: list[RollbackResult] = []
    is_doubtful = False
    for entry in entries:
        if entry.kind == "step" or not entry.failure or not is_nested(entry.child or flow_id, flow_id):
            continue
        failure = read_flow_failure(entry.failure)
        if failure is None:
            is_doubtful = is_doubtful or stalls_in(entry.failure) > 0
            continue
        is_doubtful = is_doubtful or failure.rollback == "incomplete"
        path = f"{prefix}{entry.name}@{entry.place}/"
        found += [(path + name, bytes(record).decode()) for name, record in failure.rollback_errors]
    return found, is_doubtful


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
