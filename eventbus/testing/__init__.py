"""The test kit: a program in virtual time, on a private server.

    async with TestBus(provider) as bus:
        await provider.emit(remind, "ada", delay="3 days").enqueued()
        await bus.advance("3 days")

See docs/testing.md. Programs never import it, and neither does `eventbus`. Each name is imported when it is
first asked for, so that the plugin of pytest costs nothing where nobody uses it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eventbus.testing.answers import Answer
    from eventbus.testing.bus import Drained, Fake, TestBus
    from eventbus.testing.case import EventBusTestCase
    from eventbus.testing.records import EmissionRecord, EmittedPayloads, Run
    from eventbus.testing.standstill import TimeStandsStill

_PLACES = {
    "Answer": "answers",
    "Drained": "bus",
    "EmissionRecord": "records",
    "EmittedPayloads": "records",
    "EventBusTestCase": "case",
    "Fake": "bus",
    "Run": "records",
    "TestBus": "bus",
    "TimeStandsStill": "standstill",
}

__all__ = [
    "Answer",
    "Drained",
    "EmissionRecord",
    "EmittedPayloads",
    "EventBusTestCase",
    "Fake",
    "Run",
    "TestBus",
    "TimeStandsStill",
]


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{place}"), name)
