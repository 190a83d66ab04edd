"""What each may do: the checks 19 and 20 of the dashboard's acceptance."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

import pytest

from eventbus import EventProvider
from eventbus.dashboard import Actor, Target
from eventbus.dashboard.api.table import ACTS
from workflows import StepContext, Workflow, WorkflowProvider

Open = Callable[..., Any]

_ROLES = {"viewer": [], "operator": ["operator"], "admin": ["operator", "admin"]}


def _sign_in(request: Any) -> Actor | None:
    name = request.headers.get("x-user", "")
    return Actor(name, frozenset(_ROLES[name])) if name in _ROLES else None


_RULES: dict[str, dict[str, bool | str]] = {
    "*": {
        "queue.pause": "operator",
        "job.cancel": "operator",
        "queue.limit": "admin",
        "payload.reveal": False,
    },
    "payout*": {"payload.reveal": "admin"},
    "secret*": {"queue.read": "admin", "job.read": "admin", "flow.read": "admin", "schedule.read": "admin"},
    "workflow.secret*": {"queue.read": "admin", "job.read": "admin", "flow.read": "admin"},
}


async def test_check_19_each_sees_only_their_own_buttons(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider, sign_in=_sign_in, actions=_RULES)
    seen = {name: (await client.get("/queues/event.a", headers={"x-user": name})).text for name in _ROLES}
    assert ["Pause…" in seen[name] for name in _ROLES] == [False, True, True]
    assert ["Limit…" in seen[name] for name in _ROLES] == [False, False, True]
    for name in _ROLES:
        told = (await client.get("/api/v1/queues/event.a", headers={"x-user": name})).json()["may"]
        assert ("queue.pause" in told, "queue.limit" in told) == (name != "viewer", name == "admin")


async def test_check_19_a_viewer_who_repeats_an_admins_requests_is_refused_and_noted(
    provider: EventProvider, open_dashboard: Open, logs: list[MutableMapping[str, Any]]
) -> None:
    job = provider.emit("a", 1, delay="1 hour")
    await job.enqueued()
    client = open_dashboard(provider, sign_in=_sign_in, actions=_RULES)
    headers = {"x-user": "viewer"}
    orders: list[tuple[str, str, dict[str, Any]]] = [
        ("/queues/event.a/pause", "queue.pause", {}),
        ("/queues/event.a/limits", "queue.limit", {"at_once": 1}),
        (f"/jobs/{job.job_id}/cancel", "job.cancel", {}),
        (f"/jobs/{job.job_id}/reveal", "payload.reveal", {"reason": "curious"}),
    ]
    for path, action, order in orders:
        logs.clear()
        sent = await client.post(f"/api/v1{path}", json=order, headers=headers)
        posted = await client.post(path, data={"_once": "", **order}, headers=headers)
        assert (sent.status_code, posted.status_code) == (403, 403), path
        assert sent.json()["action"] == action
        noted = [each for each in logs if each["event"] == "dashboard action"]
        assert [(each["actor"], each["action"], each["outcome"]) for each in noted] == [
            ("viewer", action, "refused")
        ] * 2
    assert (await provider.inspector.jobs.get(job.job_id)).state == "delayed"


async def test_check_19_a_hidden_queue_is_not_there_for_others(
    make_provider: Callable[..., EventProvider], open_dashboard: Open
) -> None:
    provider = make_provider()
    flows, hidden = WorkflowProvider(provider), Workflow("secret", input=int)

    @hidden.step()
    async def work(ctx: StepContext[int]) -> int:
        return ctx.input

    flows.register(hidden)
    async with provider, provider.worker(queues=["workflow.*"]):
        job = provider.emit("secret.made", 1)
        await job.enqueued()
        await provider.schedules.add("secret.made", id="hidden", cron="0 0 1 1 *")
        await provider.pause("secret.made")
        flow = await flows.execute(hidden, 1)
        await flow.result()
        client = open_dashboard(provider, flows=flows, sign_in=_sign_in, actions=_RULES)
        paths = [
            "/queues/event.secret.made",
            "/queues/event.secret.made/jobs?state=active",
            f"/jobs/{job.job_id}",
            f"/jobs/{flow.id}",
            f"/flows/{flow.id}",
            "/schedules/hidden",
            "/queues/workflow.secret.steps",
        ]
        for path in paths:
            for base in ("/api/v1",) if path.endswith("active") else ("", "/api/v1"):
                told = {name: await client.get(base + path, headers={"x-user": name}) for name in _ROLES}
                statuses = [answer.status_code for answer in told.values()]
                assert statuses == [404, 404, 200], base + path
        unknown = await client.get("/api/v1/jobs/no-job", headers={"x-user": "viewer"})
        denied = await client.get(f"/api/v1/jobs/{job.job_id}", headers={"x-user": "viewer"})
        assert denied.json()["detail"].replace(job.job_id, "no-job") == unknown.json()["detail"]
        for path in ("/", "/flows", "/schedules", "/api/v1/queues", "/api/v1/flows", "/api/v1/schedules"):
            assert "secret" not in (await client.get(path, headers={"x-user": "viewer"})).text, path
            assert "secret" in (await client.get(path, headers={"x-user": "admin"})).text, path
        denied = await client.post(
            f"/api/v1/jobs/{job.job_id}/cancel", json={}, headers={"x-user": "operator"}
        )
        assert denied.status_code == 404


async def test_who_may_not_cancel_flows_does_not_cancel_one_as_a_job(
    make_provider: Callable[..., EventProvider], open_dashboard: Open
) -> None:
    provider = make_provider()
    flows, workflow = WorkflowProvider(provider), Workflow("checkout", input=int)

    @workflow.step()
    async def work(ctx: StepContext[int]) -> int:
        return ctx.input

    flows.register(workflow)
    async with provider:
        flow = await flows.execute(workflow, 1)
        client = open_dashboard(provider, flows=flows, actions={"workflow.checkout": {"flow.cancel": False}})
        assert (await client.act(f"/jobs/{flow.id}/cancel")).status_code == 403
        assert (await client.act(f"/flows/{flow.id}/cancel")).status_code == 403
        assert (await flows.status(flow.id)).state == "pending"


async def test_the_program_decides_each_action_and_says_why_not(
    provider: EventProvider, open_dashboard: Open
) -> None:
    asked: list[tuple[str, Target]] = []

    def may(actor: Actor, action: str, target: Target) -> bool | str:
        asked.append((action, target))
        return "it is Friday" if action == "queue.pause" else True

    client = open_dashboard(provider, may=may)
    answer = await client.act("/queues/event.a@billing/pause")
    assert (answer.status_code, answer.json()["detail"]) == (403, "it is Friday")
    assert ("queue.pause", Target("queue", "event.a@billing", "a@billing")) in asked


@pytest.mark.parametrize("answer", [None, 1, "", [True]], ids=repr)
async def test_what_is_not_clearly_allowed_is_refused(
    provider: EventProvider, open_dashboard: Open, answer: Any
) -> None:
    client = open_dashboard(provider, may=lambda _actor, action, _target: action.endswith("read") or answer)
    assert (await client.act("/queues/event.a/pause")).status_code == 403


async def test_hooks_stand_before_and_after_an_action(provider: EventProvider, open_dashboard: Open) -> None:
    told: list[tuple[str, str, str]] = []

    async def check(_actor: Actor, _action: str, target: Target) -> str | None:
        return "not this one" if target.event == "b" else None

    def notify(actor: Actor, action: str, target: Target, outcome: str) -> None:
        told.append((action, target.event, outcome))
        raise ValueError("the channel is gone")

    client = open_dashboard(provider, before={"queue.pause": check}, after={"*": notify})
    assert (await client.act("/queues/event.a/pause")).status_code == 200
    assert (await client.act("/queues/event.a/pause")).json()["changed"] is False
    assert (await client.act("/queues/event.b/pause")).json()["detail"] == "not this one"
    assert told == [("queue.pause", "a", "changed"), ("queue.pause", "a", "unchanged")]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_hook_behind_an_action_may_be_a_plain_function_or_an_async_one(
    provider: EventProvider, open_dashboard: Open, logs: list[Any], is_async: bool
) -> None:
    told: list[str] = []

    def tell(_actor: Actor, action: str, _target: Target, _outcome: str) -> None:
        told.append(action)

    async def tell_later(actor: Actor, action: str, target: Target, outcome: str) -> None:
        tell(actor, action, target, outcome)

    client = open_dashboard(provider, after={"queue.pause": tell_later if is_async else tell})
    assert (await client.act("/queues/event.a/pause")).status_code == 200
    assert told == ["queue.pause"]
    assert [each for each in logs if each["event"] == "hook of the dashboard failed"] == []


async def test_check_20_read_only_refuses_each_unsafe_request(
    provider: EventProvider, open_dashboard: Open
) -> None:
    job = provider.emit("a", 1, delay="1 hour")
    await job.enqueued()
    await provider.schedules.add("a", id="nightly", cron="0 0 1 1 *")
    client = open_dashboard(provider, read_only=True)
    given: dict[str, Any] = {
        "reason": "x",
        "at_once": 1,
        "delay": "1s",
        "priority": 1,
        "run": 1,
        "action": "cancel",
        "state": "delayed",
        "expected": 1,
        "event": "a",
        "payload": 1,
    }
    names = {"queue": "event.a", "job": job.job_id, "flow": "f~1", "schedule": "nightly"}
    for act in ACTS:
        if any(part in act.path for part in ("{flow}", "{failure}", "{operation}")):
            continue  # it has none; `test_flows.py`, `test_failures.py` and `test_operations.py`
        path, form = act.path.format(**names), act.form.format(**names) or "/events/a/emit"
        known = {name: value for name, value in given.items() if name in act.order.__struct_fields__}
        fields = known if act.form else {name: given[name] for name in ("payload", "delay", "reason")}
        answers = [
            await client.request(act.method, f"/api/v1{path}", json=known),
            await client.post(
                form, data={**fields, "_name": names.get(act.form.partition("{")[2].partition("}")[0], "")}
            ),
        ]
        assert [each.status_code for each in answers] == [403, 403], path
        override = {"x-http-method-override": act.method}
        tried = [
            await client.get(f"/api/v1{path}", headers=override),
            await client.head(form, headers=override),
            await client.request("GET", form, content="reason=x"),
            await client.put(f"/api/v1{path}", json=given),
        ]
        assert all(each.status_code in (200, 404, 405) for each in tried), path
    page = (await client.get("/queues/event.a")).text
    assert 'method="post"' not in page
    assert (await provider.inspector.jobs.get(job.job_id)).state == "delayed"
    assert not (await provider.inspector.queues.controls("event.a"))[0].is_paused
    assert [each.paused for each in await provider.schedules.list()] == [""]
