"""Hiding: what errors repeat of values that are hidden, of the job itself and of the steps of its flow.

What must hold: wherever the error of a job is shown, in a list, in a group or on its own page, the same values are hidden in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgspec

from eventbus.dashboard.desk.desk import Desk
from eventbus.dashboard.desk.queue_views import READ_SECONDS
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.entry.rights import Target
from eventbus.dashboard.redaction import Redaction
from eventbus.errors import UnknownJob

__all__ = ["error_without_secrets", "learn_job", "learn_payload"]

_FLOWS = "workflow."


async def error_without_secrets(
    desk: Desk,
    caller: Caller,
    job_id: str,
    error: str,
    event: str,
    *,
    alike: Callable[[str], str] | None = None,
) -> str:
    """Return the text of a job's error without the values that are hidden in its payload and in the results of its flow.

    `alike` is what was done to the text, and is done to the values too. If the payload is gone, nobody knows what the text
    holds: then its type alone is returned.
    """
    may_read = desk.may(caller, "payload.read", Target("job", job_id, event))
    redaction = Redaction(desk.redact if may_read else "all", event)
    try:
        await learn_job(desk, redaction, job_id, event)
    except UnknownJob:
        return error.partition(":")[0]
    return redaction.text(error, alike=alike)


async def learn_job(desk: Desk, redaction: Redaction, job_id: str, event: str) -> None:
    """Let the redaction know what is hidden of a job, and of the flow that it belongs to. Raises UnknownJob."""
    await learn_payload(desk, redaction, job_id)
    if event.startswith(_FLOWS) and desk.flows is not None:
        found = await desk.flows.tree(job_id.partition("/")[0], call_timeout=READ_SECONDS)
        _learn_results(redaction, msgspec.to_builtins(found, enc_hook=str))


async def learn_payload(desk: Desk, redaction: Redaction, job_id: str) -> None:
    """Let the redaction know what the payload of a job hides: by names, and by the marks of its type. Raises UnknownJob."""
    shown, revealed = await asyncio.gather(
        desk.provider.inspector.job(job_id, call_timeout=READ_SECONDS),
        desk.provider.inspector.job(job_id, reveal=True, call_timeout=READ_SECONDS),
    )
    redaction.value(revealed.payload)
    redaction.learn(shown.payload, revealed.payload)


def _learn_results(redaction: Redaction, tree: dict[str, Any]) -> None:
    for step in tree["report"]["steps"].values():
        redaction.value(step["result"])
        redaction.value(step["progress"])
    for trees in tree["nested"].values():
        for each in cast("list[dict[str, Any]]", trees):
            _learn_results(redaction, each)
