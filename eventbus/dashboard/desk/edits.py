"""Edits: another payload for a job that waits, is delayed or parked; never another type, event or queue.

    what the caller has seen (its revision) -> the hidden parts put back -> checked by the event -> changed in
    one call

What must always hold: whoever edits may read payloads; a part that was hidden from the editor and that the
editor left as it stood keeps its value; one that stands at another place is refused, because nobody knows its
value there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from eventbus.admin.jobs.job_report import JobReport
from eventbus.dashboard.desk.desk import ActionResult, Desk
from eventbus.dashboard.desk.jobs import JOB, job_target
from eventbus.dashboard.desk.rows import BareOrder
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.entry.rights import Target
from eventbus.dashboard.problem import Problem
from eventbus.errors import DefinitionError, EventBusError, PayloadError, UsageError
from eventbus.model.redaction.redacting import holds_hidden, is_hidden


class EditOrder(BareOrder, frozen=True):
    """The whole new payload. `revision` is that of the job's report, which may also come as `If-Match`; `*`
    is any.
    """

    payload: Any
    revision: str = ""


async def edit_job(desk: Desk, caller: Caller, job: JobReport, order: EditOrder) -> ActionResult:
    """Replace the payload of a job. Raises Problem: 412 if the job was changed since it was seen, 409 if it
    runs or has ended.
    """
    jobs, target = desk.inspector.jobs, job_target(job)
    if not desk.may(caller, "payload.read", target):
        raise Problem(403, "job.edit of a payload needs payload.read, too")
    revision = order.revision.strip().removeprefix("W/").strip('"')
    if not revision:
        raise Problem(
            422, "expected If-Match with the revision of the job, so that no edit of others is lost"
        )
    whole = await jobs.get(job.id, reveal=True)
    shown = await shown_payload(desk, caller, job.id, target)
    payload = put_back(order.payload, shown, whole.payload)
    seen = whole.revision if revision == "*" else revision  # that of the values which are put back
    try:
        done = await jobs.edit(
            job.id,
            payload,
            revision=seen,
            reveal=desk.may(caller, "payload.reveal", target),
            names=desk.redaction(caller, target).names,
        )
    except (PayloadError, DefinitionError, UsageError) as error:
        raise (error if payload == order.payload else _without_words(error)) from None
    if done.differences:
        raise Problem(
            412,
            f"the job was changed since you read it: {', '.join(done.differences)}; nothing was edited, "
            "look at it again",
            revision=done.revision,
            state=done.state,
            differences=done.differences,
        )
    if not done.changed:
        detail = f"the job is {done.state}; only one that waits, is delayed or parked can be edited"
        raise Problem(409, detail, state=done.state)
    return ActionResult(changed=True, note="its payload is replaced", value=None)


async def shown_payload(desk: Desk, caller: Caller, job_id: str, target: Target) -> Any:
    """Return the payload of a job as the caller sees it."""
    redaction = desk.redaction(caller, target)
    report = await desk.inspector.jobs.get(job_id, names=redaction.names)
    return redaction.value(report.payload, "payload") if redaction.hides_all else report.payload


def _without_words(error: EventBusError) -> Problem:
    """Return the problem of a payload to which hidden values were put back: the words of a check may quote
    them.
    """
    place = getattr(error, "path", None) or "$"
    return Problem(
        422,
        f"the payload does not fit the event at {place}; what is wrong is not told, because it may quote a "
        "hidden value",
    )


def put_back(given: Any, shown: Any, whole: Any, at: str = "") -> Any:
    """Return what was given with the values of `whole` where it is as `shown`, and hides. Raises Problem,
    422.
    """
    if holds_hidden(given):
        if is_hidden(given) and given == shown != whole:
            return whole
        raise Problem(
            422,
            f"the value at {at or '/'} is hidden, and is not the one that is hidden there; type the value "
            "itself, or look at the job again",
            errors=[{"pointer": at, "detail": "a hidden value at another place"}],
        )
    if isinstance(given, dict):
        fields = cast("dict[str, Any]", given)
        if any(map(holds_hidden, fields)):
            raise Problem(
                422, f"a name at {at or '/'} is what is shown instead of a hidden value", pointer=at
            )
        return {
            name: put_back(part, _part(shown, name), _part(whole, name), f"{at}/{name}")
            for name, part in fields.items()
        }
    if isinstance(given, list):
        parts = cast("list[Any]", given)
        return [
            put_back(part, _part(shown, place), _part(whole, place), f"{at}/{place}")
            for place, part in enumerate(parts)
        ]
    return given


def _part(value: Any, name: str | int) -> Any:
    """Return a field of an object, or an item of a list; None for what is not there."""
    if isinstance(value, Mapping):
        return cast("Mapping[Any, Any]", value).get(name)
    if isinstance(value, (list, tuple)) and isinstance(name, int):
        items = cast("list[Any]", value)
        return items[name] if name < len(items) else None
    return None


ACTS = (
    JOB.row(
        "edit",
        "Replace the payload of a job that waits; If-Match is its revision.",
        "job.edit",
        EditOrder,
        edit_job,
        method="PATCH",
    ),
)
