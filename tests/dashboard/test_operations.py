"""Bulk operations over HTTP, and the audit: the check 18 of the dashboard's acceptance, and parts of 17, 19
and 20.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest

from eventbus import EventProvider, StoreUnavailable
from eventbus.dashboard import Actor
from eventbus.store.calls.audit_store import AuditStore
from eventbus.store.calls.operation_store import OperationStore

Open = Callable[..., Any]


def _sign_in(request: Any) -> Actor | None:
    name = request.headers.get("x-user", "")
    return Actor(name, frozenset({name})) if name else None


async def _delay(provider: EventProvider, count: int, event: str = "paid") -> list[str]:
    emissions = [provider.emit(event, n, delay="1h", reply=False) for n in range(count)]
    await asyncio.gather(*(each.enqueued() for each in emissions))
    return [each.job_id for each in emissions]


async def _finish(client: Any, operation: str, **given: Any) -> dict[str, Any]:
    while True:
        told = (await client.get(f"/api/v1/operations/{operation}", **given)).json()["operation"]
        if told["state"] != "running":
            return told


async def test_check_18_a_form_asks_with_the_count_and_the_operation_goes_on_without_it(
    provider: EventProvider, open_dashboard: Open
) -> None:
    await _delay(provider, 130)
    client = open_dashboard(provider)
    page = (await client.get("/queues/event.paid?state=delayed")).text
    assert "promote" in page
    assert "retry" not in page.split('id="bulk"')[1].split("</form>")[0]
    asked = (await client.get("/queues/event.paid/bulk?action=promote&state=delayed")).text
    assert "Promote 130" in asked
    form = dict(re.findall(r'name="(\w+)" value="([^"]*)"', asked.split("<main")[1]))
    answers = [await client.post("/queues/event.paid/operations", data=form) for _ in range(2)]
    (place,) = {each.headers["location"] for each in answers}
    told = await _finish(client, place.removeprefix("/operations/"))
    assert (told["state"], told["total"], told["done"], told["failed"]) == ("completed", 130, 130, 0)
    assert "completed" in (await client.get(place)).text
    assert told["id"] in (await client.get("/operations")).text
    assert (await provider.inspector.queues.count("paid", states=["waiting"])) == {"waiting": 130}


async def test_check_17_another_count_than_was_shown_asks_again(
    provider: EventProvider, open_dashboard: Open
) -> None:
    await _delay(provider, 20)
    client = open_dashboard(provider)
    path, order = "/queues/paid/operations", {"action": "cancel", "state": "delayed"}
    counted = (await client.act(path, **order, dry_run=True)).json()
    assert (counted["changed"], counted["value"]["count"], len(counted["value"]["samples"])) == (
        False,
        20,
        20,
    )
    for expected in (17, 23, 0):
        refused = await client.act(path, **order, expected=expected)
        assert (refused.status_code, refused.json()["count"]) == (412, 20)
    near = await client.act(path, **order, expected=19, id="near")
    assert near.json()["operation"] == "near"
    assert (await _finish(client, "near"))["done"] == 20
    await _delay(provider, 2)
    forced = (await client.act(path, **order, expected=9, force=True)).json()
    assert (await _finish(client, forced["operation"]))["done"] == 2


async def test_ticked_jobs_are_meant_alone_and_only_if_they_are_of_the_queue(
    provider: EventProvider, open_dashboard: Open
) -> None:
    jobs, (other,) = await _delay(provider, 3), await _delay(provider, 1, "payout")
    client = open_dashboard(provider, actions={"payout": {"queue.read": False}})
    asked = await client.get(
        f"/queues/event.paid/bulk?action=remove&state=delayed&job={jobs[0]}&job={jobs[2]}"
    )
    form = dict(re.findall(r'name="(\w+)" value="([^"]*)"', asked.text.split("<main")[1]))
    assert (form["expected"], form["jobs"]) == ("2", f"{jobs[0]} {jobs[2]}")
    unconfirmed = await client.post("/queues/event.paid/clean", data={**form, "_name": "paid"})
    assert (unconfirmed.status_code, "type event.paid to confirm" in unconfirmed.text) == (422, True)
    done = await client.post("/queues/event.paid/clean", data={**form, "_name": "event.paid"})
    await _finish(client, done.headers["location"].removeprefix("/operations/"))
    assert (await provider.inspector.queues.count("paid", states=["delayed"])) == {"delayed": 1}
    taken = await client.act("/queues/paid/clean", jobs=[other], expected=1)
    assert (taken.status_code, taken.json()["detail"]) == (409, f"job {other!r} is none of event.paid")


async def test_check_19_an_operation_needs_the_right_of_its_action_and_is_hidden_with_its_queue(
    provider: EventProvider, open_dashboard: Open
) -> None:
    await _delay(provider, 2)
    rules = {
        "*": {"operation.start": "boss", "queue.clean": "owner", "operation.stop": "boss"},
        "paid": {"queue.read": "boss"},
    }
    client = open_dashboard(provider, sign_in=_sign_in, actions=rules)
    order = {"action": "cancel", "state": "delayed", "expected": 2, "id": "one"}
    boss, other = {"x-user": "boss"}, {"x-user": "other"}
    sent = {"headers": other, "json": order}
    assert (await client.post("/api/v1/queues/paid/operations", **sent)).status_code == 404
    clean = {"state": "delayed", "expected": 2}
    refused = await client.post("/api/v1/queues/paid/clean", json=clean, headers=boss)
    assert (refused.status_code, refused.json()["action"]) == (403, "queue.clean")
    smuggled = {"action": "remove", "state": "delayed", "expected": 2}
    refused = await client.post("/api/v1/queues/paid/operations", json=smuggled, headers=boss)
    assert (refused.status_code, refused.json()["action"]) == (403, "queue.clean")
    await client.post("/api/v1/queues/paid/operations", json=order, headers=boss)
    assert (await _finish(client, "one", headers=boss))["by"] == "boss"
    for path in ("/operations/one", "/api/v1/operations/one"):
        assert (await client.get(path, headers=other)).status_code == 404
    assert (await client.get("/api/v1/operations", headers=other)).json() == {"operations": []}
    assert (await client.post("/api/v1/operations/one/stop", json={}, headers=other)).status_code == 404
    ended = await client.post("/api/v1/operations/one/stop", json={}, headers=boss)
    assert ended.json()["changed"] is False


async def test_check_20_read_only_begins_and_stops_nothing(
    provider: EventProvider, open_dashboard: Open
) -> None:
    await _delay(provider, 1)
    begun = await provider.inspector.operations.begin("remove", "paid", "delayed")
    client = open_dashboard(provider, read_only=True)
    order = {"action": "cancel", "state": "delayed", "expected": 1}
    assert (await client.act("/queues/paid/operations", **order)).status_code == 403
    assert (await client.act(f"/operations/{begun.id}/stop")).status_code == 403
    assert 'id="bulk"' not in (await client.get("/queues/event.paid?state=delayed")).text
    assert (await provider.inspector.operations.get(begun.id)).state == "running"
    await provider.inspector.operations.run()


async def test_the_audit_has_each_action_with_its_outcome_and_filters_and_hides(
    provider: EventProvider, open_dashboard: Open
) -> None:
    await _delay(provider, 1)
    rules = {"*": {"audit.read": "boss", "queue.limit": False}, "payout": {"queue.read": "owner"}}
    client = open_dashboard(provider, sign_in=_sign_in, actions=rules)
    boss = {"headers": {"x-user": "boss"}}
    owner = {"headers": {"x-user": "owner"}}
    await client.post("/api/v1/queues/paid/pause", json={"reason": "<b>fire</b>"}, **boss)
    await client.post("/api/v1/queues/paid/limits", json={"at_once": 1}, **boss)
    await client.post("/api/v1/queues/payout/pause", json={}, **owner)
    told = (await client.get("/api/v1/audit", **boss)).json()["entries"]
    assert [(each["action"], each["outcome"], each["reason"]) for each in told] == [
        ("queue.limit", "refused", ""),
        ("queue.pause", "changed", "<b>fire</b>"),
    ]
    assert (await client.get("/audit", **owner)).status_code == 404
    page = (await client.get("/audit?outcome=changed", **boss)).text
    assert ("&lt;b&gt;fire" in page, "<b>fire" in page, "queue.limit" in page) == (True, False, False)


async def test_an_action_that_is_cut_off_stands_in_the_audit_as_begun(
    provider: EventProvider, open_dashboard: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def vanish(*_: Any, **__: Any) -> None:
        told = (await provider.inspector.audit.list()).entries
        assert [(each.action, each.outcome) for each in told] == [("queue.pause", "begun")]
        raise StoreUnavailable("gone", sent=True)

    monkeypatch.setattr(provider, "pause", vanish)
    assert (await open_dashboard(provider).act("/queues/paid/pause")).status_code == 503
    (entry,) = (await provider.inspector.audit.list()).entries
    assert (entry.outcome, entry.detail) == ("failed", "StoreUnavailable")


async def test_the_audit_says_which_operation_was_begun_and_what_failed(
    provider: EventProvider, open_dashboard: Open
) -> None:
    await _delay(provider, 1)
    client, order = open_dashboard(provider), {"action": "cancel", "state": "delayed"}
    assert (await client.act("/queues/paid/operations", **order, expected=9)).status_code == 412
    begun = (await client.act("/queues/paid/operations", **order, expected=1, id="mine")).json()
    assert begun["note"] == "1 job"
    await _finish(client, "mine")
    told = (await provider.inspector.audit.list()).entries
    assert [(each.outcome, each.detail) for each in told] == [
        ("changed", "operation mine, 1 job"),
        ("failed", "CountChanged"),
    ]
    assert "operation mine, 1 job" in (await client.get("/audit")).text


async def test_the_audit_tells_apart_what_one_right_allows(
    provider: EventProvider, open_dashboard: Open
) -> None:
    (job,) = await _delay(provider, 1)
    client = open_dashboard(provider)
    for path, order in (
        ("/queues/paid/pause", {}),
        ("/queues/paid/resume", {}),
        ("/queues/paid/limits", {"at_once": 3}),
        ("/queues/paid/limits", {"clear": True}),
        (f"/jobs/{job}/delay", {"delay": "5m"}),
        (f"/jobs/{job}/priority", {"priority": -7}),
        (f"/jobs/{job}/promote", {}),
        (f"/jobs/{job}/promote", {}),
    ):
        assert (await client.act(path, **order)).status_code == 200
    assert [each.detail for each in reversed((await provider.inspector.audit.list()).entries)] == [
        "event.paid is paused",
        "event.paid is not paused",
        "the limit of event.paid is 3 at once",
        "the limit of event.paid is none",
        "it is due in 5m",
        "its priority is -7",
        "it is due now",
        "it is waiting, and was left as it is",
    ]


async def test_what_the_server_does_not_keep_of_the_audit_is_logged(
    provider: EventProvider,
    open_dashboard: Open,
    monkeypatch: pytest.MonkeyPatch,
    logs: list[MutableMapping[str, Any]],
) -> None:
    async def refuse(*_: Any, **__: Any) -> str:
        raise StoreUnavailable("no", sent=False)

    monkeypatch.setattr(AuditStore, "append", refuse)
    assert (await open_dashboard(provider).act("/queues/paid/pause")).json()["changed"] is True
    told = [each["event"] for each in logs if each["event"] != "log"]
    assert told.count("audit not kept by the server") == 2
    assert told.count("dashboard action") == 1


async def test_an_operation_that_is_begun_while_another_one_ends_is_done_too(
    provider: EventProvider, open_dashboard: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _delay(provider, 2)
    client, calls = open_dashboard(provider), list[str]()
    take = OperationStore.take

    async def begin_late(store: OperationStore, *given: Any, **options: Any) -> Any:
        found = await take(store, *given, **options)
        calls.append("" if found is None else found.id)
        if calls == ["one", ""]:  # nothing was left, and now there is
            order = {"action": "cancel", "state": "waiting", "expected": 2, "id": "two"}
            (await client.act("/queues/paid/operations", **order)).raise_for_status()
        return found

    monkeypatch.setattr(OperationStore, "take", begin_late)
    await client.act("/queues/paid/operations", action="promote", state="delayed", expected=2, id="one")
    assert (await _finish(client, "one"))["done"] == 2
    while "two" not in calls:
        await client.get("/api/v1/operations")
    assert (await _finish(client, "two"))["done"] == 2
