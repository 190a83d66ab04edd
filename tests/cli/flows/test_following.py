"""`eventbus flows follow`: what it prints of a flow, and when it ends with which exit code."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from drivers.program import Program
from typer.testing import Result

from eventbus import EventProvider, Retry
from workflows import FlowContext, Signal, StepContext, Workflow, WorkflowProvider, durable, task

Invoke = Callable[..., Result]
Start = Callable[..., Program]
Until = Callable[..., Awaitable[None]]

approval = Signal("approval", str)


@task
async def write() -> str:
    return "a page"


@durable("paper")
async def paper(ctx: FlowContext[Any]) -> str:
    await ctx.step(write)
    return await ctx.wait_for(approval)


def _letters(*, spread: bool, gate: asyncio.Event) -> Workflow[str, Any]:
    """`type` fails once; then a sub-workflow waits for the approval; `send` waits for the gate, and
    may fail.
    """
    inner = Workflow[Any, Any]("inner", spread=spread)
    inner.wait(approval)
    letters = Workflow[str, Any]("letters", input=str, spread=spread, retry=Retry(attempts=2, delay=0.01))

    @letters.step(name="type")
    async def type_it(ctx: StepContext[str]) -> str:
        if ctx.attempt == 1:
            raise ValueError("no\npaper")
        return "typed"

    letters.flow(inner, name="check")

    @letters.step(retry=Retry(1))
    async def send(ctx: StepContext[str]) -> None:
        await gate.wait()
        if ctx.input == "fails":
            raise ValueError("no stamp")

    return letters


@asynccontextmanager
async def _serving(environment: dict[str, str], *workflows: Any) -> AsyncGenerator[WorkflowProvider]:
    provider = EventProvider(environment["EVENTBUS_URL"], prefix=environment["EVENTBUS_PREFIX"])
    flows = WorkflowProvider(provider)
    for each in workflows:
        flows.register(each)
    async with provider, provider.worker():
        yield flows


def _says(program: Program, step: str) -> bool:
    return any(json.loads(line).get("step") == step for line in program.output)


async def _signal_nested(flows: WorkflowProvider, flow_id: str) -> None:
    (nested,) = (await flows.tree(flow_id)).nested["check"]
    await flows.handle(nested.report.flow_id).signal(approval, "yes")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "spread", "end", "code"), [("good", False, "completed", 0), ("fails", True, "failed", 1)]
)
async def test_steps_are_told_as_they_end_and_then_the_flow(
    start: Start, environment: dict[str, str], until: Until, given: str, end: str, code: int, *, spread: bool
) -> None:
    gate = asyncio.Event()
    async with _serving(environment, letters := _letters(spread=spread, gate=gate)) as flows:
        flow = await flows.execute(letters, given)
        while not (await flows.tree(flow.id)).nested.get("check"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await _signal_nested(flows, flow.id)
        program = start("flows", "follow", flow.id, "--json")
        await until(lambda: _says(program, "check/approval"), "it follows")
        gate.set()
        assert await asyncio.to_thread(program.wait) == code
    lines = [json.loads(line) for line in program.output]
    ended = {line["step"]: line for line in lines if line.get("step")}
    assert (ended["type"]["state"], ended["type"]["attempts"]) == ("completed", 1)
    assert ended["check/approval"]["state"] == "completed"
    assert ended["send"]["state"] == end
    assert (lines[-1]["state"].partition(",")[0], "step" in lines[-1]) == (end, False)
    assert [line for line in lines if lines.count(line) > 1] == [], "each is told once"


@pytest.mark.parametrize("kind", ["function", "local", "spread"])
def test_where_nobody_looks_it_ends_when_the_flow_waits_for_somebody(
    invoke: Invoke, environment: dict[str, str], kind: str
) -> None:
    workflow: Any = paper if kind == "function" else _letters(spread=kind == "spread", gate=asyncio.Event())

    async def begin() -> str:
        async with _serving(environment, workflow) as flows:
            flow = await flows.execute(workflow, "good")
            found = asyncio.to_thread(invoke, "flows", "follow", flow.id)
            results.append(await found)
            return flow.id

    results: list[Result] = []
    flow_id = asyncio.run(begin())
    (result,) = results
    assert result.exit_code == 3
    last = result.stdout.splitlines()[-1]
    waits = "approval@1" if kind == "function" else "approval"
    assert re.search(rf"  {waits}  waiting  for signal approval: eventbus flows signal {flow_id}", last), last


@pytest.mark.slow
async def test_on_a_terminal_it_goes_on_when_somebody_has_answered(
    start: Start, environment: dict[str, str]
) -> None:
    screen, terminal = os.openpty()
    async with _serving(environment, paper) as flows:
        flow = await flows.execute(paper, None)
        program = start("flows", "follow", flow.id, output=terminal)
        os.close(terminal)
        with os.fdopen(screen, "rb", buffering=0) as shown:
            said = b""
            while b"for signal approval" not in said:
                said += await asyncio.to_thread(shown.read, 1000) or b""
            await flow.signal(approval, "yes")
            assert await flow.result() == "yes"
            assert await asyncio.to_thread(program.wait) == 0


def test_what_is_not_there_is_told(invoke: Invoke) -> None:
    result = invoke("flows", "follow", "letters~0123456789abcdef0123")
    assert (result.stdout, result.exit_code) == ("", 1)
    assert "letters~0123456789abcdef0123" in result.stderr
