"""What users do, on every server that we support; Redis 6.2 is the oldest."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from checks.audit import Audit, reconcile
from harness.backends import Backend
from harness.conditions import last, until
from harness.journal import Journal
from harness.programs import Program
from harness.proxy import Proxy

from eventbus import EventContext, EventProvider, HandlerError, Retry

Run = Callable[..., Program]

pytestmark = pytest.mark.servers("all")


async def test_results_come_from_another_process_whatever_their_size(
    server: Backend, start_worker: Run, journal: Journal
) -> None:
    start_worker(server)
    big = "x" * 100_000  # larger than a reply carries
    async with EventProvider(server.url) as provider:
        small = provider.emit_many("work", [{"n": n} for n in range(500)])
        large = provider.emit_many("work", [{"n": big + str(n)} for n in range(20)])
        heard = {each.job_id: await each for each in (*small, *large)}
        assert [heard[each.job_id]["n"] for each in small] == list(range(500))
        assert [heard[each.job_id]["n"] for each in large] == [big + str(n) for n in range(20)]
        async with EventProvider(server.url) as other:
            assert await other.result(large[0].job_id) == heard[large[0].job_id]
    reconcile(server, heard, journal=journal)


async def test_retries_delays_and_failures_end_as_they_should(
    server: Backend, start_worker: Run, journal: Journal
) -> None:
    start_worker(server)
    async with EventProvider(server.url) as provider:
        began = time.monotonic()
        good = provider.emit_many("flaky", [{"good": 1}, {"good": 2}, {"good": 3}])
        late = provider.emit("work", {"n": 1}, delay="1s")
        bad = provider.emit("flaky", {"good": 9}, retry=Retry(attempts=2, delay=0))
        with pytest.raises(HandlerError) as failed:
            await bad
        assert (failed.value.type_name, failed.value.remote_message) == ("ConnectionError", "attempt 2")
        assert [(await each)["attempt"] for each in good] == [1, 2, 3]
        assert (await late)["n"] == 1
        assert time.monotonic() - began >= 1
    audit = Audit(server)
    assert (audit.problems, audit.left_open()) == ([], {})
    assert audit.jobs[bad.job_id].state == "failed"
    assert [audit.jobs[each.job_id].attempts for each in (*good, late, bad)] == [0, 1, 2, 0, 2]
    assert [journal.runs()[each.job_id] for each in (*good, late, bad)] == [1, 2, 3, 1, 2]


async def test_each_group_gets_every_emission_and_one_of_a_key(server: Backend) -> None:
    provider = EventProvider(server.url)
    seen: dict[str, list[int]] = {"mail": [], "billing": []}

    @provider.on("placed")
    async def answer(n: int) -> int:
        return n + 1

    @provider.on("placed", group="mail")
    async def mail(n: int) -> None:
        seen["mail"].append(n)

    @provider.on("placed", group="billing")
    async def bill(n: int, ctx: EventContext) -> None:
        await ctx.progress(50)
        seen["billing"].append(n)

    async with provider.worker():
        emissions = provider.emit_many("placed", range(200))
        assert [await each for each in emissions] == [n + 1 for n in range(200)]
        keyed = [provider.emit("placed", 1000, idempotency_key="k") for _ in range(20)]
        assert [await each for each in keyed] == [1001] * 20
        expected = [*range(200), 1000]
        await until("the groups have all", lambda: all(sorted(each) == expected for each in seen.values()))
        await until("all is recorded", lambda: Audit(server).left_open() == {})
    audit = Audit(server)
    assert audit.problems == []
    assert len(audit.jobs) == 3 * 201


async def test_an_idle_worker_asks_the_server_little_and_answers(
    server: Backend, proxy: Proxy, start_behind: Run
) -> None:
    worker = start_behind()
    async with EventProvider(server.url) as provider:
        await provider.emit("work", {"n": 0})
        await until("it waits for work", lambda: proxy.calls["BZPOPMIN"], story=worker.story)
        before, began = proxy.calls.total(), time.monotonic()
        await last(4)
        calls = proxy.calls.total() - before
        assert calls <= 2 * (time.monotonic() - began), "commands of an idle worker"
        await provider.emit("work", {"n": 1})
