"""The envelope: a payload with its metadata, as one small JSON object.

Keys are single letters and absent when empty, so that a small payload with its envelope fits into a field of
the job's record. Unknown keys are ignored, so that two releases can run side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

HIDDEN_FIELD = "hide"
"""The field of any job's body that says where its other fields, and its `result`, are sensitive
(`redaction.marks`).
"""

NOT_HIDDEN = msgspec.Raw()


class EventMessage(
    msgspec.Struct,
    omit_defaults=True,
    kw_only=True,
    rename={
        "payload": "p",
        "meta": "m",
        "correlation_id": "c",
        "causation_id": "a",
        "traceparent": "t",
        "tracestate": "s",
        "key": "k",
        "retry": "r",
        "baggage": "g",
        "timeout": "o",
        "ttl": "l",
        "hidden": HIDDEN_FIELD,
    },
):
    """The message of one emission.

    `correlation_id` is empty for the first emission of a chain: its job id is the chain's correlation id.
    `causation_id` is the id of the job whose handler emitted this message. `key` is the idempotency key as
    the user gave it, `baggage` the text of a W3C header. `timeout` and `ttl` are those of this emission, in
    ms; a timeout of 0 means no limit. `hidden` says where `p` and `result` are sensitive; it is empty if they
    are not.
    """

    payload: msgspec.Raw
    meta: dict[str, Any] | None = None
    correlation_id: str = ""
    causation_id: str = ""
    traceparent: str = ""
    tracestate: str = ""
    key: str = ""
    retry: dict[str, Any] | None = None
    baggage: str = ""
    timeout: int | None = None
    ttl: int | None = None
    hidden: msgspec.Raw = NOT_HIDDEN


_encode = msgspec.json.Encoder().encode

decode_message: Callable[[bytes | str], EventMessage] = msgspec.json.Decoder(EventMessage).decode
"""Return the message in a text. Raises msgspec.DecodeError, or UnicodeEncodeError if UTF-8 cannot hold it."""


def encode_message(message: EventMessage) -> str:
    """Return the message as JSON text."""
    return _encode(message).decode()


def encode_bare(payload: bytes, hidden: bytes = b"") -> str:
    """Return a message that has only its payload as JSON text: the common case, without a struct."""
    if hidden:
        return f'{{"p":{payload.decode()},"{HIDDEN_FIELD}":{hidden.decode()}}}'
    return '{"p":' + payload.decode() + "}"
