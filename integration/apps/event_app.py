"""The app of event handlers under test: `eventbus worker apps.event_app:provider`, run in `integration/`.

Handlers write into a journal what they do. A handler that must wait waits for a gate, which is a file
that the test makes. Both are in the folder that EVENTBUS_TEST_FOLDER names.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from harness.conditions import until
from harness.journal import Journal

from eventbus import EmitError, Event, EventContext, EventProvider, Retry


class Order(msgspec.Struct):
    order_id: str
    total: int


class Receipt(msgspec.Struct):
    number: str
    gross: int


price = Event("price", payload=Order, result=Receipt)
keyed = Event("keyed", payload=dict[str, Any], key=lambda payload: payload["key"])

provider = EventProvider()

_folder = Path(os.environ["EVENTBUS_TEST_FOLDER"])
_journal = Journal(_folder / "journal")


@provider.on(price, concurrency=100)
async def answer_price(order: Order, ctx: EventContext) -> Receipt:
    _journal.write("began", ctx.job_id, ctx.attempt, order.total)
    return Receipt(f"r-{order.order_id}", order.total * 119 // 100)


@provider.on("work", concurrency=100)
async def work(payload: Any, ctx: EventContext) -> Any:
    """Return the number of the payload, and which process and run this was."""
    _journal.write("began", ctx.job_id, ctx.attempt, payload)
    answer = {"n": payload["n"], "by": f"{os.getpid()}-{time.monotonic_ns()}"}
    _journal.write("ended", ctx.job_id, ctx.attempt, answer)
    return answer


@provider.on("hold", concurrency=100)
async def hold(payload: Any, ctx: EventContext) -> Any:
    """Wait for a gate, then answer."""
    _journal.write("began", ctx.job_id, ctx.attempt, payload)
    await _passed(payload["gate"])
    _journal.write("ended", ctx.job_id, ctx.attempt, payload)
    return {"gate": payload["gate"], "pid": os.getpid()}


@provider.on(keyed, concurrency=100)
async def answer_key(payload: dict[str, Any], ctx: EventContext) -> Any:
    _journal.write("began", ctx.job_id, ctx.attempt, payload)
    if "gate" in payload:
        await _passed(payload["gate"])
    return {"key": payload["key"], "by": f"{os.getpid()}-{time.monotonic_ns()}"}


@provider.on("flaky", retry=Retry(attempts=3, delay="50ms", backoff="fixed"), concurrency=100)
async def flaky(payload: Any, ctx: EventContext) -> Any:
    """Succeed at attempt `payload["good"]`."""
    _journal.write("began", ctx.job_id, ctx.attempt, payload)
    if ctx.attempt < payload["good"]:
        raise ConnectionError(f"attempt {ctx.attempt}")
    return {"attempt": ctx.attempt}


@provider.on("worn", retry=Retry(attempts=3, delay="50ms", backoff="fixed"), concurrency=100)
async def wear(payload: Any, ctx: EventContext) -> str:
    """Fail twice, then wait for a gate."""
    _journal.write("began", ctx.job_id, ctx.attempt, payload)
    if ctx.attempt < 3:
        raise ConnectionError(f"attempt {ctx.attempt}")
    await _passed(payload["gate"])
    return "done"


@provider.on("poison", concurrency=100)
async def poison(payload: Any, ctx: EventContext) -> None:
    """End the process like a crash in native code; if gated, the n-th run first waits for the gate n."""
    _journal.write("began", ctx.job_id, ctx.attempt, payload)
    if payload["is_gated"]:
        await _passed(str(_journal.runs()[ctx.job_id]))
    os._exit(9)


@provider.on("notice", concurrency=100)
@provider.on("notice", group="audit", concurrency=100)
async def notice(payload: Any, ctx: EventContext) -> Any:
    """Handle the event in two groups."""
    _journal.write("began", ctx.job_id, ctx.attempt, payload)
    return {"n": payload["n"]}


@provider.on("tell-on", concurrency=100)
async def tell_on(payload: Any, ctx: EventContext) -> Any:
    """Report progress and emit another event; return whether that was enqueued."""
    _journal.write("began", ctx.job_id, ctx.attempt, payload)
    await ctx.progress({"n": payload["n"]})
    try:
        await ctx.emit("nobody", {"text": "x" * 200}, reply=False)
    except EmitError as error:
        return {"enqueued": error.enqueued, "why": str(error)}
    return {"enqueued": True}


@provider.on("clock")
async def read_clock(_: Any) -> float:
    """Return the time of this process."""
    return time.time()


@provider.on("block")
async def block(payload: Any, ctx: EventContext) -> Any:
    """Block the event loop."""
    _journal.write("began", ctx.job_id, ctx.attempt, payload)
    time.sleep(payload["seconds"])  # noqa: ASYNC251  (the fault itself)
    return {"pid": os.getpid()}


@provider.on("seize")
async def seize(payload: Any, ctx: EventContext) -> Any:
    """Hold the GIL until a gate is open, like C code that never releases it; in the first run only."""
    _journal.write("began", ctx.job_id, ctx.attempt, payload)
    if _journal.runs()[ctx.job_id] == 1:
        system, gate = ctypes.PyDLL(None), os.fsencode(_folder / payload["gate"])
        interval = sys.getswitchinterval()
        sys.setswitchinterval(3600)  # else another thread may run between two calls
        while system.access(gate, os.F_OK):
            system.usleep(10_000)
        sys.setswitchinterval(interval)
    return {"pid": os.getpid()}


async def _passed(gate: str) -> None:
    await until(f"{gate} is open", (_folder / gate).exists, within=3600)
