"""`eventbus queues list` and `eventbus workers`: all queues and all workers as tables, as JSON, and again and
again.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable

import pytest
from drivers.program import Program
from typer.testing import Result

from eventbus import EventProvider

Invoke = Callable[..., Result]
MakeProvider = Callable[..., EventProvider]


def _emit(make_provider: MakeProvider, event: str, count: int, **options: str) -> None:
    async def emit() -> None:
        async with make_provider() as provider:
            for n in range(count):
                await provider.emit(event, n, reply=False, delay=options.get("delay"))

    asyncio.run(emit())


def test_all_queues_are_a_table_and_lines_of_json(make_provider: MakeProvider, invoke: Invoke) -> None:
    nothing = "no queue is known: nothing was emitted, and no worker serves anything\n"
    assert invoke("queues").stdout == invoke("queues", "list").stdout == nothing
    _emit(make_provider, "order", 2)
    _emit(make_provider, "later", 1, delay="1 hour")
    invoke("queues", "pause", "order", "--reason", "audit")
    head, later, order = (line.split() for line in invoke("queues").stdout.splitlines())
    assert head == [
        *("queue", "oldest", "waiting", "delayed", "active", "parked", "failed", "cancelled", "completed"),
        *("workers", "completed/min", "failed/min", "paused", "limit"),
    ]
    assert later == ["event.later", "-", *"0100000000", "-", "-"]
    assert (order[0], order[3:13]) == ("event.order", list("2000000000"))
    assert "by" in order
    assert invoke("queues", "--json").stdout.count("\n") == 2
    lines = [json.loads(line) for line in invoke("queues", "list", "--json").stdout.splitlines()]
    assert [(each["name"], each["waiting"], each["delayed"]) for each in lines] == [
        ("event.later", 0, 1),
        ("event.order", 2, 0),
    ]
    assert lines[1]["paused"]["reason"] == "audit"
    (line,) = invoke("queues", "list", "later", "--json").stdout.splitlines()
    assert json.loads(line)["event"] == "later"


def test_workers_are_a_table_and_lines_of_json(make_provider: MakeProvider, invoke: Invoke) -> None:
    assert invoke("workers").stdout == "no worker was heard in the last 10 minutes\n"

    async def serve() -> tuple[Result, Result]:
        provider = make_provider(name="shop")
        for name in ("a", "b", "c", "d"):
            provider.on(name)(lambda n: None)
        async with provider.worker():
            return await asyncio.to_thread(invoke, "workers"), await asyncio.to_thread(
                invoke, "workers", "--json"
            )

    table, lines = asyncio.run(serve())
    head, shop = table.stdout.splitlines()
    assert head.split() == [
        *("worker", "name", "host", "pid", "version", "running", "most", "lag", "up", "heard", "queues")
    ]
    assert shop.split()[1] == "shop"
    assert shop.rstrip().endswith("event.a, event.b, event.c and 1 more")
    assert json.loads(lines.stdout)["queues"] == ["event.a", "event.b", "event.c", "event.d"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["workers"], "no worker was heard in the last 10 minutes"),
        (["groups"], "no groups beside default"),
        (["schedules", "list"], "no schedules"),
        (["schedules"], "no schedules"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_a_list_is_shown_again_and_again_until_it_is_interrupted(
    start: Callable[..., Program], words: list[str], shown: str
) -> None:
    program = start(*words, "--watch")
    for _ in range(2):
        program.wait_for(shown)
    program.send(signal.SIGINT)
    assert program.wait() == 130


def test_top_shows_the_fleet_at_a_glance(
    make_provider: MakeProvider, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventbus.cli.controls.overview._ROWS", 1)
    _emit(make_provider, "order", 2)
    _emit(make_provider, "later", 1, delay="1 hour")
    told = invoke("top", "--once").stdout.splitlines()
    assert "2 queues: 2 waiting, 1 delayed, 0 active, 0 failed  0 workers: no slots taken" in told[0]
    assert told[3].startswith("event.order"), "the queue whose jobs wait longest comes first"
    assert told[4].rstrip() == "and 1 queue more"
    assert told[5].rstrip() == "no worker was heard in the last 10 minutes"
    glance = json.loads(invoke("top", "--once", "--json").stdout)
    assert glance["at_ms"] > 0
    assert [each["name"] for each in glance["queues"]] == ["event.later", "event.order"]
    assert glance["workers"] == []


@pytest.mark.slow
def test_top_is_shown_until_it_is_interrupted(start: Callable[..., Program]) -> None:
    program = start("top", "--json")
    for _ in range(2):
        program.wait_for('"workers":[]')
    program.send(signal.SIGINT)
    assert program.wait() == 130


def test_jobs_are_found_by_key_and_by_correlation_id(make_provider: MakeProvider, invoke: Invoke) -> None:
    async def emit() -> str:
        async with make_provider() as provider:
            emission = provider.emit("order", 1, idempotency_key="o 1", correlation_id="chain 7", reply=False)
            await emission.enqueued()
            return emission.job_id

    job = asyncio.run(emit())
    for words in (("order", "--key", "o 1"), ("--correlation-id", "chain 7")):
        head, line = invoke("jobs", "find", *words).stdout.splitlines()
        assert head.split() == ["job", "queue", "state", "emitted", "ended", "error"]
        assert line.split()[:3] == [job, "event.order", "waiting"]
        (found,) = json.loads(invoke("jobs", "find", *words, "--json").stdout)["jobs"]
        assert found["id"] == job
    assert invoke("jobs", "find", "order", "--key", "none").stdout == "no job was found\n"
    assert invoke("jobs", "find", "order").exit_code == 2


def test_finished_jobs_are_listed_by_time(make_provider: MakeProvider, invoke: Invoke) -> None:
    invoke("queues", "pause", "order")  # so that it is known
    assert "no job is failed" in invoke("jobs", "list", "order", "--state", "failed", "--since", "1h").stdout
    refused = invoke("jobs", "list", "order", "--since", "1h")
    assert refused.exit_code == 2
    assert "expected since with state completed, failed or cancelled" in refused.stderr
