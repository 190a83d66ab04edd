"""Log lines that handlers, steps and tasks with pool="process" keep with their jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from importable import line_keeping

from eventbus import EventProvider, HandlerError, Retry
from workflows import WorkflowProvider

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


def _serve(make_provider: MakeProvider, **settings: Any) -> EventProvider:
    provider = make_provider(reply_timeout=120, **settings)
    functions: Any = (
        line_keeping.keep_many,
        line_keeping.die_after_a_line,
        line_keeping.keep_late,
        line_keeping.keep_from_a_fork,
    )
    for handler in functions:
        provider.on(handler.__name__, pool="process", concurrency=2)(handler)
    return provider


async def _lines(provider: EventProvider, job_id: str) -> list[str]:
    return [each.text for each in (await provider.inspector.jobs.get(job_id)).lines]


async def test_the_lines_of_each_attempt_are_there_in_order_cut_and_with_the_worker(
    make_provider: MakeProvider,
) -> None:
    provider = _serve(make_provider, retry=Retry(2, delay=0))
    async with provider.worker() as worker:
        emission = provider.emit("keep_many")
        assert await emission == worker.id
        report = await provider.inspector.jobs.get(emission.job_id)
    texts = [each.text for each in report.lines]
    cut = "x" * 4093 + "..."
    assert texts == ["attempt 1", cut, "\\ud800", "attempt 2", cut, "\\ud800"]
    assert {each.worker for each in report.lines} == {worker.id}


async def test_a_line_stays_also_when_the_process_dies_behind_it(make_provider: MakeProvider) -> None:
    provider = _serve(make_provider, retry=Retry(1))
    async with provider.worker():
        emission = provider.emit("die_after_a_line")
        with pytest.raises(HandlerError, match="ProcessDied"):
            await emission
        assert await _lines(provider, emission.job_id) == ["the last word"]


async def test_a_line_after_the_end_of_the_attempt_or_from_a_fork_is_none(
    make_provider: MakeProvider, tmp_path: Path, until: Until
) -> None:
    provider = _serve(make_provider)
    async with provider.worker():
        late, fork = provider.emit("keep_late", str(tmp_path)), provider.emit("keep_from_a_fork")
        await late
        assert await fork == 7
        (tmp_path / "ended").touch()
        await until((tmp_path / "told").exists, "the thread has called")
        assert await provider.emit("keep_from_a_fork") == 7, "the processes live on"
        assert await _lines(provider, late.job_id) == ["in time"]
        assert await _lines(provider, fork.job_id) == ["here"]


async def test_steps_in_processes_keep_lines_with_the_job_that_they_run_in(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider(reply_timeout=120)
    flows = WorkflowProvider(provider)
    flows.register(line_keeping.packing)
    async with provider, provider.worker():
        flow = await flows.execute(line_keeping.packing, None)
        jobs = (await flow.result()).split()
        texts = [text for each in jobs for text in await _lines(provider, each)]
    assert texts == ["pack: packed", "send: sent"]


async def test_tasks_in_processes_keep_lines_and_know_their_worker(make_provider: MakeProvider) -> None:
    provider = make_provider(reply_timeout=120)
    flows = WorkflowProvider(provider)
    flows.register(line_keeping.lining)
    async with provider, provider.worker() as worker:
        flow = await flows.execute(line_keeping.lining, None)
        assert await flow.result() == [worker.id, worker.id]
        here = await _lines(provider, flow.id)
        apart = await _lines(provider, line_keeping.read_of(flow.id))
    assert here == ["read@0: page 1, attempt 1", "read@0: page 1, attempt 2"]
    assert apart == ["read@1.0: page 2, attempt 1", "read@1.0: page 2, attempt 2"]
