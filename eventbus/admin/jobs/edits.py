"""Edits of jobs that wait: what an edit makes of a message, and what became of it (`Jobs.edit`)."""

from __future__ import annotations

from typing import Any

import msgspec

from eventbus.errors import PayloadError, StoreCorrupt, UnknownJob, UsageError
from eventbus.model.message import decode_message, encode_message
from eventbus.model.redaction.hidden_values import mark_guessed
from eventbus.model.redaction.redacting import find_hidden

__all__ = ["JobEdit", "check_whole", "mark_body", "was_edited", "with_payload"]


class JobEdit(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an edit: whether it was made, and the state and the revision of the job now.

    `differences` says what has changed since the revision that was given; then nothing was edited.
    """

    changed: bool
    state: str
    revision: str
    differences: list[str] = []


def check_whole(payload: Any) -> None:
    """Raise PayloadError for what was copied from a report that hides a value: the value itself would be
    lost.
    """
    if (place := find_hidden(payload)) is not None:
        raise PayloadError(
            f"the payload holds at {place} what is only shown instead of a sensitive value; give the value "
            "itself, which a report with reveal=True has (eventbus jobs show ID --reveal)",
            path=place,
        )


def with_payload(body: str, payload: msgspec.Raw, job_id: str) -> str:
    """Return a message with another payload. Raises StoreCorrupt if `body` is none."""
    try:
        message = decode_message(body)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise StoreCorrupt(f"the message of job {job_id} cannot be read: {error}") from None
    message.payload = payload
    return encode_message(message)


def mark_body(body: str) -> str:
    """Return a message that says that its hidden values may be guessed."""
    message = decode_message(body)
    marks = msgspec.json.decode(message.hidden, type=dict[str, Any]) if bytes(message.hidden) else {}
    message.hidden = msgspec.Raw(msgspec.json.encode(mark_guessed(marks)))
    return encode_message(message)


def was_edited(word: str, job_id: str) -> bool:
    """Return whether the job was changed. Raises UnknownJob, UsageError."""
    if word == "unknown":
        raise UnknownJob(job_id)
    if word == "member":
        raise UsageError(f"job {job_id!r} belongs to a flow or a tree, which alone decides when it runs")
    if word == "begun":
        raise UsageError(
            f"flow {job_id!r} has begun or is stopped, and decides itself when it goes on; signal or cancel "
            "it"
        )
    return word == "changed"
