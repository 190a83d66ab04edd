"""Orders: one that comes again with its key is answered as before.

And what an order does not know is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from eventbus import Event, EventProvider, Limit
from eventbus.dashboard import Actor
from eventbus.dashboard.api.table import ACTS, READS
from eventbus.dashboard.entry.rights import Target
from workflows import WorkflowProvider

Open = Callable[..., Any]


async def _pages(provider: EventProvider) -> list[tuple[str, str, str]]:
    entries = (await provider.inspector.audit.list(limit=50)).entries
    return [(entry.action, entry.outcome, entry.detail) for entry in reversed(entries)]


async def test_another_order_with_the_key_of_one_before_is_refused_and_not_done(
    provider: EventProvider, open_dashboard: Open
) -> None:
    for name in ("a", "b"):
        await provider.pause(name)
    client = open_dashboard(provider)
    key = {"idempotency-key": "one"}

    async def order(path: str, **body: Any) -> Any:
        return await client.post(f"/api/v1{path}", json=body, headers=key)

    first = await order("/emissions", event="a", payload=1)
    again = await order("/emissions", payload=1, event="a")  # the same one, in another order
    assert first.status_code == 200
    assert again.json() == first.json()
    other = [
        await order("/emissions", event="b", payload=1),
        await order("/emissions", event="a", payload=2),
        await order("/emissions", event="b", payload=1, wait="1s"),
    ]
    assert [each.status_code for each in other] == [422, 422, 422]
    assert "'one'" in other[0].json()["detail"]
    assert (await provider.inspector.queues.count("b"))["waiting"] == 0

    assert (await order("/queues/event.a/limits", at_once=5)).status_code == 200
    assert (await order("/queues/event.a/limits", at_once=6)).status_code == 422
    assert (await provider.inspector.queues.controls("a"))[0].limit == Limit(at_once=5)
    assert (
        await order("/queues/event.b/limits", at_once=6)
    ).status_code == 200  # a key counts for its target


async def test_an_order_with_its_key_may_wait_for_the_job_that_it_made(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client, key = open_dashboard(provider), {"idempotency-key": "one"}
    await provider.pause("a")
    body = {"event": "a", "payload": 1}
    first = await client.post("/api/v1/emissions", json=body, headers=key)
    waited = await client.post("/api/v1/emissions?wait=0.1s", json=body, headers=key)
    assert waited.json()["job_id"] == first.json()["job_id"]
    assert waited.json()["value"]["state"] == "waiting"


async def test_rights_are_asked_each_time_also_for_an_answer_that_is_known(
    provider: EventProvider, open_dashboard: Open
) -> None:
    withdrawn = set[str]()

    def may(actor: Actor, action: str, target: Target) -> bool:
        return action not in withdrawn

    job = provider.emit("a", 1, delay="1 hour")
    await job.enqueued()
    client = open_dashboard(provider, may=may)

    async def remove() -> Any:
        return await client.request(
            "DELETE", f"/api/v1/jobs/{job.job_id}", headers={"idempotency-key": "one"}
        )

    first, again = await remove(), await remove()
    assert first.status_code == 200
    assert first.json() == again.json()  # though the job is gone
    withdrawn.add("job.remove")
    refused = await remove()
    assert (refused.status_code, refused.json()["action"]) == (403, "job.remove")
    withdrawn.add("queue.read")
    assert (await remove()).status_code == 404
    told = await _pages(provider)
    assert [outcome for _, outcome, _ in told] == ["changed", "unchanged", "refused"]
    assert "repeat" in told[1][2]


async def test_a_hook_is_asked_each_time_too(provider: EventProvider, open_dashboard: Open) -> None:
    answers = [None, "not now"]
    client = open_dashboard(provider, before={"queue.pause": lambda *_: answers.pop(0)})
    path, key = "/api/v1/queues/event.a/pause", {"idempotency-key": "one"}
    statuses = [(await client.post(path, json={}, headers=key)).status_code for _ in range(2)]
    assert statuses == [200, 403]


async def test_a_dry_run_that_comes_again_counts_again(provider: EventProvider, open_dashboard: Open) -> None:
    client, key = open_dashboard(provider), {"idempotency-key": "one"}
    body = {"state": "delayed", "dry_run": True}
    counts = list[int]()
    for number in range(2):
        await provider.emit("a", number, delay="1 hour").enqueued()
        answer = await client.post("/api/v1/queues/event.a/clean", json=body, headers=key)
        counts.append(answer.json()["value"]["count"])
    assert counts == [1, 2]


def _wrong(order: type[Any]) -> dict[str, Any]:
    """Return an order with a field that it does not have, close to one that it has."""
    name = order.__struct_fields__[0]
    return {f"{name}x": "1"}


@pytest.mark.parametrize("act", ACTS, ids=lambda act: f"{act.method} {act.path}")
async def test_no_order_takes_a_field_that_it_does_not_know(
    act: Any, provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider, flows=WorkflowProvider(provider))
    names = dict.fromkeys(("queue", "job", "failure", "operation", "flow", "signal", "schedule"), "event.a")
    path, wrong = f"/api/v1{act.path.format(**names)}", _wrong(act.order)
    answer = await client.request(act.method, path, json=wrong)
    assert answer.status_code == 422, answer.text
    (error,) = answer.json()["errors"]
    assert error["pointer"] == f"/{next(iter(wrong))}"
    assert f"did you mean {act.order.__struct_fields__[0]}?" in error["detail"]
    asked = await client.request(act.method, f"{path}?reasom=x", json={})
    assert (asked.status_code, "'reasom'" in asked.text or "required" in asked.text) == (422, True), (
        asked.text
    )
    if act.form:
        posted = await client.post(act.form.format(**names), data={**wrong, "_name": "event.a"})
        assert posted.status_code == 422, posted.text
        assert "did you mean" in posted.text


@pytest.mark.parametrize("read", READS, ids=lambda read: read.path)
async def test_no_query_takes_a_parameter_that_it_does_not_know(
    read: Any, provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider, flows=WorkflowProvider(provider))
    names = dict.fromkeys(("queue", "job", "operation", "flow", "schedule", "event"), "event.a")
    answer = await client.get(f"/api/v1{read.path.format(**names)}?stat=failed")
    assert (answer.status_code, "'stat'" in answer.text) == (422, True), answer.text


async def test_a_misspelt_bound_removes_nothing(provider: EventProvider, open_dashboard: Open) -> None:
    await provider.emit("a", 1, delay="1 hour").enqueued()
    client = open_dashboard(provider)
    refused = await client.act("/queues/event.a/clean", state="delayed", older_then="7d", force=True)
    assert refused.status_code == 422
    assert "did you mean older_than?" in refused.json()["detail"]
    page = await client.get("/queues/event.a/bulk?action=remove&state=delayed&older_then=7d")
    assert (page.status_code, "older_than" in page.text) == (422, True)
    twice = await client.get("/api/v1/queues/event.a/jobs?limit=5&limit=6")
    assert (twice.status_code, "twice" in twice.text) == (422, True)
    lost = await client.act("/emissions", event="a", paylod={"x": 1})
    assert (lost.status_code, "did you mean payload?" in lost.text) == (422, True)
    form = await client.post("/events/a/emit", data={"payload": "1", "dealy": "1h"})
    assert (form.status_code, "delay" in form.text) == (422, True)
    assert (await provider.inspector.queues.count("a"))["delayed"] == 1
    assert await provider.inspector.operations.list() == []


async def test_a_limit_of_each_key_can_be_set_and_stays_when_the_form_is_sent_as_it_stands(
    make_provider: Callable[..., EventProvider], open_dashboard: Open
) -> None:
    provider = make_provider()
    event = Event("a", limit=Limit(at_once=9, by=str, each=3))
    provider.on(event)(_nothing)
    async with provider, provider.worker():
        client = open_dashboard(provider)
        done = await client.act(
            "/queues/event.a/limits", at_once=10, each=2, each_rate="5/1m", rate="100/1m, 1000/1h"
        )
        assert done.status_code == 200, done.text
        limit = (await client.get("/api/v1/queues/event.a")).json()["limit"]
        assert (limit["at_once"], limit["each"], limit["each_rate"]) == (10, 2, ["5/1m"])
        page = (await client.get("/queues/event.a")).text
        form = page.partition('action="/queues/event.a/limits"')[2].partition("</form>")[0]
        values = {
            field.partition('"')[0]: field.partition('value="')[2].partition('"')[0]
            for field in form.split('name="')[1:]
        }
        assert (await client.post("/queues/event.a/limits", data=values)).status_code == 303
        assert (await client.get("/api/v1/queues/event.a")).json()["limit"] == limit
        assert (await client.act("/queues/event.a/limits", clear=True, each=1)).status_code == 422


async def _nothing(_: int) -> None: ...


def test_each_order_and_query_is_flat() -> None:
    """So that its own fields are all that must be looked at."""
    for kind in {act.order for act in ACTS} | {read.query for read in READS}:
        told = msgspec.json.schema(kind)["$defs"][kind.__name__]["properties"]
        assert not any("$ref" in str(field) for field in told.values()), kind
