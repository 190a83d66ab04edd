"""Children of a durable function: flows and jobs that run elsewhere, while their flow holds no worker.

    made -> child (recorded) -> added -> ended -> step | failed (recorded) -> done
                                      lost a race -> cancelled -> ended -> step | failed | cut (recorded)

What must always hold: a child is added only after it is recorded, with an id that follows from its position,
so that it is added once; its end counts only after it is recorded; a function does not end before the
children that lost a race have.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from eventbus.lowlevel import Codec, Duration, Outcome, hide_in_record, note_around, seconds
from workflows.definition.codecs import flow_codecs
from workflows.definition.flow_definition import AnyWorkflow, definition_of
from workflows.definition.task import Task
from workflows.execution.surroundings import Child
from workflows.functions.code_run import CodeRun, Scope, TimedCall
from workflows.functions.history import Record
from workflows.functions.origin import Origin, set_origin
from workflows.records.entries import Entry
from workflows.records.ids import is_nested, member_id, nested_flow_id
from workflows.records.indeterminate import is_unknown
from workflows.records.records import decode_step, describe_flow, read_flow_failure, revive_flow, stalls_in

R = TypeVar("R")


class ChildCall(TimedCall[R]):
    """A call that a job elsewhere makes."""

    __slots__ = ("_given", "child_id")

    family = "child"

    def __init__(
        self, run: CodeRun, scope: Scope, name: str, given: bytes, position: str | None = None
    ) -> None:
        super().__init__(run, scope, name, position)
        self._given = given
        self.child_id: str = self._id()

    def start(self, begun: Record | None) -> None:
        """Wait for the child that is recorded, or for one that is to be recorded."""
        self.is_fresh: bool = begun is None
        if begun is not None:
            self.child_id = begun.entry.child  # of an earlier run, perhaps
            self.run.begun_children.append(self)
        else:
            self.run.has_fresh_children = True
        self.run.pending[self.position] = self

    def began(self) -> Entry:
        """Return the entry of its beginning."""
        return Entry(
            kind="child",
            place=self.position,
            name=self.name,
            child=self.child_id,
            undo=self.undo,
            started_ms=self.run.now_ms,
        )

    @property
    def undo(self) -> str:
        """The key of the task whose rollback a completed child owes; empty for flows, which owe their own."""
        return ""

    def child(self) -> Child:
        """Return what is to run elsewhere."""
        raise NotImplementedError

    def _id(self) -> str:
        raise NotImplementedError

    @property
    def _member(self) -> str:
        run, _, again = self.run.around.run.partition(".")
        return member_id(self.run.flow_id, int(run), self.position.replace(".", "-"), int(again or 0))


class FlowCall(ChildCall[R]):
    """A flow of a workflow, of any kind, as a part of this flow."""

    __slots__ = ("_timeout", "_workflow")

    def __init__(
        self, run: CodeRun, scope: Scope, workflow: AnyWorkflow[Any, R], given: Any, timeout: Duration | None
    ) -> None:
        """Take a position. Without a `timeout` that of the workflow applies.

        Raises DefinitionError for what is no workflow, or not known here, and PayloadError.
        """
        self._workflow = definition_of(workflow, "what ctx.flow runs")
        own = self._workflow.timeout
        self._timeout = (
            own if timeout is None else seconds(timeout, setting="the timeout of ctx.flow") or None
        )
        super().__init__(run, scope, self._workflow.name, b"")
        if self.recall() is None:
            self._given = self._encode(given)

    def _encode(self, given: Any) -> bytes:
        if self.run.history.at(self.position) is None:  # else a worker that could start it has accepted it
            self.run.around.children.check(self._workflow)
        return flow_codecs(self._workflow, self.run.max_bytes).input.encode(given)

    def _id(self) -> str:
        return nested_flow_id(self._member, self.name)

    def child(self) -> Child:
        """Return the flow."""
        return Child(
            id=self.child_id,
            position=self.position,
            given=self._given,
            workflow=self._workflow,
            timeout=self._timeout,
        )

    def read(self, record: Record) -> tuple[Any, BaseException | None]:
        """Return the output of the flow, or its error as a caller gets it."""
        entry, known = record.entry, self._workflow
        if entry.kind != "failed":
            codec = flow_codecs(known, self.run.max_bytes).output
            note_around(self.label, entry.result, codec.type)
            return codec.decode(memoryview(entry.result)), None
        error = revive_flow("failed", entry.failure, known.name, entry.child, known.errors)
        set_origin(error, Origin(self.label, entry.failure))
        return None, error


class JobCall(ChildCall[R]):
    """A call of a task that any worker makes: one item of a map."""

    __slots__ = ("task",)

    def __init__(self, run: CodeRun, scope: Scope, task: Task[..., R], given: bytes, position: str) -> None:
        self.task: Task[..., Any] = task
        super().__init__(run, scope, task.name, given, position)

    def _id(self) -> str:
        return self._member

    @property
    def undo(self) -> str:
        """The key of the task, if that has a rollback."""
        return "" if self.task.undo is None else self.task.key

    def child(self) -> Child:
        """Return the job."""
        return Child(id=self.child_id, position=self.position, given=self._given, task=self.task)

    def read(self, record: Record) -> tuple[Any, BaseException | None]:
        """Return the result of the task, or the error that the record revives."""
        entry = record.entry
        if entry.kind == "failed":
            return None, self.run.revive(entry.failure, self.label)
        codec: Codec = self.task.codec(self.run.max_bytes)
        note_around(self.label, entry.result, codec.type)
        return codec.decode(memoryview(entry.result)), None


class _Kept(msgspec.Struct):
    """The record of a job that was cancelled on its own but completed nevertheless."""

    kept: str = ""


def end_entry(begun: Entry, end: Outcome, *, flow_id: str, now_ms: int, is_wanted: bool) -> Entry:
    """Return the entry of the end of a child; its state is `unknown` if it never was there. `begun` is that
    of its beginning. Nobody waits unless `is_wanted`.
    """
    entry = Entry(
        kind="step",
        place=begun.place,
        name=begun.name,
        child=begun.child,
        undo=begun.undo,
        started_ms=begun.started_ms,
        took_ms=max(0, now_ms - begun.started_ms),
    )
    text = end.text or ""
    if end.state != "completed":
        text = hide_in_record(text)
    if is_nested(begun.child, flow_id):
        return _end_flow(entry, end.state, text, is_wanted=is_wanted)
    done = text if end.state == "completed" else _kept_in(text) if end.state == "cancelled" else ""
    if done:
        record = decode_step(done)
        entry.result, entry.traceparent = record.result, record.traceparent
        return entry
    entry.is_lost = end.state in ("failed", "cancelled") and is_unknown(end.state, stalls_in(text), text)
    if end.state == "unknown" or (end.state == "cancelled" and not is_wanted):
        entry.kind = "cut"
    else:
        entry.kind, entry.error = "failed", msgspec.Raw(text.encode())
    return entry


def _end_flow(entry: Entry, state: str, text: str, *, is_wanted: bool) -> Entry:
    if state == "completed":
        entry.result = msgspec.Raw(text.encode())
    elif state == "unknown":
        entry.kind = "cut"
    else:
        if state == "cancelled" and read_flow_failure(text) is None:  # it was cancelled before it began
            error = revive_flow(state, text, entry.name, entry.child)
            text = describe_flow(
                "cancelled",
                flow_id=entry.child,
                workflow=entry.name,
                reason=getattr(error, "reason", ""),
                rollback=getattr(error, "rollback", "none"),
            )
        entry.kind = "failed" if is_wanted else "cut"
        entry.error = msgspec.Raw(text.encode())
    return entry


def _kept_in(text: str) -> str:
    try:
        return msgspec.json.decode(text, type=_Kept).kept
    except (msgspec.MsgspecError, UnicodeError):
        return ""
