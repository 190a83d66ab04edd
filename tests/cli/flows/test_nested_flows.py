"""`eventbus flows` and flows that are nested in others: what they wait for is listed, and their code is
checked.
"""

from __future__ import annotations

import asyncio
import importlib
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis
from typer.testing import Result

from eventbus import EventProvider
from workflows import FlowContext, Signal, StepContext, Workflow, WorkflowProvider, durable
from workflows.client.histories import histories_of, recorded_flows
from workflows.client.open_waits import open_waits
from workflows.functions.history_check import FlowHistory
from workflows.testing import replay

Invoke = Callable[..., Result]

approval = Signal("approval", str)


@durable("asks")
async def asks(ctx: FlowContext[str]) -> str:
    return await ctx.wait_for(approval)


def make_flows(*, spread: bool) -> tuple[Workflow[str, str], Workflow[str, str], Any]:
    """Return a graph that waits, a graph around it, and a durable function around both."""
    inner = Workflow[str, str]("inner", input=str, output=str, spread=spread)
    inner.wait(approval, name="decision")

    @inner.completed
    async def said(ctx: StepContext[str]) -> str:
        return ctx.result("decision")

    middle = Workflow[str, str]("middle", input=str, output=str, spread=spread)
    ask = middle.flow(inner)

    @middle.completed
    async def passed_on(ctx: StepContext[str]) -> str:
        return ctx.result(ask)

    @durable("outer")
    async def outer(ctx: FlowContext[str]) -> tuple[str, str]:
        return await ctx.gather(ctx.flow(middle, ctx.input), ctx.flow(asks, ctx.input))

    return inner, middle, outer


async def _run(
    environment: dict[str, str], workflows: Any, act: Callable[[WorkflowProvider], Awaitable[Any]]
) -> Any:
    provider = EventProvider(environment["EVENTBUS_URL"], prefix=environment["EVENTBUS_PREFIX"])
    flows = WorkflowProvider(provider)
    for workflow in workflows:
        flows.register(workflow)
    async with provider, provider.worker():
        return await act(flows)


async def _until_waits(flows: WorkflowProvider, count: int) -> None:
    jobs = flows.provider.jobs
    while (  # noqa: ASYNC110
        sum([len(await open_waits(jobs, flow)) async for flow in recorded_flows(jobs)]) < count
    ):
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("spread", [False, True])
def test_a_nested_flow_that_waits_is_listed_with_its_root_and_gets_a_signal(
    invoke: Invoke, environment: dict[str, str], *, spread: bool
) -> None:
    workflows = (*make_flows(spread=spread), asks)
    outer = workflows[2]

    async def start(flows: WorkflowProvider) -> str:
        flow = await flows.execute(outer, "Ada")
        await _until_waits(flows, 2)
        return flow.id

    root = asyncio.run(_run(environment, workflows, start))
    lines = [msgspec.json.decode(line) for line in invoke("flows", "waiting", "--json").stdout.splitlines()]
    waiting = {line["flow_id"].rpartition("/")[2].partition("~")[0]: line for line in lines}
    assert {name: line["position"] for name, line in waiting.items()} == {"inner": "decision", "asks": "0"}
    assert {line["root_id"] for line in lines} == {root}
    table = invoke("flows", "waiting").stdout
    assert "part of" in table
    assert re.search(rf"{waiting['inner']['flow_id']} +decision +signal approval .* {root}\s", table)
    (line,) = invoke("flows", "waiting", "--json", "--workflow", "inner").stdout.splitlines()
    assert msgspec.json.decode(line) == waiting["inner"]
    assert invoke("flows", "waiting", "--workflow", "outer").stdout == "no flow waits\n"
    for line in lines:
        assert invoke("flows", "signal", line["flow_id"], "approval", '"yes"').exit_code == 0

    async def end(flows: WorkflowProvider) -> Any:
        return await flows.handle(root, outer).result(240)

    assert asyncio.run(_run(environment, workflows, end)) in (("yes", "yes"), ["yes", "yes"])
    assert invoke("flows", "waiting").stdout == "no flow waits\n"


_APP = """
from eventbus import EventProvider
from workflows import FlowContext, Signal, WorkflowProvider, durable, task

approval = Signal("approval", str)
provider = EventProvider()
flows = WorkflowProvider(provider)

@task
async def {first}() -> str:
    return "a secret"

@durable("asks")
async def asks(ctx: FlowContext[str]) -> str:
    await ctx.step({first})
    return await ctx.wait_for(approval)

@durable("holder")
async def holder(ctx: FlowContext[str]) -> str:
    return await ctx.flow(asks, ctx.input)

flows.register(holder)
flows.register(asks)
"""


@pytest.fixture
def load_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> Iterator[Callable[..., Any]]:
    """Load the program `nested_app`, whose function calls a task of this name."""
    for name, value in environment.items():  # the program keeps the server that it finds when it is imported
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def load(first: str) -> Any:
        sys.modules.pop("nested_app", None)
        (tmp_path / "nested_app.py").write_text(_APP.format(first=first))
        importlib.invalidate_caches()
        return importlib.import_module("nested_app")

    yield load
    sys.modules.pop("nested_app", None)


def test_a_function_inside_another_one_is_checked_and_exported_while_open_and_when_ended(
    invoke: Invoke, environment: dict[str, str], tmp_path: Path, load_program: Callable[..., Any]
) -> None:
    app = load_program("write")

    async def start(flows: WorkflowProvider) -> str:
        await flows.execute(app.holder, "Ada")
        await _until_waits(flows, 1)
        (flow_id,) = [
            each.flow_id
            async for each in histories_of(flows.provider.jobs, ["asks"], ended=False)
            if isinstance(each, FlowHistory)
        ]
        return flow_id

    nested = asyncio.run(_run(environment, [app.holder, app.asks], start))
    for is_open in (True, False):
        app = load_program("write")
        same = invoke("flows", "check", "nested_app:provider")
        assert (same.exit_code, same.stdout) == (0, "2 flows can be replayed\n"), same.stderr
        folder = tmp_path / f"{is_open}"
        assert invoke("flows", "export", str(folder), "--redact").exit_code == 0
        file = folder / (nested.replace("/", "+") + ".json")
        assert len(list(folder.iterdir())) == 2
        assert "secret" not in file.read_text()
        asyncio.run(replay(app.asks, file.read_text()))
        load_program("rewrite")
        other = invoke("flows", "check", "nested_app:provider")
        assert other.exit_code == 1
        assert re.search(rf"{nested} +0 +step 'write' +step 'rewrite'", other.stdout)
        if is_open:

            async def end(flows: WorkflowProvider) -> Any:
                await flows.handle(nested).signal(approval, "yes")
                return await flows.handle(nested.partition("/")[0]).result(240)

            asyncio.run(_run(environment, [app.holder, app.asks], end))


def test_a_nested_flow_that_is_parked_is_listed_with_the_reason(
    invoke: Invoke, environment: dict[str, str], load_program: Callable[..., Any]
) -> None:
    app = load_program("write")

    async def start(flows: WorkflowProvider) -> None:
        await flows.execute(app.holder, "Ada")
        await _until_waits(flows, 1)

    asyncio.run(_run(environment, [app.holder, app.asks], start))
    app = load_program("rewrite")

    async def park(flows: WorkflowProvider) -> None:
        jobs = flows.provider.jobs
        (nested,) = [each.flow_id async for each in recorded_flows(jobs, ["asks"])]
        await flows.handle(nested).signal(approval, "yes")
        while not (await flows.report(nested)).is_parked:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    asyncio.run(_run(environment, [app.holder, app.asks], park))
    assert "another worker: at 0: recorded step 'write'" in invoke("flows", "waiting").stdout


def test_a_record_that_cannot_be_read_costs_only_its_own_flow(
    invoke: Invoke, environment: dict[str, str], tmp_path: Path
) -> None:
    async def start(flows: WorkflowProvider) -> str:
        await flows.execute(asks, "Ada")
        broken = await flows.execute(asks, "Eva")
        await _until_waits(flows, 2)
        return broken.id

    broken = asyncio.run(_run(environment, [asks], start))

    async def damage() -> None:
        async with Redis.from_url(environment["EVENTBUS_URL"]) as redis:
            (key,) = [each async for each in redis.scan_iter(match=f"*journal*{broken}")]
            await redis.rpush(key, "no entry")

    asyncio.run(damage())
    waiting = invoke("flows", "waiting", "--json")
    assert len(waiting.stdout.splitlines()) == 1
    assert f"warning: the journal of flow {broken} cannot be read" in waiting.stderr
    exported = invoke("flows", "export", str(tmp_path))
    assert exported.stdout == f"1 flows are written to {tmp_path}\n"
    assert f"warning: flow {broken} is left out" in exported.stderr
