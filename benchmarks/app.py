"""What our side's worker runs: the provider, the events of the benchmarks and their handlers.

The worker process is `python -m eventbus worker benchmarks.app:provider`; EVENTBUS_URL says where, and
BENCH_SERVES what: `noop` (default), `noop:200` (that many event types), `sized`, `echo`, `waits`, or the
flows of a shape, as in `chain:3` (see `flows.py`). With BENCH_GATE it begins when the harness opens that gate
(see `gate.py`), and with BENCH_REPORT it leaves the figures of its handler calls (see `calls.py`).
"""

from __future__ import annotations

import os

import msgspec

from benchmarks.calls import calls
from benchmarks.gate import wait_open
from benchmarks.works import SHAPES
from eventbus import Event, EventProvider

CONCURRENCY = 100
"""Jobs at a time in the worker process; the same for each peer that can."""

SERVES_VARIABLE = "BENCH_SERVES"


class Noop(msgspec.Struct):
    """The payload, `{"n": n}`; the same for each peer."""

    n: int


class Sized(msgspec.Struct):
    """A payload of some size."""

    n: int
    text: str


def noops(types: int) -> list[Event[Noop, int]]:
    """Return the no-op events when there are that many types."""
    names = ["bench.noop"] if types == 1 else [f"bench.noop.{number}" for number in range(types)]
    return [Event(name, payload=Noop, result=int) for name in names]


sized = Event("bench.sized", payload=Sized, result=int)
echo = Event("bench.echo", payload=Sized, result=str)
provider = EventProvider(concurrency=CONCURRENCY, max_concurrency=CONCURRENCY)


async def answer(payload: Noop) -> int:
    """Count the call and return `n + 1`."""
    calls.note()
    return payload.n + 1


async def answer_sized(payload: Sized) -> int:
    """Count the call and return `n + 1`."""
    calls.note()
    return payload.n + 1


async def answer_echo(payload: Sized) -> str:
    """Return the text."""
    return payload.text


def _register(serves: str) -> None:
    kind, _, types = serves.partition(":")
    if kind in SHAPES:
        from benchmarks.flows import serve  # noqa: PLC0415  (a worker of events alone loads no workflows)

        serve(provider, kind, int(types))
    elif kind == "waits":
        from benchmarks.flows import serve_waits  # noqa: PLC0415  (the same)

        serve_waits(provider)
    elif kind == "sized":
        provider.on(sized)(answer_sized)
    elif kind == "echo":
        provider.on(echo)(answer_echo)
    else:
        for event in noops(int(types or 1)):
            provider.on(event)(answer)


_register(os.environ.get(SERVES_VARIABLE, "noop"))
wait_open()
