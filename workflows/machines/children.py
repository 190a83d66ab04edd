"""The ends of a machine's children, as its transitions get them."""

from __future__ import annotations

from typing import Any

from eventbus import PayloadError
from eventbus.lowlevel import Codec, Outcome
from workflows.definition.codecs import MAX_VALUE, flow_codecs
from workflows.definition.flow_definition import AnyDefinition
from workflows.machines.settled import ChildEnd
from workflows.machines.snapshot import Awaited
from workflows.records.records import revive_flow


def read_end(child: Awaited, end: Outcome, definition: AnyDefinition | None = None) -> ChildEnd:
    """Return the end of a child, typed by its definition if that is known here."""
    text = end.text or ""
    if end.state != "completed":
        errors = () if definition is None else definition.errors
        error = revive_flow(end.state, text, child.workflow, child.id, errors)
        return ChildEnd(child.id, end.state, error=error)
    try:
        return ChildEnd(child.id, end.state, result=_output_of(definition).decode(text))
    except PayloadError as error:
        return ChildEnd(child.id, end.state, error=error)


def _output_of(definition: AnyDefinition | None) -> Codec:
    if definition is None:
        return Codec(Any, role="result", owner="child", max_bytes=MAX_VALUE)
    return flow_codecs(definition).output
