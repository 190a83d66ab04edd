"""Failures by their error, single retries and removals, and workers: the check 17 of the dashboard's
acceptance.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from eventbus import EventProvider, Retry

Open = Callable[..., Any]


async def _fail(provider: EventProvider, stack: AsyncExitStack, *payloads: dict[str, Any]) -> list[str]:
    """Let jobs of event `paid` fail by what their payloads say; return their ids. Afterwards no
    worker runs.
    """

    @provider.on("paid", retry=Retry(attempts=1))
    async def pay(given: dict[str, Any]) -> None:
        raise {"value": ValueError, "key": KeyError, "os": OSError}[given["kind"]](given["text"])

    async with provider.worker():
        jobs = provider.emit_many("paid", payloads, reply=False)
        await provider.flush()
        while (await provider.inspector.queues.count("paid", states=("failed",)))["failed"] < len(payloads):
            pass
    return [job.job_id for job in jobs]


async def test_check_17_failures_are_grouped_and_a_group_is_retried_with_the_count_that_was_shown(
    provider: EventProvider, open_dashboard: Open, stack: AsyncExitStack
) -> None:
    wanted = {"value": 12, "key": 7, "os": 3}
    payloads = [
        {"kind": kind, "text": f"order {n} is gone"} for kind, count in wanted.items() for n in range(count)
    ]
    await _fail(provider, stack, *payloads)
    client = open_dashboard(provider)
    groups = (await client.get("/api/v1/failures")).json()["failures"]
    assert [(each["error"].partition(":")[0], each["count"]) for each in groups] == [
        ("ValueError", 12),
        ("KeyError", 7),
        ("OSError", 3),
    ]
    page = (await client.get("/failures")).text
    assert "Retry 12" in page
    path = f"/failures/{groups[0]['id']}/retry"
    refused = await client.act(path, expected=10)
    assert (refused.status_code, refused.json()["count"]) == (412, 12)
    begun = (await client.act(path, expected=12)).json()
    assert await _finish(client, begun["operation"]) == ("completed", 12, 0)
    counts = await provider.inspector.queues.count("paid")
    assert (counts["waiting"], counts["failed"]) == (12, 10)
    assert (await client.act(path, expected=12)).status_code == 404
    done = await client.post(f"/failures/{groups[1]['id']}/retry", data={"expected": "7"})
    place = done.headers["location"]
    assert await _finish(client, place.removeprefix("/operations/")) == ("completed", 7, 0)
    assert "OSError" in (await client.get("/failures")).text


async def _finish(client: Any, operation: str) -> tuple[str, int, int]:
    """Wait until an operation has ended; return its state, and how many jobs it did and did not."""
    while True:
        told = (await client.get(f"/api/v1/operations/{operation}")).json()["operation"]
        if told["state"] != "running":
            return told["state"], told["done"], told["failed"]


@pytest.mark.parametrize("secret", ["hunter2", "4111111111111111", "pass word"])
async def test_check_23_a_group_shows_no_secret_of_its_sample(
    provider: EventProvider, open_dashboard: Open, stack: AsyncExitStack, secret: str
) -> None:
    await _fail(provider, stack, {"kind": "value", "text": f"refused {secret}!", "password": secret})
    for path in ("/failures", "/api/v1/failures"):
        text = (await open_dashboard(provider).get(path)).text
        assert "refused" in text
        assert secret not in text
        assert secret.rstrip("0123456789") not in text or secret.isdecimal()


async def test_a_group_without_a_message_is_retried_alone(
    provider: EventProvider, open_dashboard: Open, stack: AsyncExitStack
) -> None:
    await _fail(provider, stack, *({"kind": "value", "text": text} for text in ("", "no", "no", "no")))
    client = open_dashboard(provider)
    groups = (await client.get("/api/v1/failures")).json()["failures"]
    (bare,) = [each for each in groups if each["error"] == "ValueError"]
    begun = (await client.act(f"/failures/{bare['id']}/retry", expected=1)).json()
    assert await _finish(client, begun["operation"]) == ("completed", 1, 0)


async def test_who_sees_types_alone_has_a_group_for_each_type_and_retries_that(
    provider: EventProvider, open_dashboard: Open, stack: AsyncExitStack
) -> None:
    """Neither the groups nor their names tell which of the errors are alike."""
    texts = ["no fox", "no fox", "no dog"]
    await _fail(provider, stack, *({"kind": "value", "text": text} for text in texts))
    client = open_dashboard(provider, redact="all")
    (group,) = (await client.get("/api/v1/failures")).json()["failures"]
    assert (group["error"], group["count"]) == ("ValueError", 3)
    whole = (await open_dashboard(provider).get("/api/v1/failures")).json()["failures"]
    assert [(each["error"], each["count"]) for each in whole] == [
        ("ValueError: no fox", 2),
        ("ValueError: no dog", 1),
    ]
    begun = (await client.act(f"/failures/{group['id']}/retry", expected=3)).json()
    assert await _finish(client, begun["operation"]) == ("completed", 3, 0)


async def test_a_group_is_not_there_for_whom_its_queue_is_hidden(
    provider: EventProvider, open_dashboard: Open, stack: AsyncExitStack
) -> None:
    await _fail(provider, stack, {"kind": "value", "text": "no"})
    (group,) = (await open_dashboard(provider).get("/api/v1/failures")).json()["failures"]
    path = f"/failures/{group['id']}/retry"
    hidden = open_dashboard(provider, actions={"paid": {"queue.read": False}})
    assert (await hidden.get("/api/v1/failures")).json()["failures"] == []
    assert (await hidden.act(path, expected=1)).status_code == 404
    closed = open_dashboard(provider, actions={"paid": {"job.retry": False}})
    assert (await closed.act(path, expected=1)).status_code == 403
    assert "Retry a group" not in (await closed.get("/failures")).text
    reading = open_dashboard(provider, read_only=True)
    assert (await reading.act(path, expected=1)).status_code == 403
    assert (await reading.post(path, data={"expected": "1"})).status_code == 403


async def test_a_failed_job_is_retried_and_one_is_removed_with_its_id_typed(
    provider: EventProvider, open_dashboard: Open, stack: AsyncExitStack
) -> None:
    first, second = await _fail(provider, stack, *[{"kind": "value", "text": "no"}] * 2)
    client = open_dashboard(provider)
    retried = await client.post(f"/jobs/{first}/retry", data={"_once": "1"})
    assert retried.headers["location"] == f"/jobs/{first}?done=changed"
    assert (await provider.inspector.jobs.get(first)).state == "waiting"
    assert (await client.act(f"/jobs/{first}/retry")).json()["changed"] is False
    assert (await client.post(f"/jobs/{second}/remove", data={"_name": first})).status_code == 422
    removed = await client.post(f"/jobs/{second}/remove", data={"_name": second})
    assert removed.headers["location"] == "/?done=changed"
    assert (await client.delete(f"/api/v1/jobs/{first}")).json()["changed"] is True
    counts = await provider.inspector.queues.count("paid")
    assert (counts["waiting"], counts["failed"]) == (0, 0)


async def test_workers_are_shown_without_the_queues_that_one_may_not_see(
    make_provider: Callable[..., EventProvider], open_dashboard: Open
) -> None:
    provider = make_provider(name="shop")
    for event in ("open", "payout"):
        provider.on(event)(_work)
    async with provider, provider.worker() as worker:
        client = open_dashboard(provider, actions={"payout": {"queue.read": False}})
        (told,) = (await client.get("/api/v1/workers")).json()["workers"]
        assert (told["id"], told["name"], told["queues"]) == (worker.id, "shop", ["event.open"])
        page = (await client.get("/workers")).text
        assert worker.id in page
        assert "payout" not in page
        closed = open_dashboard(provider, actions={"*": {"server.read": False}})
        assert (await closed.get("/workers")).status_code == 404


async def _work(_: int) -> None: ...
