"""The send meter: counts the messages that a sender has sent, and how long its calls took.

What must always hold: a message counts once, when it is known whether the server has it. One that is sent
again has not ended.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, Protocol

from eventbus.model import clock
from eventbus.telemetry.failure import type_name
from eventbus.telemetry.metrics import few_errors, few_events, instruments
from eventbus.telemetry.server_address import server_attributes


class _Sent(Protocol):
    """An emission, as far as it is counted."""

    @property
    def event(self) -> str: ...
    @property
    def is_enqueued(self) -> bool: ...
    @property
    def send_error(self) -> Exception | None: ...


class SendMeter:
    """Counts what one sender sends to one server."""

    def __init__(self, address: str) -> None:
        """`address` is that of the store."""
        self._attributes: dict[str, Any] = {
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.system": "eventbus",
            **server_attributes(address),
        }

    def note(self, emissions: Sequence[_Sent], since: float, *, left: Collection[int] = ()) -> None:
        """Count the emissions of a call that are settled. `since`: when the call was sent, in monotonic
        seconds.

        Those at the places `left` are sent again.
        """
        made = instruments()
        if made is None:
            return
        again = set(left)
        took = clock.monotonic() - since
        ended = Counter(
            (few_events(emission.event), few_errors(type_name(type(error))) if error is not None else "")
            for place, emission in enumerate(emissions)
            if place not in again
            if (error := emission.send_error) is not None or emission.is_enqueued
        )
        for (event, error_type), count in ended.items():
            attributes = {**self._attributes, "messaging.destination.name": event}
            if error_type:
                attributes["error.type"] = error_type
            made.sent.add(count, attributes)
            made.operation.record(took, attributes)


def note_turn(address: str, since: float, error: BaseException | None) -> None:
    """Record how long a worker's call took that settles jobs and claims others."""
    made = instruments()
    if made is None or isinstance(error, asyncio.CancelledError):  # cancelled: the worker ends
        return
    attributes: dict[str, Any] = {
        "messaging.operation.name": "turn",
        "messaging.operation.type": "receive",
        "messaging.system": "eventbus",
        **server_attributes(address),
    }
    if error is not None:
        attributes["error.type"] = few_errors(type_name(type(error)))
    made.operation.record(clock.monotonic() - since, attributes)
