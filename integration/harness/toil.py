"""Toil: the handlers of the chaos runs and of the simulation, alone and under controls."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

from harness.journal import Journal

from eventbus import Event, EventContext, EventProvider, Limit, Retry

__all__ = ["EVENTS", "bounded", "merged", "serve_toil"]

bounded = Event("bounded", payload=dict[str, Any], limit=Limit(at_once=6, rate=["200/1s"]))
merged = Event("merged", payload=dict[str, Any], key=lambda payload: payload["key"])
EVENTS = ("toil", "bounded", "merged")


def _name_run() -> str:
    return f"{os.getpid()}-{time.monotonic_ns()}"


def serve_toil(provider: EventProvider, journal: Journal, name_run: Callable[[], str] = _name_run) -> None:
    """Have a provider handle the events. `name_run` makes a name that no other run has."""

    async def toil(payload: Any, ctx: EventContext) -> Any:
        """Take a while; succeed at attempt `payload["good"]`."""
        journal.write("began", ctx.job_id, ctx.attempt, payload["n"])
        await asyncio.sleep(payload["ms"] / 1000)
        if ctx.attempt < payload["good"]:
            raise ConnectionError(f"attempt {ctx.attempt}")
        answer = {"n": payload["n"], "by": name_run()}
        journal.write("ended", ctx.job_id, ctx.attempt, answer)
        return answer

    for event in ("toil", bounded, merged):
        provider.on(event, retry=Retry(attempts=3, delay="50ms", backoff="fixed"), concurrency=8)(toil)
