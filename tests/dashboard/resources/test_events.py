"""Events and emissions: what may be emitted, with which payload, once for each key."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any

import msgspec
import pytest

from eventbus import Event, EventProvider, Retry, Sensitive
from eventbus.dashboard import Actor
from eventbus.dashboard.desk.events.schemas import fields_of, payload_of, schema_of

Open = Callable[..., Any]


class _Size(Enum):
    SMALL = "s"
    LARGE = "l"


class _Order(msgspec.Struct):
    order_id: int
    name: str = "Ada"
    is_gift: bool = False
    size: _Size = _Size.SMALL
    weight: float | None = None
    card: Annotated[str, Sensitive()] = "none"


class _Nested(msgspec.Struct):
    order: _Order
    lines: list[int] = []


PLACED: Event[_Order, int] = Event("placed", payload=_Order, result=int)


@pytest.fixture
def placed(provider: EventProvider) -> EventProvider:
    """A provider that handles `placed` in two groups."""

    @provider.on(PLACED, retry=Retry(attempts=1))
    async def place(order: _Order) -> int:
        if order.order_id < 0:
            raise ValueError(f"{order.card} was refused")
        return order.order_id

    @provider.on(PLACED, group="mail")
    async def mail(order: _Order) -> int:
        return 0

    return provider


async def test_events_are_listed_with_groups_and_schema(placed: EventProvider, open_dashboard: Open) -> None:
    client = open_dashboard(placed)
    async with placed.worker():
        told = (await client.get("/api/v1/events/placed")).json()
        assert [(each["group"], each["workers"]) for each in told["groups"]] == [("default", 1), ("mail", 1)]
        assert told["payload_schema"]["$defs"]["_Order"]["required"] == ["order_id"]
        (row,) = (await client.get("/api/v1/events")).json()["events"]
        assert (row["name"], row["may"]) == ("placed", ["event.emit"])
        page = (await client.get("/events/placed")).text
    for part in (
        'name="f.order_id"',
        'type="checkbox" name="f.is_gift"',
        '<select name="f.size">',
        "placed@mail",
    ):
        assert part in page
    assert "<textarea" not in page
    assert (await client.get("/api/v1/events/unknown")).status_code == 404


async def test_an_emission_that_is_due_later_is_answered_when_the_wait_is_over(
    placed: EventProvider, open_dashboard: Open
) -> None:
    client, body = open_dashboard(placed), {"event": "placed", "payload": {"order_id": 1}, "wait": "50ms"}
    for later in ({"delay": "1h"}, {"idempotency_key": "one", "delay": "1h"}, {"idempotency_key": "one"}):
        answer = await client.act("/emissions", **body, **later)
        assert (answer.status_code, answer.json()["value"]["state"]) == (200, "delayed"), later


async def test_an_emission_waits_for_its_result_and_happens_once_for_each_key(
    placed: EventProvider, open_dashboard: Open
) -> None:
    client, other = open_dashboard(placed), open_dashboard(placed)
    async with placed.worker():
        body = {"event": "placed", "payload": {"order_id": 7}}
        key = {"idempotency-key": "k-1"}
        first = (await client.post("/api/v1/emissions?wait=5s", json=body, headers=key)).json()
        assert first["changed"]
        assert first["value"] == {"state": "completed", "result": 7, "error": ""}
        again = (await other.post("/api/v1/emissions?wait=5s", json=body, headers=key)).json()
        assert (again["changed"], again["job_id"]) == (False, first["job_id"]), "also of another process"
        body = {"event": "placed", "payload": {"order_id": -1, "card": "4111111111111111"}}
        failed = (await client.post("/api/v1/emissions?wait=5s", json=body)).text
        assert '"state":"failed"' in failed
        assert "4111" not in failed


async def test_a_second_call_with_a_key_tells_what_became_of_the_job_by_then(
    placed: EventProvider, open_dashboard: Open
) -> None:
    client, key = open_dashboard(placed), {"idempotency-key": "k-2"}
    body = {"event": "placed", "payload": {"order_id": 7}}
    first = (await client.post("/api/v1/emissions?wait=100ms", json=body, headers=key)).json()
    assert (first["changed"], first["value"]["state"]) == (True, "waiting")
    async with placed.worker():
        again = (await client.post("/api/v1/emissions?wait=5s", json=body, headers=key)).json()
    assert (again["changed"], again["job_id"]) == (False, first["job_id"])
    assert again["value"] == {"state": "completed", "result": 7, "error": ""}


@pytest.mark.parametrize(
    ("payload", "pointer"),
    [({"order_id": "x"}, "/order_id"), ({}, "/order_id"), ({"order_id": 1, "size": "xl"}, "/size"), ([], "")],
)
async def test_a_bad_payload_is_422_and_names_the_field(
    placed: EventProvider, open_dashboard: Open, payload: Any, pointer: str
) -> None:
    client = open_dashboard(placed)
    answer = await client.act("/emissions", event="placed", payload=payload)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert [each["pointer"] for each in answer.json()["errors"]] == [pointer]
    assert (await placed.inspector.queues.count("placed"))["waiting"] == 0


async def test_what_cannot_be_emitted_is_refused_before(placed: EventProvider, open_dashboard: Open) -> None:
    client = open_dashboard(placed)
    for body, status in (
        ({"event": "plcaed"}, 404),
        ({"event": "placed", "payload": {"order_id": 1}, "wait": "1 hour"}, 422),
        ({"event": "placed", "payload": {"order_id": 1, "card": "•••0123abcd"}}, 422),
        ({"event": "placed", "payload": {"order_id": 1}, "delay": "soon"}, 422),
        ({"event": "placed", "payload": {"order_id": 1}, "priority": 9999}, 422),
        ({}, 422),
    ):
        answer = await client.act("/emissions", **body)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), (
            body
        )
    page = await client.post("/events/placed/emit", data={"f.order_id": "seven"})
    assert page.status_code == 422
    assert "order_id" in page.text


async def test_check_24_a_form_emits_once_without_scripts(
    placed: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(placed)
    form = {
        "f.order_id": "7",
        "f.is_gift": "true",
        "f.size": '"l"',
        "f.name": "Bo",
        "_once": "a",
        "delay": "1h",
    }
    answers = [await client.post("/events/placed/emit", data=form) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [303, 303]
    job_id = answers[1].headers["location"].removeprefix("/jobs/").partition("?")[0]
    report = await placed.inspector.jobs.get(job_id)
    assert report.payload == {
        "order_id": 7, "name": "Bo", "is_gift": True, "size": "l", "weight": None,
        "card": report.payload["card"],
    }  # fmt: skip
    assert (await placed.inspector.queues.count("placed"))["delayed"] == 1


async def test_check_19_who_may_not_emit_has_no_form_and_is_refused(
    placed: EventProvider, open_dashboard: Open
) -> None:
    actions = {"*": {"event.emit": "admin"}, "payout": {"queue.read": "admin"}}
    viewer = open_dashboard(placed, sign_in=lambda _: Actor("viewer"), actions=actions)
    await placed.emit("payout", 1, reply=False).enqueued()
    assert "Emit the event" not in (await viewer.get("/events/placed")).text
    assert (await viewer.act("/emissions", event="placed", payload={"order_id": 1})).status_code == 403
    assert (await viewer.post("/events/placed/emit", data={"f.order_id": "1"})).status_code == 403
    for path in ("/events/payout", "/api/v1/events/payout"):
        assert (await viewer.get(path)).status_code == 404
    assert (await viewer.act("/emissions", event="payout")).status_code == 404
    assert "payout" not in (await viewer.get("/events")).text
    reader = open_dashboard(placed, read_only=True)
    assert (await reader.act("/emissions", event="placed", payload={"order_id": 1})).status_code == 403


def test_a_form_has_fields_for_flat_types_alone() -> None:
    fields = fields_of(schema_of(_Order))
    assert fields is not None
    assert [(each.name, each.kind, each.is_needed) for each in fields] == [
        ("order_id", "integer", True),
        ("name", "text", False),
        ("is_gift", "flag", False),
        ("size", "choice", False),
        ("weight", "number", False),
        ("card", "text", False),
    ]
    assert fields_of(schema_of(_Nested)) is None
    assert fields_of(schema_of(int)) is None
    assert fields_of(schema_of(Any)) is None
    assert payload_of(fields, {"f.order_id": "x", "f.weight": "1.5"}) == {
        "order_id": "x", "is_gift": False, "weight": 1.5
    }  # fmt: skip
