"""Hiding: what errors repeat of values that are hidden, of the job itself and of the steps of its flow.

What must hold: wherever the error of a job is shown, in a list, in a group or on its own page, the same values are hidden in it.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec

from eventbus.admin.inspector import JobReport
from eventbus.admin.jobs.failures import FailureGroup
from eventbus.dashboard.desk.desk import Desk
from eventbus.dashboard.desk.queue_views import READ_SECONDS
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.entry.rights import Target
from eventbus.dashboard.redaction import Redaction
from eventbus.errors import UnknownJob
from eventbus.store.overview.error_text import fold

__all__ = ["error_without_secrets", "group_without_secrets", "learn_job", "learn_payload"]

_FLOWS = "workflow."


async def error_without_secrets(desk: Desk, caller: Caller, job_id: str, error: str, event: str) -> str:
    """Return the text of a job's error without the values that are hidden in its payload and in the results of its flow.

    If the payload is gone, nobody knows what the text holds: then its type alone is returned.
    """
    redaction = _redaction_for(desk, caller, job_id, event)
    try:
        await learn_job(desk, redaction, job_id, event)
    except UnknownJob:
        return error.partition(":")[0]
    return redaction.text(error)


async def group_without_secrets(desk: Desk, caller: Caller, group: FailureGroup, event: str) -> str:
    """Return the error of a group without the values that are hidden in its sample.

    The error of a group is short. So the whole error of the sample is searched, and then made short. If the sample is gone,
    or has another error by now, the type alone is returned.
    """
    redaction = _redaction_for(desk, caller, group.sample, event)
    try:
        error = (await learn_job(desk, redaction, group.sample, event)).error
    except UnknownJob:
        error = ""
    if not fold(error).startswith(group.error.removesuffix("...")):
        return group.error.partition(":")[0]
    return fold(redaction.text(error))


def _redaction_for(desk: Desk, caller: Caller, job_id: str, event: str) -> Redaction:
    may_read = desk.may(caller, "payload.read", Target("job", job_id, event))
    return Redaction(desk.redact if may_read else "all", event)


async def learn_job(desk: Desk, redaction: Redaction, job_id: str, event: str) -> JobReport:
    """Let the redaction know what is hidden of a job, and of the flow that it belongs to; return the job.

    Its errors are as they were recorded. Raises UnknownJob.
    """
    report = await learn_payload(desk, redaction, job_id)
    if event.startswith(_FLOWS) and desk.flows is not None:
        tree = await desk.flows.tree(job_id.partition("/")[0], call_timeout=READ_SECONDS)
        _learn_results(redaction, msgspec.to_builtins(tree, enc_hook=str))
    return report


async def learn_payload(desk: Desk, redaction: Redaction, job_id: str) -> JobReport:
    """Let the redaction know what the payload of a job hides, by names and by the marks of its type; return the job.

    Raises UnknownJob.
    """
    shown, revealed = await asyncio.gather(
        desk.provider.inspector.job(job_id, call_timeout=READ_SECONDS),
        desk.provider.inspector.job(job_id, reveal=True, call_timeout=READ_SECONDS),
    )
    redaction.value(revealed.payload)
    redaction.learn(shown.payload, revealed.payload)
    return revealed


def _learn_results(redaction: Redaction, tree: dict[str, Any]) -> None:
    for step in tree["report"]["steps"].values():
        redaction.value(step["result"])
        redaction.value(step["progress"])
    for trees in tree["nested"].values():
        for each in cast("list[dict[str, Any]]", trees):
            _learn_results(redaction, each)
