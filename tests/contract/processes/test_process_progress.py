"""The progress of handlers with pool="process"."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from importable import progressing

from eventbus import EventProvider, HandlerError

Until = Callable[..., Awaitable[None]]


@pytest.fixture
async def provider(make_provider: Callable[..., EventProvider], stack: AsyncExitStack) -> EventProvider:
    provider = make_provider(retry=1, reply_timeout=120)
    for handler in (progressing.count_up, progressing.leave_a_teller, progressing.tell_too_much):
        provider.on(handler.__name__, pool="process", concurrency=1)(handler)
    await stack.enter_async_context(provider)
    await stack.enter_async_context(provider.worker())
    return provider


async def test_progress_is_recorded_while_the_handler_runs_and_its_last_value_stays(
    provider: EventProvider, tmp_path: Path
) -> None:
    emission = provider.emit("count_up", str(tmp_path))
    await emission.enqueued()

    end = time.monotonic() + 240
    while (await provider.inspector.jobs.get(emission.job_id)).progress != 1:
        assert time.monotonic() < end, "the first value was not seen"
        await asyncio.sleep(0.01)
    (tmp_path / "seen").touch()
    await emission
    assert (await provider.inspector.jobs.get(emission.job_id)).progress == {"percent": 100}


async def test_progress_after_the_end_of_the_attempt_is_dropped_and_the_process_lives_on(
    provider: EventProvider, tmp_path: Path, until: Until
) -> None:
    first = provider.emit("leave_a_teller", str(tmp_path))
    await first
    (tmp_path / "ended").touch()
    await until((tmp_path / "told").exists, "the thread has told its value")
    second = provider.emit("leave_a_teller", str(tmp_path))
    await second
    assert (await provider.inspector.jobs.get(first.job_id)).progress == "in time"


async def test_progress_that_is_too_long_fails_the_handler(provider: EventProvider) -> None:
    with pytest.raises(HandlerError, match="progress"):
        await provider.emit("tell_too_much")
