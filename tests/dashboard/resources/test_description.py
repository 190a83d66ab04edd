"""The API does what its description says: schemathesis asks all of it, with data that fit and with data that
do not (check 25).
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import uvicorn

from eventbus import Event, EventProvider, Retry
from eventbus.dashboard import Dashboard
from eventbus.dashboard.desk import tail
from workflows import FlowContext, Signal, StepContext, Workflow, WorkflowProvider, durable

TOKEN = "a-token-that-nobody-guesses"
REAL: dict[str, dict[str, Any]] = {
    "DelayOrder": {"delay": "90s"},
    "EditOrder": {"payload": {"order_id": 1}, "revision": "*"},
    "EmitOrder": {"event": "placed", "payload": {"order_id": 1}, "delay": "1h", "wait": "1s"},
    "LimitOrder": {"rate": "1000/1m"},
    "OperationOrder": {"action": "retry", "state": "failed", "force": True},
    "CleanOrder": {"state": "cancelled", "force": True},
    "RetryGroupOrder": {"expected": 4},
    "RetryOrder": {"run": 1},
    "SignalOrder": {"payload": 7},
}
"""Orders that mean something to the API, beside those that its description allows."""
ONCE = Retry(attempts=1)
approval = Signal("approval", int)


class Order(msgspec.Struct):
    """What the event of this test carries."""

    order_id: int
    note: str = ""


placed: Event[Order, str] = Event("placed", payload=Order, result=str)


@durable("ask", signals=[approval])
async def ask(ctx: FlowContext[int]) -> int:
    """Wait for a number."""
    return await ctx.wait_for(approval)


checkout: Workflow[int, int] = Workflow("checkout", input=int, output=int, retry=ONCE)


@checkout.step()
async def reserve(ctx: StepContext[int]) -> int:
    return 1


@checkout.step(after=reserve)
async def charge(ctx: StepContext[int]) -> int:
    if ctx.input < 0:
        raise ValueError("no money")
    return 2


@checkout.completed
async def done(ctx: StepContext[int]) -> int:
    return 3


async def _wait_for(provider: EventProvider, job_id: str, state: str) -> None:
    while (await provider.inspector.jobs.get(job_id)).state != state:
        pass


async def _fill(provider: EventProvider, flows: WorkflowProvider) -> dict[str, list[Any]]:
    """Make jobs in each state, flows, schedules and an operation; return their names, by the parameters of
    paths.
    """
    jobs = [provider.emit(placed, Order(n), reply=False) for n in range(12)]
    later = [provider.emit(placed, Order(n), delay="1 hour", reply=False) for n in range(12)]
    for each in [*jobs, *later]:
        await each.enqueued()
    await _wait_for(provider, jobs[0].job_id, "failed")
    await provider.cancel(later[0].job_id, "not wanted")
    ended = [await flows.execute(checkout, n) for n in (1, -1)]
    for each, state in zip(ended, ("completed", "failed"), strict=True):
        await _wait_for(provider, each.id, state)
    waiting = [await flows.execute(ask, 1) for _ in range(3)]
    schedules = [f"nightly-{n}" for n in range(4)]
    for each in schedules:
        await provider.schedules.add(placed, id=each, cron="0 0 1 1 *", payload=Order(1))
    begun = await provider.inspector.operations.begin("retry", "event.placed", state="failed")
    return {
        "queue": ["event.placed", "workflow.checkout", "placed"],
        "job": [each.job_id for each in [*later[:6], *jobs[:4]]] + [ended[1].id],
        "edited job": [each.job_id for each in later[6:]],  # nobody cancels these before
        "operation": [begun.id],
        "event": ["placed"],
        "flow": [each.id for each in [*waiting, *ended]],
        "signal": ["approval", "other"],
        "schedule": schedules,
    }


class Counted:
    """An app that notes what was asked of another one, and with which status it was answered."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.answers: list[tuple[str, str, int]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def note(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.answers.append((scope["method"], scope["path"], message["status"]))
            await send(message)

        await self._app(scope, receive, note)


@asynccontextmanager
async def _serving(app: Any) -> AsyncGenerator[str]:
    """Serve an app on a free port; the value is its origin."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, lifespan="off", ws="none")
    server: Any = uvicorn.Server(config)
    running = asyncio.create_task(server._serve())
    while not server.started:  # noqa: ASYNC110  (uvicorn tells nobody)
        await asyncio.sleep(0.01)
    yield f"http://localhost:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await running


def _with_real(document: dict[str, Any], names: dict[str, list[Any]]) -> dict[str, Any]:
    """Return the description with what is really there as the first choice."""

    for methods in document["paths"].values():
        for method, operation in methods.items():
            for each in operation["parameters"]:
                if each["in"] == "path":
                    real = names["edited job" if method == "patch" else each["name"]]
                    each["schema"] = {"anyOf": [{"enum": real}, {**each["schema"], "minLength": 1}]}
                    each["examples"] = {str(n): {"value": name} for n, name in enumerate(real)}
            for body in operation.get("requestBody", {}).get("content", {}).values():
                kind = body["schema"]["$ref"].rpartition("/")[2]
                body["example"] = REAL.get(kind, {"reason": "why not"})
    for kind, fields in REAL.items():
        properties = document["components"]["schemas"][kind]["properties"]
        for field, real in fields.items():
            properties[field] = {"anyOf": [{"enum": [real]}, properties[field]]}
    return document


def _never_done(document: dict[str, Any], answers: list[tuple[str, str, int]]) -> set[str]:
    """Return the operations that were not even once answered with 200."""
    done = {
        (method, path.removeprefix("/api/v1") or "/") for method, path, status in answers if status == 200
    }
    return {
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method in methods
        if not any(
            each == method.upper() and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), asked)
            for each, asked in done
        )
    }


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_check_25_all_that_the_description_allows_and_forbids_is_answered_as_it_says(
    make_provider: Callable[..., EventProvider],
    stack: AsyncExitStack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tail, "SLICE_SECONDS", 0.02)
    provider = make_provider(reply_timeout=2)
    flows = WorkflowProvider(provider)
    flows.register(checkout)
    flows.register(ask)

    @provider.on(placed, retry=ONCE)
    async def place(order: Order) -> str:
        if order.order_id % 2 == 0:
            raise ValueError(f"no {order.order_id}")
        return "placed"

    await stack.enter_async_context(provider)
    await stack.enter_async_context(provider.worker())
    app = Counted(Dashboard(provider, flows=flows, token=TOKEN, allowed_hosts=["localhost"]))
    url = f"{await stack.enter_async_context(_serving(app))}/api/v1"
    bearer = f"Bearer {TOKEN}"
    names = await _fill(provider, flows)
    async with httpx2.AsyncClient(headers={"authorization": bearer}) as client:
        document = (await client.get(f"{url}/openapi.json")).json()
        groups = (await client.get(f"{url}/failures")).json()["failures"]
    names["failure"] = [each["id"] for each in groups if each["can_retry"]]
    (tmp_path / "openapi.json").write_bytes(msgspec.json.encode(_with_real(document, names)))
    asked = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("schemathesis")),
        *("run", "openapi.json", "--url", url, "--header", f"Authorization: {bearer}", "--no-color"),
        *(
            "--phases",
            "examples,coverage,fuzzing,stateful",
            "--max-examples",
            "12",
            "--generation-deterministic",
        ),
        # Which text is a time, or a payload that fits, no schema says. What a wrong token is told is checked
        # elsewhere: after five of them nobody is let in for a minute.
        *("--checks", "all", "--exclude-checks", "positive_data_acceptance,ignored_auth"),
        *("--generation-with-security-parameters", "false", "--suppress-health-check", "all"),
        *("--continue-on-failure", "--warnings", "off"),
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "120"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await asked.communicate()
    await provider.inspector.operations.run()  # what the last requests have begun
    assert asked.returncode == 0, told.decode()
    assert _never_done(document, app.answers) == set()
    assert {status for _, _, status in app.answers} >= {200, 404, 405, 409, 412, 415, 422}
    assert max(status for _, _, status in app.answers) < 500
