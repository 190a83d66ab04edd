"""What the reports of flows of every kind have in common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from workflows.records.ids import workflow_of
from workflows.records.records import FlowMessage, error_text
from workflows.records.report import (
    FlowReport,
    FlowStatus,
    FlowTree,
    MachineReport,
    RollbackReport,
    StepReport,
)
from workflows.records.status import error_in, number_in

_ERRORS = 50
"""Errors of attempts that a tree has for each step."""


def report_flow(
    flow_id: str,
    message: FlowMessage,
    root: Mapping[str, str],
    status: FlowStatus,
    *,
    steps: dict[str, StepReport],
    order: list[str],
    undone: Iterable[tuple[str, str]],
    version: str | None = None,
    error: str | None = None,
    machine: MachineReport | None = None,
) -> FlowReport:
    """Return the report of a flow whose root has these fields. `undone` are the paths of what was rolled
    back, each with the record of its error.

    The version is that of the message, and the error that of the root, unless others are given.
    """
    return FlowReport(
        flow_id=flow_id,
        workflow=workflow_of(flow_id),
        state=status.state,
        run=message.run,
        version=message.version if version is None else version,
        rollback=status.rollback,
        steps=steps,
        order=order,
        rollbacks=[RollbackReport(step=path, error=error_text(text)) for path, text in undone],
        is_parked=root.get("state") == "parked",
        error=error_in(root, status.state) if error is None else error,
        created_ms=number_in(root, "created"),
        ended_ms=number_in(root, "ended"),
        machine=machine,
    )


def tree_of(
    report: FlowReport, errors: Iterable[tuple[str, str]], nested: Mapping[str, list[FlowTree]]
) -> FlowTree:
    """Return a flow with the errors of attempts that another attempt followed, each with its step."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for step, error in errors:
        found[step].append(error)
    newest = {step: told[-_ERRORS:] for step, told in found.items()}
    return FlowTree(report=report, errors=newest, nested=dict(nested))


def value_in(text: str | bytes | msgspec.Raw) -> Any:
    """Return a value of JSON; None for nothing, and for what cannot be read."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
