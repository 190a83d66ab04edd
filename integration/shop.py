"""The program under test: `eventbus worker shop:provider`, run in this folder.

Handlers note in a journal what they do, and those that must wait do so for a file, a gate, that
the test makes. Both lie in the folder that EVENTBUS_TEST_FOLDER names.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from pathlib import Path
from typing import Any

import msgspec
from conditions import until
from journal import Journal

from eventbus import Event, EventContext, EventProvider, Retry


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
    """Answer with what came, and with who did it."""
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


@provider.on("toil", retry=Retry(attempts=3, delay="50ms", backoff="fixed"), concurrency=8)
async def toil(payload: Any, ctx: EventContext) -> Any:
    """Take a while; succeed at attempt `payload["good"]`."""
    _journal.write("began", ctx.job_id, ctx.attempt, payload["n"])
    await asyncio.sleep(payload["ms"] / 1000)
    if ctx.attempt < payload["good"]:
        raise ConnectionError(f"attempt {ctx.attempt}")
    answer = {"n": payload["n"], "by": f"{os.getpid()}-{time.monotonic_ns()}"}
    _journal.write("ended", ctx.job_id, ctx.attempt, answer)
    return answer


@provider.on("poison", concurrency=100)
async def poison(payload: Any, ctx: EventContext) -> None:
    """End the process, as a crash in native code would; at the n-th run after the gate named n."""
    _journal.write("began", ctx.job_id, ctx.attempt, payload)
    if payload["is_gated"]:
        await _passed(str(_journal.runs()[ctx.job_id]))
    os._exit(9)


@provider.on("clock")
async def read_clock(_: Any) -> float:
    """Tell what this process takes for the time."""
    return time.time()


@provider.on("block")
async def block(payload: Any, ctx: EventContext) -> Any:
    """Keep the event loop from running."""
    _journal.write("began", ctx.job_id, ctx.attempt, payload)
    time.sleep(payload["seconds"])  # noqa: ASYNC251  (the fault itself)
    return {"pid": os.getpid()}


@provider.on("seize")
async def seize(payload: Any, ctx: EventContext) -> Any:
    """Hold the GIL, as C code may that never lets go of it; at the first run only."""
    _journal.write("began", ctx.job_id, ctx.attempt, payload)
    if _journal.runs()[ctx.job_id] == 1:
        ctypes.PyDLL(None).usleep(round(payload["seconds"] * 1e6))
    return {"pid": os.getpid()}


async def _passed(gate: str) -> None:
    await until(f"{gate} is open", (_folder / gate).exists, within=3600)
