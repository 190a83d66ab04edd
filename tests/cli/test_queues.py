"""`eventbus queues`: pauses queues, resumes and lists them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from typer.testing import Result

from eventbus import Event, EventProvider, Limit

Invoke = Callable[..., Result]
MakeProvider = Callable[..., EventProvider]


def test_a_queue_is_paused_listed_and_resumed(invoke: Invoke) -> None:
    assert (
        invoke("queues", "controls").stdout
        == "no queue is paused or limited, or has a retention of its own\n"
    )
    assert invoke("queues", "pause", "order.placed", "--reason", "audit").stdout == "order.placed is paused\n"
    told = invoke("queues", "pause", "order.placed", "--group", "billing").stdout
    assert told == "order.placed@billing is paused\n"
    head, first, second = (line.split() for line in invoke("queues", "controls").stdout.splitlines())
    assert head == ["queue", "waiting", "running", "limit", "keeps", "paused", "by", "reason"]
    assert (first[:2], first[-1], second[0]) == (
        ["event.order.placed", "0"], "audit", "event.order.placed@billing",
    )  # fmt: skip
    lines = [json.loads(line) for line in invoke("queues", "controls", "--json").stdout.splitlines()]
    assert [each["reason"] for each in lines] == ["audit", ""]
    assert all("@" in each["paused_by"] and each["paused_ms"] > 0 for each in lines)
    assert invoke("queues", "resume", "event.order.placed").stdout == "event.order.placed goes on\n"
    assert invoke("queues", "resume", "order.placed@billing").exit_code == 0
    assert (
        invoke("queues", "controls").stdout
        == "no queue is paused or limited, or has a retention of its own\n"
    )


def test_the_old_name_of_the_list_says_so_and_does_the_same(invoke: Invoke) -> None:
    assert invoke("queues", "pause", "order.placed").exit_code == 0
    old, new = invoke("queues", "orders", "--json"), invoke("queues", "controls", "--json")
    assert (old.stdout, new.stderr) == (new.stdout, "")
    assert old.stderr == "note: eventbus queues orders is deprecated: use eventbus queues controls\n"


def test_a_name_of_nothing_is_refused(invoke: Invoke) -> None:
    result = invoke("queues", "pause", "a b")
    assert result.exit_code == 2
    assert "expected an event, its name or a queue, got: 'a b'" in result.stderr


def test_a_check_names_what_is_paused(invoke: Invoke) -> None:
    assert "paused" not in invoke("check").stdout
    invoke("queues", "pause", "order.placed", "--reason", "audit")
    assert "paused: event.order.placed (by " in invoke("check").stdout


def test_a_queue_is_limited_and_let_go(invoke: Invoke) -> None:
    told = invoke(
        "queues", "limit", "order.placed", "--at-once", "20", "--rate", "100/1s", "--rate", "5000/1m"
    )
    assert told.stdout == "order.placed is limited: 20 at once, 100/1s, 5000/1m\n"
    assert (
        "event.order.placed        0        0  20 at once, 100/1s, 5000/1m"
        in invoke("queues", "controls").stdout
    )
    (line,) = invoke("queues", "controls", "--json").stdout.splitlines()
    limit = json.loads(line)["limit"]
    assert (limit["at_once"], limit["rate"]) == (20, ["100/1s", "5000/1m"])
    told = invoke("queues", "limit", "order.placed", "--remove")
    assert told.stdout == "order.placed has no limit of its own now\n"
    assert (
        invoke("queues", "controls").stdout
        == "no queue is paused or limited, or has a retention of its own\n"
    )


def test_what_a_queue_keeps_is_listed_where_its_event_says_it(
    invoke: Invoke, environment: dict[str, str]
) -> None:
    async def serve() -> None:
        provider = EventProvider(environment["EVENTBUS_URL"], prefix=environment["EVENTBUS_PREFIX"])
        provider.on(Event("bill", keep_completed=(1000, "90 s"), keep_failed="7 days"))(lambda bill: None)
        provider.on(Event("token", keep_completed=0), group="audit")(lambda token: None)
        provider.on("plain")(lambda plain: None)
        async with provider.worker():
            pass

    asyncio.run(serve())
    head, first, second = invoke("queues", "controls").stdout.splitlines()
    assert head.split()[4] == "keeps"
    assert (first.split()[0], second.split()[0]) == ("event.bill", "event.token@audit")
    assert "completed 1000 within 90s, failed 7d" in first
    assert "completed 0 " in second
    lines = [json.loads(line) for line in invoke("queues", "controls", "--json").stdout.splitlines()]
    assert [(each["keep_completed"], each["keep_failed"]) for each in lines] == [
        ({"count": 1000, "age": 90.0}, {"count": None, "age": 604_800.0}),
        ({"count": 0, "age": None}, None),
    ]


def test_a_list_shows_what_bounds_each_key(make_provider: MakeProvider, invoke: Invoke) -> None:
    event = Event("order.placed", payload=str, limit=Limit(by=str, each=5))

    async def limit() -> None:
        async with make_provider() as provider:
            await provider.set_limit(event, Limit(at_once=9, each=5, each_rate="10/1s"))

    asyncio.run(limit())
    assert "9 at once, 5 of each key, 10/1s of each key" in invoke("queues", "controls").stdout


def test_each_key_is_limited_and_what_that_replaces_is_told(invoke: Invoke) -> None:
    told = invoke("queues", "limit", "invoice", "--at-once", "9", "--each", "2", "--each-rate", "10/1s")
    assert told.stdout == "invoice is limited: 9 at once, 2 of each key, 10/1s of each key\n"
    assert "9 at once, 2 of each key, 10/1s of each key" in invoke("queues", "controls").stdout
    told = invoke("queues", "limit", "invoice", "--at-once", "3")
    assert told.stdout == "invoice is limited: 3 at once\n"
    note = "note: this replaces the whole limit; no longer: 2 of each key, 10/1s of each key\n"
    assert note in told.stderr
    assert "no longer" not in invoke("queues", "limit", "invoice", "--at-once", "5").stderr


def test_a_limit_that_says_nothing_is_refused(invoke: Invoke) -> None:
    for words in ([], ["--remove", "--at-once", "3"], ["--at-once", "0"], ["--rate", "x"]):
        result = invoke("queues", "limit", "order.placed", *words)
        assert result.exit_code == 2, words
        assert "expected" in result.stderr


def test_an_order_for_what_nobody_serves_is_given_and_doubted(invoke: Invoke) -> None:
    told = invoke("queues", "pause", "order.plcaed")
    assert told.stdout == "order.plcaed is paused\n"
    assert "note: no worker serves event.order.plcaed of " in told.stderr
    assert told.stderr.endswith("and no job waits there; is the name right, and the server?\n")
    assert "note: no worker serves" in invoke("queues", "limit", "order.plcaed", "--at-once", "3").stderr
    assert invoke("queues", "limit", "order.plcaed", "--remove").stderr == ""


def test_where_nothing_is_ordered_that_is_said(invoke: Invoke) -> None:
    assert (
        invoke("queues", "controls").stdout
        == "no queue is paused or limited, or has a retention of its own\n"
    )
