"""A program with batch handlers: `eventbus worker apps.handlers.batch_app:provider`, run in `integration/`.

Its handlers write into the journal which jobs began and ended in one call.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from harness.journal import Journal

from eventbus import Batch, BatchContext, EventProvider, Retry

__all__ = ["provider"]

provider: EventProvider = EventProvider()
_folder = Path(os.environ["EVENTBUS_TEST_FOLDER"])
_journal = Journal(_folder / "journal")


def _note(what: str, payloads: list[Any], ctx: BatchContext) -> None:
    for payload, item in zip(payloads, ctx.items, strict=True):
        _journal.write(what, item.job_id, item.attempt, payload)


@provider.on("many", batch=Batch(size=20, wait="20ms"), concurrency=3, retry=Retry(3, delay="10ms"))
async def many(payloads: list[Any], ctx: BatchContext) -> list[Any]:
    """Take a moment for all of them, or what the longest `takes`; every 7th job fails in its first attempt. A
    poison ends the process.
    """
    _note("began", payloads, ctx)
    if any(payload.get("kills") for payload in payloads):
        os._exit(9)
    await asyncio.sleep(max(payload.get("takes", 0.02) for payload in payloads))
    _note("ended", payloads, ctx)
    return [
        ConnectionError("once") if payload["n"] % 7 == 3 and item.attempt == 1 else {"n": payload["n"]}
        for payload, item in zip(payloads, ctx.items, strict=True)
    ]


@provider.on("held", batch=Batch(size=30, wait="50ms"))
async def held(payloads: list[Any], ctx: BatchContext) -> list[Any]:
    """Wait until the gate is open."""
    _note("began", payloads, ctx)
    while not (_folder / "open").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    _note("ended", payloads, ctx)
    return [{"n": payload["n"]} for payload in payloads]


@provider.on("rare", batch=Batch(size=100, wait="1 minute"))
async def rare(payloads: list[Any], ctx: BatchContext) -> list[Any]:
    """Wait long for many jobs."""
    _note("began", payloads, ctx)
    return [{"n": payload["n"]} for payload in payloads]
