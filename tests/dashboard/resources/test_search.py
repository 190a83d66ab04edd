"""The search: by id, name, key, chain and payload; bounded, and never by what is hidden."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import pytest

from eventbus import Event, EventProvider, Sensitive
from eventbus.admin.jobs import field_search
from eventbus.dashboard import Actor

Open = Callable[..., Any]


class _Order(msgspec.Struct):
    order_id: int
    customer: dict[str, Any]
    holder: Annotated[str, Sensitive()] = "Ada Lovelace"
    token: str = "t-17171717"


ORDER = Event("order", payload=_Order)


async def _orders(provider: EventProvider, count: int) -> list[str]:
    jobs = provider.emit_many(
        ORDER, (_Order(n, {"name": f"C {n}", "tags": ["a", n]}) for n in range(count)), reply=False
    )
    for job in jobs:
        await job.enqueued()
    return [job.job_id for job in jobs]


async def _search(client: Any, **query: Any) -> dict[str, Any]:
    answer = await client.get("/api/v1/search", params=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_a_job_is_found_by_a_field_of_its_payload(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client, ids = open_dashboard(provider), await _orders(provider, 25)
    for q, place in (("order_id:7", 7), ("customer.name:C 12", 12), ("customer.tags.1:3", 3)):
        found = await _search(client, q=q, queue="order")
        assert [job["id"] for job in found["jobs"]] == [ids[place]], q
        assert (found["seen"], found["cursor"]) == (25, None)
    for q in ("order_id:99", "customer.name:C", "customer:x", "order_id.a:7"):
        assert (await _search(client, q=q, queue="order"))["jobs"] == [], q
    assert (await _search(client, q="order_id:7", queue="order", state="failed"))["seen"] == 0
    answer = await client.get("/api/v1/search?q=order_id:7")
    assert (answer.status_code, "name the queue" in answer.text) == (422, True)


async def test_check_23_nothing_is_found_by_a_hidden_field(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider)
    await _orders(provider, 3)
    shown = (await provider.inspector.jobs.list("order", state="waiting")).jobs[0].id
    dots = (await client.get(f"/api/v1/jobs/{shown}")).json()["job"]["payload"]
    assert (await _search(client, q="holder:Ada Lovelace", queue="order"))["jobs"] == []
    for q in ("token:t-17171717", "token:x"):  # refused before anything is looked at, which would tell
        refused = await client.get("/api/v1/search", params={"q": q, "queue": "order"})
        assert (refused.status_code, "'token' are hidden" in refused.json()["detail"]) == (422, True)
    assert dots["token"].startswith("•••")
    everything = open_dashboard(provider, redact="none")
    assert len((await _search(everything, q="token:t-17171717", queue="order"))["jobs"]) == 3
    assert (await _search(everything, q="holder:Ada Lovelace", queue="order"))["jobs"] == []


async def test_a_long_search_says_what_it_has_seen_and_goes_on(
    provider: EventProvider, open_dashboard: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(field_search, "MOST_SEEN", 1000)
    client, ids = open_dashboard(provider), await _orders(provider, 2300)
    query, seen, found = {"q": "order_id:2250", "queue": "order"}, 0, []
    for _ in range(5):
        told = await _search(client, **query)
        seen, found = seen + told["seen"], found + told["jobs"]
        if told["cursor"] is None:
            break
        query["cursor"] = told["cursor"]
    assert (seen, [job["id"] for job in found]) == (2300, [ids[2250]])
    page = (await client.get("/find", params={"q": "order_id:2250", "queue": "order"})).text
    assert "1000 jobs were looked at, and there are more" in page


async def test_jobs_are_found_by_id_key_chain_and_queues_by_a_part_of_their_name(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider)
    job = provider.emit("paid", 1, idempotency_key="k 7", correlation_id="chain-1", reply=False)
    await job.enqueued()
    for q in (job.job_id, "key:k 7", "correlation-id:chain-1", "correlation:chain-1"):
        assert [each["id"] for each in (await _search(client, q=q))["jobs"]] == [job.job_id], q
    assert (await _search(client, q="PAI"))["queues"] == ["event.paid"]
    assert (await client.get(f"/find?q={job.job_id}")).headers["location"] == f"/jobs/{job.job_id}"
    assert (await client.get("/find?q=pai")).headers["location"] == "/queues/event.paid"
    assert "Nothing was found" in (await client.get("/find?q=nothing")).text
    assert (await client.get("/find?q=a:b")).status_code == 422
    assert (await client.get("/api/v1/search")).status_code == 422


async def test_check_19_a_hidden_queue_is_in_no_search(provider: EventProvider, open_dashboard: Open) -> None:
    actions = {"payout": {"queue.read": "admin"}, "order": {"payload.read": "admin"}}
    viewer = open_dashboard(provider, sign_in=lambda _: Actor("viewer"), actions=actions)
    job = provider.emit("payout", {"n": 1}, idempotency_key="k", correlation_id="c-1", reply=False)
    await job.enqueued()
    for q in (job.job_id, "key:k", "correlation-id:c-1", "payout"):
        found = await _search(viewer, q=q)
        assert (found["jobs"], found["queues"]) == ([], []), q
    assert (await viewer.get("/api/v1/search?q=n:1&queue=payout")).status_code == 404
    assert "payout" not in (await viewer.get("/find?q=x")).text
    await _orders(provider, 1)
    assert (await viewer.get("/api/v1/search?q=order_id:0&queue=order")).status_code == 403
