"""What the message of a job says of where it comes from: its chain, the job that caused it, its key and its
meta.

Messages of events and of flows have these under the same names. What must always hold: a message that is
damaged, or of
another program, says nothing, and costs no error.
"""

from __future__ import annotations

from typing import Any

import msgspec

from eventbus.model.names import EVENT_QUEUES, split_group

FLOW_QUEUES = "workflow."
"""Begins the names of the queues of flows and of their steps."""


class Chain(
    msgspec.Struct, frozen=True, rename={"correlation_id": "c", "causation_id": "a", "meta": "m", "key": "k"}
):
    """Where a job comes from; empty where its message does not say."""

    correlation_id: str = ""
    causation_id: str = ""
    meta: dict[str, Any] | None = None
    key: str = ""


_decode = msgspec.json.Decoder(Chain).decode


def chain_of(job_id: str, queue: str, body: str) -> Chain:
    """Return where a job comes from, by its body. The first job of a chain gives it its own id."""
    if not queue.startswith((EVENT_QUEUES, FLOW_QUEUES)):
        return Chain()
    try:
        found = _decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return Chain()
    if found.correlation_id:
        return found
    return msgspec.structs.replace(found, correlation_id=split_group(job_id)[0])
