"""Edits of payloads over HTTP: with the revision, without losing what is hidden, and never of what runs."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Annotated, Any

import msgspec
import pytest

from eventbus import Event, EventProvider, Sensitive
from eventbus.admin.jobs.jobs import Jobs
from eventbus.dashboard import Actor
from eventbus.dashboard.desk.edits import put_back
from eventbus.dashboard.problem import Problem

Open = Callable[..., Any]
CARD = "4111111111111111"


class _Payment(msgspec.Struct):
    order: str
    holder: Annotated[str, Sensitive()]
    token: str = "t-17171717"


PAID = Event("paid", payload=_Payment)


async def _waiting(provider: EventProvider) -> str:
    job = provider.emit(PAID, _Payment("o-1", "Ada"), reply=False)
    await job.enqueued()
    return job.job_id


async def test_a_payload_is_edited_and_what_is_hidden_keeps_its_value(
    provider: EventProvider, open_dashboard: Open, logs: list[MutableMapping[str, Any]]
) -> None:
    client, job_id = open_dashboard(provider), await _waiting(provider)
    shown = (await client.get(f"/api/v1/jobs/{job_id}")).json()["job"]
    assert shown["payload"]["holder"].startswith("•••")
    assert shown["payload"]["token"].startswith("•••")
    body = {"payload": {**shown["payload"], "order": "o-2"}, "reason": "a slip"}
    answer = await client.patch(
        f"/api/v1/jobs/{job_id}", json=body, headers={"if-match": f'"{shown["revision"]}"'}
    )
    assert answer.json()["changed"]
    whole = await provider.inspector.jobs.get(job_id, reveal=True)
    assert whole.payload == {"order": "o-2", "holder": "Ada", "token": "t-17171717"}
    assert whole.queue == "event.paid"
    (noted,) = [each for each in logs if each["event"] == "dashboard action"]
    assert (noted["action"], noted["outcome"], noted["reason"]) == ("job.edit", "changed", "a slip")
    assert "o-2" not in str(noted)


async def test_a_key_that_was_made_of_the_old_payload_still_stands_for_the_edited_job(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider)
    keyed = Event("keyed", payload=dict[str, str], key=lambda payload: payload["order"])
    first = provider.emit(keyed, {"order": "o-1"}, reply=False)
    await first.enqueued()
    assert "An idempotency key stays" in (await client.get(f"/jobs/{first.job_id}")).text
    body = {"payload": {"order": "o-2"}, "revision": "*"}
    assert (await client.patch(f"/api/v1/jobs/{first.job_id}", json=body)).json()["changed"]
    old, new = (provider.emit(keyed, {"order": order}, reply=False) for order in ("o-1", "o-2"))
    for each in (old, new):
        await each.enqueued()
    assert (old.joined, old.job_id, new.joined) == (True, first.job_id, False)


async def test_an_edit_after_another_one_is_412_and_says_what_changed(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client, job_id = open_dashboard(provider), await _waiting(provider)
    shown = (await client.get(f"/api/v1/jobs/{job_id}")).json()["job"]
    body, seen = {"payload": {"order": "o-2", "holder": "Bo"}}, {"if-match": shown["revision"]}
    assert (await client.patch(f"/api/v1/jobs/{job_id}", json=body, headers=seen)).status_code == 200
    answer = await client.patch(f"/api/v1/jobs/{job_id}", json=body, headers=seen)
    assert (answer.status_code, answer.headers["content-type"]) == (412, "application/problem+json")
    told = answer.json()
    assert told["differences"] == ["its payload, delay or priority was edited"]
    assert told["revision"] == (await provider.inspector.jobs.get(job_id)).revision
    assert (await client.patch(f"/api/v1/jobs/{job_id}", json=body)).status_code == 422, "it needs If-Match"
    wanted = await client.patch(f"/api/v1/jobs/{job_id}", json=body, headers={"if-match": "*"})
    assert wanted.status_code == 200


async def test_a_payload_that_does_not_fit_changes_nothing(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client, job_id = open_dashboard(provider), await _waiting(provider)
    for payload, pointer in (({"order": 1, "holder": "x"}, "/order"), ({"order": "x"}, "/holder")):
        answer = await client.patch(
            f"/api/v1/jobs/{job_id}", json={"payload": payload}, headers={"if-match": "*"}
        )
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
    assert (await provider.inspector.jobs.get(job_id, reveal=True)).payload["order"] == "o-1"


async def test_a_job_that_has_ended_is_409(provider: EventProvider, open_dashboard: Open) -> None:
    client, job_id = open_dashboard(provider), await _waiting(provider)
    await provider.inspector.jobs.cancel(job_id)
    body = {"payload": {"order": "o-2", "holder": "Bo"}}
    answer = await client.patch(f"/api/v1/jobs/{job_id}", json=body, headers={"if-match": "*"})
    assert (answer.status_code, answer.json()["state"]) == (409, "cancelled")


async def test_check_24_a_form_edits_without_scripts_and_only_for_who_reads_payloads(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client, job_id = open_dashboard(provider), await _waiting(provider)
    page = (await client.get(f"/jobs/{job_id}")).text
    assert "Replace the payload" in page
    assert "Ada" not in page
    revision = (await provider.inspector.jobs.get(job_id)).revision
    form = {"payload": '{"order": "o-3", "holder": "Cy"}', "revision": revision, "_once": "a"}
    assert (await client.post(f"/jobs/{job_id}/edit", data=form)).status_code == 303
    assert (await provider.inspector.jobs.get(job_id, reveal=True)).payload["order"] == "o-3"
    assert (await client.post(f"/jobs/{job_id}/edit", data={**form, "_once": "b"})).status_code == 412
    assert (await client.post(f"/jobs/{job_id}/edit", data={**form, "payload": "{"})).status_code == 422
    blind = open_dashboard(provider, sign_in=lambda _: Actor("v"), actions={"*": {"payload.read": False}})
    assert "Replace the payload" not in (await blind.get(f"/jobs/{job_id}")).text
    body = {"payload": {"order": "o-2", "holder": "Bo"}}
    answer = await blind.patch(f"/api/v1/jobs/{job_id}", json=body, headers={"if-match": "*"})
    assert answer.status_code == 403


def test_a_hidden_value_is_put_back_only_where_it_stood() -> None:
    shown = {"card": "•••0123abcd", "items": [{"pin": "•••89abcdef"}], "name": "Ada"}
    whole = {"card": CARD, "items": [{"pin": 1234}], "name": "Ada"}
    assert put_back({**shown, "name": "Bo"}, shown, whole) == {**whole, "name": "Bo"}
    assert put_back({"card": "new"}, shown, whole) == {"card": "new"}
    for moved in (
        {"name": "•••0123abcd"},
        {"items": [{"pin": "•••89abcdef"}, {"pin": "•••89abcdef"}]},
        "•••0123abcd",
    ):
        with pytest.raises(Problem, match="type the value itself"):
            put_back(moved, shown, whole)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"items": [{"pin": "•••89abcdef"}]}, "/items/0/pin"),
        ({"items": [{"pin": "•••89abcdef"}, {"pin": "•••0123abcd"}]}, "/items/0/pin"),
        ({"items": [{"pin": "•••0123abcd"}, {"pin": "•••7777eeee"}]}, "/items/1/pin"),
    ],
    ids=["an item is taken out", "two are swapped", "of another process"],
)
def test_a_hidden_value_that_moved_to_the_place_of_another_one_is_refused(given: Any, place: str) -> None:
    shown = {"items": [{"pin": "•••0123abcd"}, {"pin": "•••89abcdef"}]}
    whole = {"items": [{"pin": 1234}, {"pin": 5678}]}
    with pytest.raises(Problem, match="type the value itself") as caught:
        put_back(given, shown, whole)
    assert caught.value.facts["errors"][0]["pointer"] == place


async def test_an_edit_of_any_revision_does_not_put_back_a_value_that_was_replaced_meanwhile(
    provider: EventProvider, open_dashboard: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, job_id = open_dashboard(provider), await _waiting(provider)
    shown = (await client.get(f"/api/v1/jobs/{job_id}")).json()["job"]["payload"]
    look = Jobs.get

    async def look_while_another_edits(of: Jobs, job: str, *, reveal: bool = False, **options: Any) -> Any:
        found = await look(of, job, reveal=reveal, **options)
        if reveal:  # behind the read whose values are put back
            await provider.inspector.jobs.edit(job, {"order": "o-9", "holder": "Cyd", "token": "t-9"})
        return found

    monkeypatch.setattr(Jobs, "get", look_while_another_edits)
    answer = await client.patch(f"/api/v1/jobs/{job_id}", json={"payload": shown}, headers={"if-match": "*"})
    assert answer.status_code in (412, 422)
    assert (await look(provider.inspector.jobs, job_id, reveal=True)).payload["holder"] == "Cyd"


@pytest.mark.parametrize(
    "given",
    [
        {"pan": " •••0011aabb"},
        {"pan": "see •••0011aabb"},
        {"•••0011aabb": 1},
        {"a": [{"•••0011aabb str": 1}]},
    ],
)
def test_what_is_shown_instead_of_a_value_is_refused_in_any_text_and_name(given: dict[str, Any]) -> None:
    shown, whole = {"pan": "•••0011aabb"}, {"pan": "4111"}
    with pytest.raises(Problem) as caught:
        put_back(given, shown, whole)
    assert caught.value.status == 422
