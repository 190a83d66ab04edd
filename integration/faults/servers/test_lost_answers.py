"""Connections that break after a command was sent and before its answer came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from checks.audit import reconcile
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.load import Load
from harness.programs import Program
from harness.proxy import Proxy

from eventbus import EventProvider

Run = Callable[..., Program]
Gates = Callable[[str], None]


def check_each_ran_once(load: Load, server: Backend, journal: Journal) -> None:
    assert load.errors() == []
    audit = reconcile(server, load.results(), journal=journal)
    assert {record.stalls for record in audit.jobs.values()} == {0}
    assert set(journal.runs().values()) == {1}


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_add_whose_answer_is_lost_adds_nothing_twice(
    when: str, server: Backend, proxy: Proxy, start_worker: Run, journal: Journal
) -> None:
    start_worker(server)
    async with EventProvider(proxy.url) as provider:
        proxy.cut("add", every=5, when=when)  # type: ignore[arg-type]
        load = Load(provider)
        await until("30 connections were cut", lambda: proxy.cuts["add"] >= 30)
        await load.end()
    check_each_ran_once(load, server, journal)


async def test_keys_whose_adds_are_repeated_stay_one_job_each(
    server: Backend, proxy: Proxy, start_worker: Run, journal: Journal
) -> None:
    start_worker(server)
    async with EventProvider(proxy.url) as provider:
        proxy.cut("add", every=2)
        heard: dict[str, object] = {}
        for n in range(20):
            emissions = [provider.emit("work", {"n": n}, idempotency_key=f"k-{n}") for _ in range(10)]
            results = [await each for each in emissions]
            assert len({each.job_id for each in emissions}) == 1
            assert all(result == results[0] for result in results)
            heard[emissions[0].job_id] = results[0]
        assert proxy.cuts["add"] >= 10
    reconcile(server, heard, journal=journal)
    assert set(journal.runs().values()) == {1}


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_turn_whose_answer_is_lost_claims_and_settles_nothing_twice(
    when: str, server: Backend, proxy: Proxy, start_behind: Run, journal: Journal
) -> None:
    worker = start_behind()
    proxy.cut("turn", every=5, when=when)  # type: ignore[arg-type]
    async with EventProvider(server.url) as provider:
        load = Load(provider)
        await until("30 connections were cut", lambda: proxy.cuts["turn"] >= 30, story=worker.story)
        await load.end()
    check_each_ran_once(load, server, journal)
    assert worker.complaints() == []


@pytest.mark.servers("one")
async def test_renewals_whose_answers_are_lost_keep_the_leases(
    server: Backend, proxy: Proxy, start_behind: Run, start_worker: Run, gates: Gates, journal: Journal
) -> None:
    worker = start_behind(lease="1s")
    async with EventProvider(server.url) as provider:
        emissions = provider.emit_many("hold", [{"gate": "open"}] * 20)
        await until("all run", lambda: len(journal.read("began")) == 20, story=worker.story)
        start_worker(server, lease="1s")  # one that would rescue them
        proxy.cut("renew", every=2)
        await until("renewals were cut over 3 leases", lambda: proxy.cuts["renew"] >= 6, story=worker.story)
        gates("open")
        heard = {each.job_id: await each for each in emissions}
    audit = reconcile(server, heard, journal=journal)
    assert {record.stalls for record in audit.jobs.values()} == {0}
    assert set(journal.runs().values()) == {1}


async def test_whatever_command_the_connections_break_at_each_job_runs_once(
    server: Backend, proxy: Proxy, start_behind: Run, journal: Journal
) -> None:
    worker = start_behind(lease="2s")
    async with EventProvider(proxy.url) as provider:
        proxy.cut("turn", "add", every=13)
        proxy.cut("renew", "rescue", "look", "announce", "EXPIRE", "XTRIM", every=3)
        proxy.cut("XREAD", every=17)
        load = Load(provider, loops=40)
        await until("100 connections were cut", lambda: proxy.cuts.total() >= 100, story=worker.story)
        await load.end()
    assert {"turn", "add", "XREAD"} <= set(proxy.cuts)
    check_each_ran_once(load, server, journal)


@pytest.mark.servers("one")
async def test_connections_that_went_mute_are_noticed_and_replaced(
    server: Backend, proxy: Proxy, start_behind: Run, journal: Journal
) -> None:
    worker = start_behind()
    async with EventProvider(proxy.url) as provider:
        load = Load(provider, loops=5)
        await load.wait_answered(50, story=worker.story)
        proxy.mute()
        await load.wait_answered(50, story=worker.story)
        await load.end()
    check_each_ran_once(load, server, journal)


@pytest.mark.servers("one")
async def test_a_network_that_is_away_for_three_leases_takes_no_job_away(
    server: Backend, proxy: Proxy, start_behind: Run, gates: Gates, journal: Journal
) -> None:
    lease = 1.0
    worker = start_behind(lease=lease)
    async with EventProvider(proxy.url, lease=lease) as provider:
        emissions = provider.emit_many("hold", [{"gate": "open"}] * 20)
        await until("all run", lambda: len(journal.read("began")) == 20, story=worker.story)
        proxy.go_down()
        await asyncio.sleep(3 * lease)
        proxy.come_up()
        gates("open")
        heard = {each.job_id: await each for each in emissions}
    audit = reconcile(server, heard, journal=journal)
    assert {record.stalls for record in audit.jobs.values()} == {0}
    assert set(journal.runs().values()) == {1}
