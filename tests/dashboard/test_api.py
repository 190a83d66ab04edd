"""The management API: the checks 6, 7, 9, 12 and 25 of the dashboard's acceptance, as far as they need no
browser.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from eventbus import Event, EventProvider, Limit
from eventbus.admin.queues import Queues
from eventbus.dashboard.api.openapi import describe
from eventbus.dashboard.problem import STATUSES

Open = Callable[..., Any]


async def test_check_25_the_description_has_each_route_and_no_other(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider)
    served = (await client.get("/api/v1/openapi.json")).json()
    assert served == describe_as_json()
    described = {
        (method.upper(), "/api/v1" + path.rstrip("/"))
        for path, methods in served["paths"].items()
        for method in methods
    }
    routes = {
        (method, path)
        for path, (_, handlers) in client._transport.app._routes.items()
        for method in handlers
        if path.startswith("/api/")
    }
    assert described == routes


def describe_as_json() -> Any:
    import msgspec

    return msgspec.json.decode(msgspec.json.encode(describe()))


def test_check_25_the_description_holds_together() -> None:
    document = describe_as_json()
    assert document["openapi"] == "3.1.0"
    schemas = document["components"]["schemas"]
    refs = re.findall(r"'#/components/schemas/(\w+)'", str(document))
    assert refs
    assert set(refs) <= set(schemas)
    for path, methods in document["paths"].items():
        names = set(re.findall(r"\{(\w+)\}", path))
        for operation in methods.values():
            given = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert given == names, path
            told = {200, *STATUSES} - ({412, 415} if "requestBody" not in operation else set())
            assert {int(status) for status in operation["responses"]} == told


async def test_check_25_each_error_is_a_problem(provider: EventProvider, open_dashboard: Open) -> None:
    job = provider.emit("a", 1, delay="1 hour")
    await job.enqueued()
    client = open_dashboard(provider)
    path = f"/api/v1/jobs/{job.job_id}"
    answers = {
        404: [
            await client.get("/api/v1/nothing"),
            await client.get("/api/v1/jobs/unknown"),
            await client.get("/api/v1/schedules/unknown"),
            await client.get("/api/v1/flows"),
            await client.get("/api/v1/flows/checkout~1"),
            await client.get("/api/v1/jobs/a%00b"),
        ],
        405: [await client.put(path), await client.get(f"{path}/cancel"), await client.options(path)],
        415: [await client.post(f"{path}/cancel", content="{}")],
        422: [
            await client.get("/api/v1/queues/event.a/jobs?state=lost"),
            await client.get("/api/v1/queues/event.a/jobs?limit=0"),
            await client.get("/api/v1/queues/event.a/jobs?limit=many"),
            await client.get("/api/v1/queues/event.a/jobs?cursor=bm9uZQ=="),
            await client.get("/api/v1/queues/%C3%BC"),
            await client.get("/api/v1/schedules/%20"),
            await client.act(f"/jobs/{job.job_id}/delay"),
            await client.act(f"/jobs/{job.job_id}/delay", delay="soon"),
            await client.act(f"/jobs/{job.job_id}/delay", delay=5),
            await client.act(f"/jobs/{job.job_id}/priority", priority=4001),
            await client.act(f"/jobs/{job.job_id}/cancel", reason="x" * 513),
            await client.act("/queues/event.a/limits"),
            await client.act("/queues/event.a/limits", rate="often"),
            await client.act("/queues/event.a/limits", at_once=0),
            await client.post(f"{path}/cancel", content="{", headers={"content-type": "application/json"}),
            await client.post(f"{path}/cancel", content="[]", headers={"content-type": "application/json"}),
            await client.post(
                f"{path}/cancel", content="[" * 100_000, headers={"content-type": "application/json"}
            ),
        ],
    }
    for status, given in answers.items():
        for answer in given:
            assert answer.status_code == status, answer.text
            assert answer.headers["content-type"] == "application/problem+json"
            told = answer.json()
            assert told["status"] == status
            assert told["title"] == STATUSES[status]
            assert told["instance"].endswith(answer.headers["x-request-id"])
    assert answers[405][1].headers["allow"] == "POST"
    assert answers[422][6].json()["errors"][0]["detail"]


async def test_check_25_an_action_sent_again_changes_nothing_more(
    provider: EventProvider, open_dashboard: Open
) -> None:
    job = provider.emit("a", 1, delay="1 hour")
    await job.enqueued()
    await provider.schedules.add("a", id="nightly", cron="0 0 1 1 *")
    client = open_dashboard(provider)
    orders: list[tuple[str, dict[str, Any]]] = [
        ("/queues/event.a/pause", {"reason": "provider down"}),
        ("/queues/event.a/resume", {}),
        ("/queues/event.a/limits", {"at_once": 3, "rate": ["10/1m"]}),
        ("/queues/event.a/limits", {"clear": True}),
        ("/schedules/nightly/pause", {}),
        ("/schedules/nightly/resume", {}),
        (f"/jobs/{job.job_id}/promote", {}),
        (f"/jobs/{job.job_id}/cancel", {"reason": "not wanted"}),
    ]
    for path, order in orders:
        first, second = await client.act(path, **order), await client.act(path, **order)
        assert (first.status_code, second.status_code) == (200, 200), first.text
        assert (first.json()["changed"], second.json().get("changed")) == (True, False), path
    assert (await provider.inspector.jobs.get(job.job_id)).state == "cancelled"

    headers = {"idempotency-key": "run-1"}
    runs = [
        (await client.post("/api/v1/schedules/nightly/run", json={}, headers=headers)).json()
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert (await provider.inspector.queues.count("a"))["waiting"] == 1
    removed = [(await client.delete("/api/v1/schedules/nightly")).status_code for _ in range(2)]
    assert removed == [200, 404]


async def test_two_clicks_on_one_form_are_one_action(provider: EventProvider, open_dashboard: Open) -> None:
    await provider.schedules.add("a", id="nightly", cron="0 0 1 1 *")
    client = open_dashboard(provider)
    page = (await client.get("/schedules/nightly")).text
    once = page.partition('name="_once" value="')[2].partition('"')[0]
    assert once
    clicks = [client.post("/schedules/nightly/run", data={"_once": once}) for _ in range(2)]
    assert [each.status_code for each in await asyncio.gather(*clicks)] == [303, 303]
    assert (await provider.inspector.queues.count("a"))["waiting"] == 1


async def test_a_schedule_is_removed_by_a_form_only_with_its_name(
    provider: EventProvider, open_dashboard: Open
) -> None:
    await provider.schedules.add("a", id="nightly", cron="0 0 1 1 *")
    client = open_dashboard(provider)
    assert (await client.post("/schedules/nightly/remove", data={"_name": "night"})).status_code == 422
    done = await client.post("/schedules/nightly/remove", data={"_name": "nightly"})
    assert (done.status_code, done.headers["location"]) == (303, "/schedules?done=changed")
    assert await provider.schedules.list() == []


async def test_a_waiting_job_is_delayed_and_goes_first(provider: EventProvider, open_dashboard: Open) -> None:
    job = provider.emit("a", 1)
    await job.enqueued()
    client = open_dashboard(provider)
    path = f"/jobs/{job.job_id}"
    assert (await client.act(f"{path}/priority", priority=-1)).json()["changed"] is True
    assert (await client.post(f"{path}/delay", data={"delay": "2 hours"})).status_code == 303
    assert (await provider.inspector.jobs.get(job.job_id)).state == "delayed"
    assert (await client.post(f"{path}/promote", data={"_once": "1"})).status_code == 303
    assert (await provider.inspector.jobs.get(job.job_id)).state == "waiting"
    unchanged = await client.post(f"{path}/promote", data={"_once": "2"})
    assert unchanged.headers["location"] == f"{path}?done=unchanged"
    assert "Nothing was changed" in (await client.get(unchanged.headers["location"])).text


async def test_check_6_pages_miss_nothing_and_repeat_nothing_while_jobs_come_and_go(
    provider: EventProvider, open_dashboard: Open
) -> None:
    emissions = provider.emit_many("a", range(60), delay="1 hour")
    for each in emissions:
        await each.enqueued()
    client, seen = open_dashboard(provider), list[str]()
    url: str | None = "/api/v1/queues/event.a/jobs?state=delayed&limit=7"
    turns = 0
    while url:
        answer = await client.get(url)
        seen += [job["id"] for job in answer.json()["jobs"]]
        link = answer.headers.get("link")
        url = re.findall(r"<(.*)>; rel=\"next\"", link)[0] if link else None
        turns += 1
        if turns == 3:  # one that was seen goes, others come
            assert await provider.cancel(seen[0])
            for each in provider.emit_many("a", range(5), delay="1 hour"):
                await each.enqueued()
    assert len(seen) == len(set(seen))
    assert {each.job_id for each in emissions} <= set(seen)


async def test_check_6_the_pages_of_a_list_lead_to_the_same_jobs(
    provider: EventProvider, open_dashboard: Open
) -> None:
    emissions = provider.emit_many("a", range(120), delay="1 hour")
    for each in emissions:
        await each.enqueued()
    client, seen = open_dashboard(provider), list[str]()
    url: str | None = "/queues/event.a?state=delayed"
    while url:
        text = (await client.get(url)).text
        seen += re.findall(r'<tr id="job-([^"]+)"', text)
        following = re.findall(r'<a rel="next" href="([^"]+)"', text)
        url = following[0].replace("&amp;", "&") if following else None
    assert sorted(seen) == sorted(each.job_id for each in emissions)


async def test_check_7_the_counts_are_those_of_the_server(
    make_provider: Callable[..., EventProvider], open_dashboard: Open, admin: Callable[..., Any], prefix: str
) -> None:
    provider = make_provider()

    @provider.on("a")
    async def work(n: int) -> None:
        if n < 2:
            raise ValueError(n)

    async with provider:
        async with provider.worker():
            emissions = provider.emit_many("a", range(7), reply=False)
            await provider.flush()
            counts = provider.inspector.queues.count
            while sum((await counts("a", states=("completed", "failed"))).values()) < 7:
                pass
        for each in [provider.emit("a", 9, delay="1 hour"), *provider.emit_many("a", range(3))]:
            await each.enqueued()
        await provider.cancel(emissions[0].job_id)
        client = open_dashboard(provider)
        told = (await client.get("/api/v1/queues/event.a")).json()["counts"]
        listed = (await client.get("/api/v1/queues")).json()["queues"]
    keys = [key for key in admin("KEYS", f"{prefix}:*") if key.endswith(":event.a")]
    stored = {}
    for state in ("delayed", "failed", "cancelled", "completed"):
        (key,) = [key for key in keys if f":{state}:" in key] or [""]
        kind = admin("TYPE", key)
        stored[state] = admin("LLEN" if kind == "list" else "ZCARD", key) if kind != "none" else 0
    assert {state: told[state] for state in stored} == stored
    assert told["waiting"] == 3
    assert told["active"] == 0
    assert told.pop("waiting-children") == 0
    assert [queue["counts"] for queue in listed if queue["queue"] == "event.a"] == [told]


async def test_check_9_each_page_says_why_a_job_waits_and_it_changes_with_the_cause(
    make_provider: Callable[..., EventProvider], open_dashboard: Open, stack: AsyncExitStack
) -> None:
    provider = make_provider()
    release = asyncio.Event()
    event = Event("a", limit=Limit(at_once=1))

    @provider.on(event)
    async def work(_: int) -> None:
        await release.wait()

    await stack.enter_async_context(provider)
    client = open_dashboard(provider)
    first, second = provider.emit_many(event, range(2))
    await second.enqueued()

    async def why() -> str:
        page = (await client.get(f"/jobs/{second.job_id}")).text
        return page.partition('<p class="why">')[2].partition("</p>")[0]

    assert "No worker serves event.a" in await why()
    await client.act("/queues/event.a/pause", reason="provider down")
    async with provider.worker():
        assert "is paused by anyone" in await why()
        assert "provider down" in await why()
        await client.act("/queues/event.a/resume")
        while (await provider.inspector.jobs.get(first.job_id)).state != "active":
            pass
        assert "The limit of event.a is 1 at once" in await why()
        release.set()
        await asyncio.gather(first, second)
    assert "It has ended as completed" in await why()


async def test_check_16_while_the_server_is_away_pages_say_so_and_actions_are_refused(
    make_provider: Callable[..., EventProvider], open_dashboard: Open
) -> None:
    provider = make_provider()
    client = open_dashboard(provider)
    for path in ("/", "/queues/event.a", "/jobs/x", "/schedules"):
        page, data = (
            await client.get(path),
            await client.get(f"/api/v1{path}" if path != "/" else "/api/v1/queues"),
        )
        assert (page.status_code, data.status_code) == (503, 503), path
        assert data.headers["retry-after"] == "2"
        assert "is not started" in data.json()["detail"]
    assert (await client.act("/queues/event.a/pause")).status_code == 503
    async with provider:
        assert (await client.get("/")).status_code == 200


async def test_check_16_the_address_of_the_server_is_on_no_page(
    make_provider: Callable[..., EventProvider], open_dashboard: Open, unused_tcp_port: int
) -> None:
    url = f"redis://ops:s3cret@127.0.0.1:{unused_tcp_port}"
    async with make_provider(url=url, reply_timeout=0.2) as provider:
        client = open_dashboard(provider)
        for path in ("/", "/api/v1/queues", "/jobs/x"):
            answer = await client.get(path)
            assert answer.status_code == 503
            assert str(unused_tcp_port) not in answer.text
            assert "s3cret" not in answer.text


async def test_check_5_ten_viewers_cost_the_server_one_read(
    provider: EventProvider, open_dashboard: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    await provider.pause("a")
    client, asked = open_dashboard(provider), list[str]()
    queues = Queues.list

    async def look(of: Queues, **options: Any) -> Any:
        asked.append("queues")
        return await queues(of, **options)

    monkeypatch.setattr(Queues, "list", look)
    pages = await asyncio.gather(*(client.get("/") for _ in range(10)))
    assert {page.status_code for page in pages} == {200}
    assert asked == ["queues"]
    monkeypatch.setattr(Queues, "list", queues)
    await client.act("/queues/event.a/resume")
    assert "paused" not in (await client.get("/")).text, "a change is seen at once"


async def test_an_open_page_that_did_not_change_is_not_sent_again(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider)
    first = await client.get("/schedules", headers={"hx-request": "true"})
    assert first.text.startswith('<div id="live"')
    tag = {"hx-request": "true", "hx-ptag": first.headers["hx-ptag"]}
    assert (await client.get("/schedules", headers=tag)).status_code == 304
    await provider.schedules.add("a", id="nightly", cron="0 0 1 1 *")
    assert "nightly" in (await client.get("/schedules", headers=tag)).text


async def test_what_somebody_looks_for_is_found(provider: EventProvider, open_dashboard: Open) -> None:
    job = provider.emit("a", 1)
    await job.enqueued()
    await provider.emit("order.placed", 1, reply=False).enqueued()
    client = open_dashboard(provider)
    for wanted, place in (
        (job.job_id, f"/jobs/{job.job_id}"),
        ("order.placed", "/queues/event.order.placed"),
    ):
        assert (await client.get("/find", params={"q": wanted})).headers["location"] == place
    assert (await client.get("/find")).status_code == 200
    assert (await client.get("/queues/order.placed")).status_code == 200


async def test_the_api_says_what_its_caller_may_do(provider: EventProvider, open_dashboard: Open) -> None:
    client = open_dashboard(provider, actions={"*": {"queue.pause": False}})
    told = (await client.get("/api/v1")).json()
    assert told["may"]["queue.pause"] is False
    assert told["may"]["job.cancel"] is True
    assert set(told["links"]) == {
        "queues",
        "events",
        "failures",
        "operations",
        "schedules",
        "workers",
        "audit",
        "server",
        "stream",
        "openapi.json",
    }
