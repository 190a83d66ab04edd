"""The reports of inline flows of durable functions and state machines: those of flows in a worker, from what
is in memory.
"""

from __future__ import annotations

import msgspec

from workflows.client.reports.durable_report import report_durable
from workflows.client.reports.machine_report import report_machine
from workflows.inline.code_flow import CodeFlow
from workflows.inline.machine_flow import InlineMachine
from workflows.records.records import FlowMessage, error_text
from workflows.records.report import FlowReport, RollbackReport


def report_inline(flow: CodeFlow) -> FlowReport:
    """Return the report of a flow so far."""
    flow_id, status, recorder = flow.facts.flow_id, flow.status(), flow.recorder
    text = flow.ended()[1]
    root = {"state": status.state, "text": text, "created": str(flow.created_ms), "ended": str(flow.ended_ms)}
    message = FlowMessage(input=msgspec.Raw(flow.given), version=flow.version)
    if isinstance(flow, InlineMachine):
        report = report_machine(flow_id, message, root, status, recorder.entries, recorder.live)
    else:
        report = report_durable(flow_id, message, root, status, recorder.entries)
    rollbacks = [RollbackReport(step=path, error=error_text(failure)) for path, failure in flow.outcomes]
    return msgspec.structs.replace(report, rollbacks=rollbacks)
