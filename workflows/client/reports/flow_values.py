"""What a flow got, returned and told as its state, for reports: JSON values, without what is sensitive.

The result of a step is a value of its type, which the program may want back. So it becomes JSON only where it
repeats a sensitive value. What must always hold: a value that cannot be read is None, and costs nothing else
of the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from eventbus.lowlevel import HiddenValues, json_values
from workflows.client.reports.flow_report import value_in
from workflows.records.records import FlowMessage
from workflows.records.report import FlowReport, FlowTree, StepReport

_INPUT, _RESULT, _STATE = "i", "result", "state"
"""The fields of a message whose marks say what is sensitive."""
_LONG = 16 * 1024
_NO_VALUES = HiddenValues("")


def with_values(
    report: FlowReport, message: FlowMessage, root: Mapping[str, str], own_state: str | None
) -> FlowReport:
    """Return a report with the values of its flow, whose root has these fields. `own_state` is that of a
    function, as JSON.
    """
    hidden = HiddenValues(root.get("body", ""), job_id=report.flow_id)
    machine = report.machine
    if machine is not None:  # its state began as its input, and is of that type
        state, documents = hidden.in_field(_INPUT, machine.state), hidden.in_texts(machine.documents)
        machine = msgspec.structs.replace(machine, state=state, documents=documents)
    is_done = report.state == "completed"
    return msgspec.structs.replace(
        report,
        steps={name: _without_repeats(step, hidden) for name, step in report.steps.items()}
        if hidden.texts
        else report.steps,
        machine=machine,
        input=hidden.in_field(_INPUT, value_in(bytes(message.input))),
        output=hidden.in_field(_RESULT, value_in(root.get("text", ""))) if is_done else None,
        own_state=hidden.in_field(_STATE, value_in(own_state or "")),
    )


def without_long_values(tree: FlowTree) -> FlowTree:
    """Return the tree of a nested flow without its long values, because there may be a thousand of them."""
    report = tree.report
    long = [
        name
        for name in ("input", "output", "own_state")
        if (value := getattr(report, name)) is not None and len(msgspec.json.encode(value)) > _LONG
    ]
    if not long:
        return tree
    kept: dict[str, Any] = {**dict.fromkeys(long), "left_out": long}
    return msgspec.structs.replace(tree, report=msgspec.structs.replace(report, **kept))


def _without_repeats(step: StepReport, hidden: HiddenValues) -> StepReport:
    """Return the report of a step whose result and progress repeat nothing that is hidden."""
    changed: dict[str, Any] = {}
    for name in ("result", "progress"):
        value = json_values(getattr(step, name))
        if (shown := hidden.in_texts(value)) != _NO_VALUES.in_texts(value):
            changed[name] = shown
    return msgspec.structs.replace(step, **changed) if changed else step
