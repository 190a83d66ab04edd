"""The progress of the steps that run, for reports.

A local flow records it as the progress of its root job, by name of step; a spread step as that of its own
job. A step that is a sub-workflow has the progress of the steps of its flow, by their names.

What must always hold: it is shown for active steps alone, because that of an ended attempt stays in the
server. What cannot be read of the job or flow of one step costs nothing but its progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, cast

import msgspec

from eventbus import StoreCorrupt, UnknownJob
from eventbus.lowlevel import Inspector, clock
from workflows.records.report import FlowReport, nested_progress

_AT_A_TIME = 50


async def with_progress(
    report: FlowReport,
    inspector: Inspector,
    *,
    jobs: Mapping[str, str],
    flows: Mapping[str, str],
    read_flow: Callable[[str], Awaitable[FlowReport]],
    deadline: float,
) -> FlowReport:
    """Return a report with the progress of its active steps. Raises StoreError.

    By names of steps, `jobs` are the ids of those that are jobs of their own, and `flows` those of
    sub-workflows that have not ended. `read_flow` returns the report of such a flow.
    """
    active = [name for name, step in report.steps.items() if step.state == "active" and name not in flows]
    found: dict[str, Any] = {}
    if any(name not in jobs for name in active):
        told = await _read(inspector, report.flow_id, deadline)
        found = cast("dict[str, Any]", told) if isinstance(told, dict) else {}
        found = {name: found.get(name) for name in active if name not in jobs}
    asked = {name: partial(_read, inspector, jobs[name], deadline) for name in active if name in jobs}
    asked |= {name: partial(_read_nested, read_flow, flows[name]) for name in report.steps if name in flows}
    names = list(asked)
    for first in range(0, len(names), _AT_A_TIME):
        some = names[first : first + _AT_A_TIME]
        values = await asyncio.gather(*(asked[name]() for name in some))
        found |= zip(some, values, strict=True)
    if not found:
        return report
    steps = {
        name: msgspec.structs.replace(step, progress=value)
        if (value := found.get(name)) is not None
        else step
        for name, step in report.steps.items()
    }
    return msgspec.structs.replace(report, steps=steps)


async def _read_nested(read_flow: Callable[[str], Awaitable[FlowReport]], flow_id: str) -> Any:
    try:
        return nested_progress(await read_flow(flow_id))
    except (UnknownJob, StoreCorrupt):
        return None


async def _read(inspector: Inspector, job_id: str, deadline: float) -> Any:
    try:
        job = await inspector.within(max(deadline - clock.monotonic(), 0.001)).jobs.get(job_id)
    except UnknownJob:
        return None
    return job.progress
