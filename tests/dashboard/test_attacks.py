"""What an attack on the dashboard found: each way to see or to do what one may not is closed."""

from __future__ import annotations

import json
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest

from eventbus import EventProvider, HandlerError, Retry
from eventbus.dashboard import Actor
from workflows import StepContext, StepError, Workflow, WorkflowProvider

Open = Callable[..., Any]
Make = Callable[..., EventProvider]


async def test_rules_for_a_workflow_hold_for_its_schedules(
    provider: EventProvider, open_dashboard: Open
) -> None:
    workflow: Workflow[Any, Any] = Workflow("hid")
    workflow.step(lambda ctx: None, name="act")
    flows = WorkflowProvider(provider)
    flows.register(workflow)
    await flows.schedules.add(workflow, id="nightly", every="1 hour", input=None)
    rules = {"workflow.*": {"schedule.read": False, "schedule.run": False, "schedule.edit": False}}
    client = open_dashboard(provider, flows=flows, actions=rules)
    assert "nightly" not in (await client.get("/schedules")).text
    assert (await client.get("/api/v1/schedules")).json() == {"schedules": [], "cursor": None}
    assert (await client.act("/schedules/nightly/run")).status_code == 404
    other = open_dashboard(provider, flows=flows, actions={"hid": {"schedule.read": False}})
    assert "nightly" in (await other.get("/schedules")).text, "it is no event"


def _hides_salary(event: str, field: str) -> bool:
    return (event, field) == ("workflow.secretpay", "salary")


async def test_nested_flows_are_shown_as_their_own_rights_say(
    make_provider: Make, open_dashboard: Open
) -> None:
    inner: Workflow[Any, Any] = Workflow("secretpay")
    outer: Workflow[Any, Any] = Workflow("outer")

    @inner.step
    async def pay(ctx: StepContext[Any]) -> dict[str, str]:
        return {"salary": "SALARY99999"}

    outer.flow(inner)
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(outer)
    async with provider, provider.worker():
        handle = await flows.execute(outer, None)
        await handle.result()
        rules: dict[str, Any] = {"workflow.secretpay": {"payload.read": False}}
        for options in ({"actions": rules}, {"redact": _hides_salary}):
            client = open_dashboard(provider, flows=flows, **options)
            for path in (f"/flows/{handle.id}", f"/api/v1/flows/{handle.id}"):
                assert "SALARY99999" not in (await client.get(path)).text, (path, options)
        assert (
            "SALARY99999"
            in (await open_dashboard(provider, flows=flows).get(f"/api/v1/flows/{handle.id}")).text
        )


_SECRETS = ["line one\nline two", "pässwörd1", 'quo"ted\\value']


@pytest.mark.parametrize("secret", _SECRETS)
@pytest.mark.parametrize("quote", [repr, json.dumps, str])
async def test_causes_and_quoted_values_are_hidden_too(
    make_provider: Make, open_dashboard: Open, secret: str, quote: Callable[[str], str]
) -> None:
    provider = make_provider()

    @provider.on("paid", retry=Retry(attempts=1))
    async def pay(given: Any) -> None:
        raise RuntimeError(f"outer {quote(given['password'])}") from ValueError(
            f"inner {quote(given['password'])}"
        )

    async with provider, provider.worker():
        emission = provider.emit("paid", {"password": secret})
        with pytest.raises(HandlerError):
            await emission
        client = open_dashboard(provider)
        for path in (
            f"/jobs/{emission.job_id}",
            f"/api/v1/jobs/{emission.job_id}",
            "/api/v1/queues/event.paid/jobs?state=failed",
            "/api/v1/failures",
        ):
            text = (await client.get(path)).text
            told = json.loads(text) if "/api/" in path else text
            for form in (secret, repr(secret)[1:-1], json.dumps(secret)[1:-1]):
                assert form not in str(told), path
                assert json.dumps(form)[1:-1] not in text, path


async def test_what_an_error_repeats_of_a_step_is_hidden_in_every_list(
    make_provider: Make, open_dashboard: Open
) -> None:
    workflow: Workflow[Any, Any] = Workflow("leaky", retry=Retry(attempts=1))

    @workflow.step
    async def sign(ctx: StepContext[Any]) -> dict[str, str]:
        return {"token": "tok_FROMSTEP"}

    @workflow.step
    async def send(ctx: StepContext[Any]) -> None:
        raise ValueError(f"refused {ctx.result(sign)['token']}")

    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(workflow)
    async with provider, provider.worker():
        handle = await flows.execute(workflow, None)
        with pytest.raises(StepError):
            await handle.result()
        client = open_dashboard(provider, flows=flows)
        for path in (
            f"/flows/{handle.id}",
            "/flows",
            f"/jobs/{handle.id}",
            "/failures",
            "/queues/workflow.leaky?state=failed",
            "/api/v1/queues/workflow.leaky/jobs?state=failed",
        ):
            text = (await client.get(path)).text
            assert "refused" in text, path
            assert "tok_FROMSTEP" not in text, path


async def test_a_proxy_that_adds_a_line_or_a_port_does_not_hide_who_guesses(
    provider: EventProvider, open_dashboard: Open
) -> None:
    client = open_dashboard(provider, token="t" * 20, trusted_proxies=["127.0.0.1"])
    for forwarded in ("9.9.9.9", "9.9.9.9:PORT"):
        found: list[int] = []
        for number in range(7):
            lines = [
                ("x-forwarded-for", f"1.2.3.{number}"),
                ("x-forwarded-for", forwarded.replace("PORT", str(number + 1000))),
            ]
            headers = [*lines, ("authorization", "Bearer wrong")]
            found.append((await client.get("/api/v1/queues", headers=headers)).status_code)
        assert 429 in found, forwarded


async def test_a_revealed_payload_is_asked_for_each_time(
    provider: EventProvider, open_dashboard: Open, logs: list[MutableMapping[str, Any]]
) -> None:
    emission = provider.emit("paid", {"card": "4111111111111111"}, reply=False)
    await emission.enqueued()
    roles = {"admin"}
    client = open_dashboard(
        provider,
        sign_in=lambda request: Actor("ann", frozenset(roles)),
        actions={"*": {"payload.reveal": "admin"}},
    )
    headers = {"idempotency-key": "k"}
    path = f"/api/v1/jobs/{emission.job_id}/reveal"
    for _ in range(2):
        assert (await client.post(path, json={"reason": "why"}, headers=headers)).status_code == 200
    roles.clear()
    assert (await client.post(path, json={"reason": "why"}, headers=headers)).status_code == 403
    assert len([each for each in logs if each["event"] == "dashboard action"]) == 3
    long = {"idempotency-key": "k" * 129}
    assert (await client.post("/api/v1/queues/event.paid/pause", json={}, headers=long)).status_code == 422


async def test_an_action_that_breaks_is_in_the_audit(
    provider: EventProvider, open_dashboard: Open, logs: list[MutableMapping[str, Any]]
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("the check is broken")

    client = open_dashboard(provider, before={"queue.pause": broken})
    assert (await client.act("/queues/event.paid/pause", reason="x")).status_code == 500
    (noted,) = [each for each in logs if each["event"] == "dashboard action"]
    assert (noted["outcome"], noted["detail"]) == ("failed", "RuntimeError")


async def test_odd_queries_and_places_after_the_sign_in_are_no_errors(
    provider: EventProvider, open_dashboard: Open
) -> None:
    for number in range(3):
        await provider.emit("paid", number, reply=False, delay=60)
    client = open_dashboard(provider, token="t" * 20)
    headers = {"authorization": f"Bearer {'t' * 20}"}
    found = await client.get("/api/v1/queues/event.paid/jobs?state=delayed&limit=1&self=1", headers=headers)
    assert found.status_code == 422
    signed = await client.post("/sign-in", data={"token": "t" * 20, "next": "/€"})
    assert signed.status_code == 303
    assert signed.headers["location"].isascii()
