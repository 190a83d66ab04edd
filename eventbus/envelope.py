"""The envelope: what travels around a payload, as one small JSON object.

Keys are single letters and absent when empty, so that a small payload with its envelope
fits a field of the job's record. Unknown keys are ignored, so that releases can differ.
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["EventMessage", "decode_message", "encode_message"]


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
    },
):
    """One emission's message.

    `correlation_id` is empty for the first emission of a chain, whose job id it then is.
    `causation_id` is the id of the job whose handler emitted this. `key` is the
    idempotency key as given.
    """

    payload: msgspec.Raw
    meta: dict[str, Any] | None = None
    correlation_id: str = ""
    causation_id: str = ""
    traceparent: str = ""
    tracestate: str = ""
    key: str = ""
    retry: dict[str, Any] | None = None


_encode = msgspec.json.Encoder().encode

decode_message = msgspec.json.Decoder(EventMessage).decode
"""Read a message; raises msgspec.DecodeError for what is none, UnicodeEncodeError for what is no UTF-8."""


def encode_message(message: EventMessage) -> str:
    """Return the message as JSON text."""
    return _encode(message).decode()


def encode_bare(payload: bytes) -> str:
    """The common case: a message with nothing but its payload."""
    return '{"p":' + payload.decode() + "}"
