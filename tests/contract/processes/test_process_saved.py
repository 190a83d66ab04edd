"""What handlers, steps and tasks with pool="process" save, and how they hear that they should end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from importable import process_handlers, saving

from eventbus import EventProvider, HandlerError, JobCancelled, Retry
from workflows import WorkflowProvider

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


def _serve(make_provider: MakeProvider, **settings: Any) -> EventProvider:
    provider = make_provider(reply_timeout=120, **settings)
    for handler in (saving.crawl, saving.leave_a_saver, saving.lose, saving.save_from_a_fork):
        provider.on(handler.__name__, pool="process", concurrency=2)(handler)
    return provider


async def test_a_handler_goes_on_behind_what_it_saved_also_when_its_process_dies(
    make_provider: MakeProvider,
) -> None:
    provider = _serve(make_provider, retry=Retry(3, delay=0))
    async with provider.worker():
        assert await provider.emit("crawl") == ["p0", "p1", "p2", "p3"]


async def test_a_save_after_the_end_of_the_attempt_is_refused_and_the_process_lives_on(
    make_provider: MakeProvider, tmp_path: Path, until: Until
) -> None:
    provider = _serve(make_provider)
    async with provider.worker():
        emission = provider.emit("leave_a_saver", str(tmp_path))
        assert await emission == "done"
        (tmp_path / "ended").touch()
        await until((tmp_path / "told").exists, "the thread was refused")
        assert await provider.emit("crawl") == ["p0", "p1", "p2", "p3"]
        assert await provider.jobs.live(emission.job_id, "saved") == '"in time"'
    assert "nothing was saved: the attempt has ended" in (tmp_path / "told").read_text()


async def test_what_cannot_be_saved_is_refused_in_the_process(make_provider: MakeProvider) -> None:
    provider = _serve(make_provider, max_result=500)
    async with provider.worker():
        large, number, fork = await provider.emit("save_from_a_fork")
    assert 'saved value of "save_from_a_fork"' in large
    assert "at most 500 bytes, got: 602 bytes" in large
    assert "saved value" in number
    assert fork == "7", "a fork of the process saves nothing"


async def test_a_worker_that_lost_the_job_saves_nothing(
    make_provider: MakeProvider, tmp_path: Path, until: Until
) -> None:
    provider = _serve(make_provider, lease="10s")
    async with provider.worker() as worker:
        emission = provider.emit("lose", str(tmp_path))
        await until((tmp_path / "began").exists, "it runs")
        store = provider._life.store
        assert store is not None
        await store._caller.command("HDEL", store.keys.of("held", worker.id), emission.job_id)
        (tmp_path / "go").touch()
        await until(lambda: worker.is_idle, "the handler was cancelled")
        assert await provider.jobs.live(emission.job_id, "saved") == '"mine"'


@pytest.mark.parametrize("reason", ["cancel", "timeout", "stop"])
async def test_a_handler_that_asks_hears_why_it_should_end(
    make_provider: MakeProvider, tmp_path: Path, until: Until, reason: str
) -> None:
    provider = make_provider(grace="10s", retry=Retry(1), reply_timeout=60)
    options: dict[str, Any] = {"timeout": "10s"} if reason == "timeout" else {}
    provider.on("grind", pool="process", **options)(saving.grind)
    provider.on("pid", pool="process")(process_handlers.pid)
    async with provider:
        async with provider.worker():
            await provider.emit("pid", 1)  # the process has begun, which takes a busy machine long
            emission = provider.emit("grind", str(tmp_path))
            await until((tmp_path / "began").exists, "the handler runs")
            if reason == "cancel":
                await emission.cancel("enough")
            if reason != "stop":
                with pytest.raises(JobCancelled if reason == "cancel" else HandlerError):
                    await emission
                await until((tmp_path / "heard").exists, "the process has heard of it")
        if reason == "stop":
            assert await emission == "ended early", "it had the grace to end"
    assert (tmp_path / "began").read_text() == "None"
    assert (tmp_path / "heard").read_text().split(" ")[0] == reason
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize("spread", [False, True], ids=["local", "spread"])
async def test_steps_and_tasks_in_processes_save_too(make_provider: MakeProvider, *, spread: bool) -> None:
    provider = make_provider(retry=Retry(3, delay=0))
    flows = WorkflowProvider(provider)
    saving.walking.spread = spread
    flows.register(saving.walking)
    flows.register(saving.counting)
    async with provider, provider.worker():
        walk, count = await asyncio.gather(
            flows.execute(saving.walking, ""), flows.execute(saving.counting, 2)
        )
        assert await walk.result() == [4, 3, None, None]
        assert await count.result() == [2, 1, 2]
