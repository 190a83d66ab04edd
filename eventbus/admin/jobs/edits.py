"""Edits of jobs that wait (`Jobs.edit`): the revision that the editor has seen, what an edit makes of a
message, and what became of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from eventbus.errors import PayloadError, StoreCorrupt, UnknownJob, UsageError
from eventbus.model.message import decode_message, encode_message
from eventbus.model.redaction.hidden_values import mark_guessed
from eventbus.model.redaction.redacting import find_hidden

_PARTS = ("its payload, delay or priority was edited", "its due time is another one", "it was attempted")


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


def revision_of(fields: Mapping[str, str]) -> str:
    """Return the revision of a job's record: what an editor has seen of it, without its payload.

    It is made of the last edit, the due time and the attempts, in plain text, so that one revision can say
    what another one has changed. It holds no digest of the payload, by which a short secret in it could be
    found.
    """
    return ".".join(fields.get(name) or "0" for name in ("edited", "due", "attempts"))


def differences_of(seen: str, now: str) -> list[str]:
    """Return what has changed between two revisions, as sentences; empty if they are the same."""
    if seen == now:
        return []
    old, new = seen.split("."), now.split(".")
    if len(old) != len(new):
        return [f"{seen[:64]!r} is no revision of it"]
    return [said for said, one, other in zip(_PARTS, old, new, strict=True) if one != other]
