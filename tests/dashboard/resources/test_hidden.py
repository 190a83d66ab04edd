"""What one may not see is nowhere (check 19).

Every route is asked by somebody who may not see an event and a workflow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from eventbus import EventProvider, Retry
from eventbus.dashboard import Actor
from eventbus.dashboard.api.table import ACTS
from workflows import FlowContext, Signal, StepContext, Workflow, WorkflowProvider, durable

Open = Callable[..., Any]

_EVENT, _FLOW = "veiled.paid", "shrouded"
_NAMES = ("veiled", "shrouded")
_RULES: dict[str, dict[str, bool | str]] = {
    "veiled.*": {"queue.read": "admin"},
    "workflow.shrouded": {"flow.read": "admin"},
}
_ADMIN, _VIEWER = {"x-user": "admin"}, {"x-user": "viewer"}
_ORDERS: dict[str, dict[str, Any]] = {
    "/limits": {"at_once": 1},
    "/delay": {"delay": "1h"},
    "/priority": {"priority": 1},
    "/reveal": {"reason": "curious"},
    "/operations": {"action": "cancel", "state": "delayed"},
    "/clean": {"state": "delayed"},
    "/emissions": {"event": _EVENT, "payload": 1},
    "PATCH": {"payload": 1, "revision": "*"},
    "failures": {"expected": 1},
    "flows": {"run": 1},
}

go = Signal("go", int)


@durable(_FLOW, signals=[go])
async def shrouded(ctx: FlowContext[int]) -> int:
    """Wait for a number."""
    return await ctx.wait_for(go)


seen: Workflow[int, int] = Workflow("seen", input=int, output=int)
seen.flow(shrouded, name="inner")


@seen.completed
async def done(ctx: StepContext[int]) -> int:
    return 1


def _sign_in(request: Any) -> Actor | None:
    name = request.headers.get("x-user", "")
    return Actor(name, frozenset({"admin"} if name == "admin" else ())) if name else None


class Things(NamedTuple):
    """The names of what is there, by the parameters of paths: of what is hidden.

    And the visible flow around one of them.
    """

    hidden: dict[str, str]
    around: str


async def _until(ask: Callable[[], Any]) -> Any:
    while not (found := await ask()):
        pass
    return found


async def _fail(n: int) -> None:
    raise ValueError("no money")


async def _fill(provider: EventProvider, flows: WorkflowProvider, admin: Any) -> Things:
    inspector = provider.inspector
    failed = provider.emit(_EVENT, 1, reply=False, idempotency_key="seven", correlation_id="chain")
    await failed.enqueued()

    async def has_failed() -> bool:
        return (await inspector.jobs.get(failed.job_id)).state == "failed"

    await _until(has_failed)
    later = provider.emit(_EVENT, 2, delay="1 hour", reply=False)
    await later.enqueued()
    await provider.schedules.add(_EVENT, id="nightly", cron="0 0 1 1 *", payload=1)
    await provider.schedules.add("plain", id="daily", cron="0 0 1 1 *", payload=1)
    alone, around = await flows.execute(shrouded, 1), await flows.execute(seen, 1)
    await _until(lambda: flows.waits(alone.id))

    async def nested() -> Any:
        return (await flows.tree(around.id)).nested

    await _until(nested)
    begun = await inspector.operations.begin("retry", _EVENT, state="cancelled")  # it changes nothing
    for path in (
        f"/queues/event.{_EVENT}/pause",
        f"/flows/{alone.id}/signals/other",
        "/schedules/nightly/pause",
        f"/jobs/{later.job_id}/promote",
    ):
        answer = await admin.post(f"/api/v1{path}", json={"reason": "because"}, headers=_ADMIN)
        assert answer.status_code in (200, 409, 422), answer.text
    (group,) = (await admin.get("/api/v1/failures", headers=_ADMIN)).json()["failures"]
    return Things(
        {
            "queue": f"event.{_EVENT}",
            "job": later.job_id,
            "operation": begun.id,
            "event": _EVENT,
            "flow": alone.id,
            "signal": "go",
            "schedule": "nightly",
            "failure": group["id"],
        },
        around.id,
    )


def _order_of(act: Any) -> dict[str, Any]:
    for part, order in _ORDERS.items():
        if act.path.endswith(part) or part == act.method:
            return order
    if act.path in ("/failures/{failure}/retry", "/flows/{flow}/retry"):
        return _ORDERS[act.path.split("/")[1]]
    return {}


@pytest.mark.slow
async def test_check_19_what_one_may_not_see_is_on_no_route(
    make_provider: Callable[..., EventProvider], open_dashboard: Open
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(shrouded)
    flows.register(seen)
    provider.on(_EVENT, retry=Retry(attempts=1))(_fail)
    provider.on(_EVENT, group="veiled.group")(_nothing)
    async with provider, provider.worker():
        client = open_dashboard(provider, flows=flows, sign_in=_sign_in, actions=_RULES)
        hidden, around = await _fill(provider, flows, client)
        unknown = {name: f"no-{name}" for name in hidden} | {
            "queue": "event.no-queue",
            "flow": "no~0123456789abcdef0123",
        }

        routes = client._transport.app._routes
        told = 0
        for path, (_, handlers) in routes.items():
            if "GET" not in handlers or "{" in path or path.endswith("/stream"):
                continue  # the stream has the same changes as `/tail`, for five seconds
            for query in ("", "?q=shrouded", "?q=veiled", "?q=key:seven", "?q=correlation-id:chain"):
                if query and not path.endswith(("/find", "/search")):
                    continue
                if path.endswith("/search") and not query:
                    continue
                answer = await client.get(path + query, headers=_VIEWER)
                text = answer.text.replace(query[3:], "") if query else answer.text
                assert not [name for name in _NAMES if name in text], (path, query)
                whole = (await client.get(path + query, headers=_ADMIN)).text
                told += any(name in whole for name in _NAMES)
        assert told > 15  # they are there for whoever may see them

        for path, (_, handlers) in routes.items():  # what is about one thing
            if "GET" not in handlers or "{" not in path:
                continue
            found = await client.get(path.format(**hidden), headers=_VIEWER)
            missing = await client.get(path.format(**unknown), headers=_VIEWER)
            statuses = (found.status_code, missing.status_code)
            if path.endswith("/bulk") or "{queue}" in path:
                statuses = (found.status_code, 404)
            assert statuses == (404, 404), path
            if "{queue}" not in path and path.startswith("/api/"):
                same = found.json()["detail"]
                for name, value in hidden.items():
                    same = same.replace(value, unknown[name])
                assert same == missing.json()["detail"], path

        for path, (_, handlers) in routes.items():  # a visible flow around one that is hidden
            if "GET" in handlers and "{flow}" in path:
                text = (await client.get(path.format(flow=around), headers=_VIEWER)).text
                assert not [name for name in _NAMES if name in text], path

        before = await _state(provider)
        for act in ACTS:
            path = act.path.format(**hidden)
            answer = await client.request(act.method, f"/api/v1{path}", json=_order_of(act), headers=_VIEWER)
            assert answer.status_code == 404, (act.path, answer.text)
            if act.form:
                name = hidden[act.path.split("{")[1].split("}")[0]]
                form = {"_name": name, **_order_of(act)}
                answer = await client.post(act.form.format(**hidden), data=form, headers=_VIEWER)
                assert answer.status_code == 404, (act.form, answer.text)
        assert (
            await client.post(f"/events/{_EVENT}/emit", data={"reason": "x"}, headers=_VIEWER)
        ).status_code == 404
        assert await _state(provider) == before
        await provider.inspector.operations.run()


async def _state(provider: EventProvider) -> list[Any]:
    inspector = provider.inspector
    return [
        await inspector.queues.count(_EVENT),
        await inspector.queues.controls(_EVENT),
        [(each.id, each.paused, each.last_job) for each in await provider.schedules.list()],
        len((await inspector.audit.list(limit=1000)).entries),
    ]


async def _nothing(_: int) -> None: ...
