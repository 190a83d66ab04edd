"""Cancels while calls and processes fail: each job ends once, as recorded."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable

import pytest
from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.programs import Program
from harness.proxy import Fault, Proxy, When

from eventbus import Emission, EventProvider, JobCancelled

Run = Callable[..., Program]
Gates = Callable[[str], None]

pytestmark = pytest.mark.servers("one")

JOBS = 10
LOSSES: dict[str, tuple[When, Fault]] = {
    "cancel-fail-before": ("before", "break"),
    "cancel-fail-after": ("after", "break"),
    "cancel-gone-before": ("before", "hush"),
    "cancel-no-answer": ("after", "hush"),
}


def losses(twin: str) -> pytest.MarkDecorator:
    """All; where time is short, not `twin`, which the other test shows."""
    rows = [
        pytest.param(*loss, id=name, marks=[pytest.mark.long] if name == twin else [])
        for name, loss in LOSSES.items()
    ]
    return pytest.mark.parametrize(("when", "fault"), rows)


async def check_cancelled(server: Backend, emissions: list[Emission[object]], *, stalls: set[int]) -> None:
    """Each emitter learns that its job was cancelled, the record says the same, and nothing is left open."""
    for each in emissions:
        with pytest.raises(JobCancelled, match="enough"):
            await each
    await until("all is recorded", lambda: Audit(server).left_open() == {})
    audit = Audit(server)
    assert audit.problems == []
    jobs = [audit.jobs[each.job_id] for each in emissions]
    assert Counter(each.state for each in jobs) == Counter(cancelled=len(emissions))
    assert {each.stalls for each in jobs} == stalls


@losses("cancel-gone-before")
async def test_a_job_that_runs_is_cancelled_though_the_call_was_lost(
    when: When, fault: Fault, server: Backend, proxy: Proxy, start_worker: Run, gates: Gates, journal: Journal
) -> None:
    worker = start_worker(server)
    async with EventProvider(proxy.url) as provider:
        emissions = provider.emit_many("hold", [{"gate": "open"}] * JOBS)
        await until("all run", lambda: len(journal.read("began")) == JOBS, story=worker.story)
        proxy.strike("cancel", when, fault)
        assert await emissions[0].cancel("enough"), "a repeat is answered as its first try was"
        assert proxy.cuts["cancel"] == 1
        for each in emissions[1:]:
            assert await each.cancel("enough")
        await check_cancelled(server, emissions, stalls={0})
    assert set(journal.runs().values()) == {1}
    assert journal.read("ended") == []
    assert worker.complaints() == []


@losses("cancel-no-answer")
async def test_a_job_that_waits_is_cancelled_though_the_call_was_lost(
    when: When, fault: Fault, server: Backend, proxy: Proxy, start_worker: Run, journal: Journal
) -> None:
    async with EventProvider(proxy.url) as provider:
        emissions = provider.emit_many("work", [{"n": n} for n in range(JOBS)])
        await emissions[-1].enqueued()
        proxy.strike("cancel", when, fault)
        assert await emissions[0].cancel("enough"), "a repeat is answered as its first try was"
        assert proxy.cuts["cancel"] == 1
        for each in emissions[1:]:
            assert await each.cancel("enough")
        start_worker(server)
        await check_cancelled(server, emissions, stalls={0})
    assert journal.read() == [], "none ran"


async def test_a_job_whose_worker_dies_before_it_hears_of_the_cancel_ends_cancelled_and_runs_no_more(
    server: Backend, start_worker: Run, journal: Journal
) -> None:
    first = start_worker(server, lease="1s")
    async with EventProvider(server.url) as provider:
        emissions = provider.emit_many("hold", [{"gate": "open"}] * JOBS)
        await until("all run", lambda: len(journal.read("began")) == JOBS, story=first.story)
        first.send(signal.SIGSTOP)
        for each in emissions:
            assert await each.cancel("enough")
        first.kill()
        second = start_worker(server, lease="1s")
        await check_cancelled(server, emissions, stalls={1})
        after = provider.emit("work", {"n": 1})
        await after
    assert set(journal.runs().values()) == {1}
    assert second.complaints() == []
