"""A misspelt name in a reading command: it is told, with the server and the names that are close."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from drivers.program import Program
from typer.testing import Result

from eventbus import EventProvider

Invoke = Callable[..., Result]
MakeProvider = Callable[..., EventProvider]

_LINES = [
    ["queues", "list", "{}"],
    ["queues", "list", "{}", "--json"],
    ["queues", "history", "{}"],
    ["jobs", "count", "{}"],
    ["jobs", "count", "{}", "--json"],
    ["jobs", "list", "{}", "--state", "failed"],
    ["jobs", "failures", "{}"],
    ["jobs", "find", "{}", "--key", "k"],
    ["jobs", "find", "{}", "--correlation-id", "c"],
    ["jobs", "find", "{}", "--field", "id:7"],
    ["jobs", "retry-all", "{}", "--dry-run"],
    ["jobs", "purge", "{}", "--dry-run"],
    ["groups", "{}"],
    ["groups", "{}", "--json"],
]


def _empty_queue(make_provider: MakeProvider) -> None:
    """Make a queue that is known, and empty."""

    async def make() -> None:
        async with make_provider() as provider:
            emission = provider.emit("order.placed", 1, delay="1 hour", reply=False)
            await emission.enqueued()
            assert await provider.inspector.jobs.remove(emission.job_id)

    asyncio.run(make())


@pytest.mark.parametrize("words", _LINES, ids=" ".join)
def test_a_misspelt_name_is_told_with_the_server_and_the_close_names(
    make_provider: MakeProvider, invoke: Invoke, server_url: str, words: list[str]
) -> None:
    _empty_queue(make_provider)
    ran = invoke(*(word.format("order.plcaed") for word in words))
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert ran.stderr == (
        f"eventbus: there is no queue event.order.plcaed on the server {server_url}; "
        "did you mean order.placed?\n"
    )
    ran = invoke(*(word.format("zzz") for word in words))
    assert ran.exit_code == 1
    assert ran.stderr.endswith("; `eventbus queues` lists all\n")


@pytest.mark.parametrize("words", _LINES, ids=" ".join)
def test_a_queue_that_is_known_and_empty_is_no_mistake(
    make_provider: MakeProvider, invoke: Invoke, server_url: str, words: list[str]
) -> None:
    _empty_queue(make_provider)
    ran = invoke(*(word.format("order.placed") for word in words))
    assert ran.exit_code == 0
    assert ran.stderr == "" or ran.stderr.startswith(f"asked {server_url} (prefix ")


def test_a_misspelt_group_is_told_with_the_close_one(
    make_provider: MakeProvider, invoke: Invoke, server_url: str
) -> None:
    async def plant() -> None:
        async with make_provider() as provider:
            await provider.add_group("order.placed", "billing")

    asyncio.run(plant())
    for words in (
        ("jobs", "count", "order.placed@biling"),
        ("jobs", "list", "order.placed", "--group", "biling"),
        ("queues", "history", "order.placed", "--group", "biling"),
        ("queues", "list", "order.placed@biling"),
        ("jobs", "failures", "order.placed@biling"),
    ):
        ran = invoke(*words)
        assert (ran.exit_code, ran.stdout) == (1, "")
        assert ran.stderr == (
            f"eventbus: there is no queue event.order.placed@biling on the server {server_url}; "
            "did you mean order.placed@billing?\n"
        )
        assert invoke(*(word.replace("biling", "billing") for word in words)).exit_code == 0


@pytest.mark.parametrize("word", ["show", "pause", "resume", "run", "remove"])
def test_a_misspelt_schedule_is_told_with_the_close_one(
    make_provider: MakeProvider, invoke: Invoke, server_url: str, word: str
) -> None:
    async def plant() -> None:
        async with make_provider() as provider:
            await provider.schedules.add("tick", id="nightly", cron="0 3 * * *")

    asyncio.run(plant())
    ran = invoke("schedules", word, "nightyl")
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert ran.stderr == (
        f"eventbus: there is no schedule nightyl on the server {server_url}; did you mean nightly?\n"
    )
    ran = invoke("schedules", word, "zzz")
    assert ran.exit_code == 1
    assert ran.stderr.endswith("; `eventbus schedules` lists all\n")


def test_an_emission_of_an_event_that_nobody_knows_is_made_and_noted(
    make_provider: MakeProvider, invoke: Invoke, server_url: str
) -> None:
    async def plant() -> None:
        async with make_provider() as provider:
            await provider.emit("order.placed", 1, reply=False)
            await provider.add_group("paid", "billing")

    asyncio.run(plant())
    ran = invoke("emit", "order.plcaed", "1")
    assert ran.exit_code == 0
    assert ran.stderr == (
        f"note: event order.plcaed was not known on the server {server_url}: no worker serves it, "
        "and it had no job; did you mean order.placed?\n"
    )
    (job,) = ran.stdout.split()
    assert invoke("jobs", "show", job).exit_code == 0
    for known in ("order.plcaed", "order.placed", "paid"):
        assert invoke("emit", known, "1").stderr == "", "it is known: by a job, or by a group"
    ran = invoke("emit", "zzz", "--lines", "-", said="1\n2\n")
    note, summary = ran.stderr.splitlines()
    assert note.endswith("no worker serves it, and it had no job; `eventbus queues` lists all")
    assert summary.startswith("2 emissions of zzz enqueued")


@pytest.mark.slow
def test_whoever_follows_a_queue_that_nobody_knows_is_told_and_follows_it(
    make_provider: MakeProvider, start: Callable[..., Program], server_url: str
) -> None:
    program = start("watch", "later", "--count", "1")
    program.wait_for(f"note: there is no queue event.later on the server {server_url}")
    _emit_until(make_provider, program)
    assert program.wait() == 0


def _emit_until(make_provider: MakeProvider, program: Program) -> None:
    """Emit until the program has ended: what came before its watch began is not told to it."""

    async def emit() -> None:
        async with make_provider() as provider:
            while program.process.poll() is None:
                await provider.emit("later", 1, reply=False)
                await asyncio.sleep(0.05)

    asyncio.run(emit())
