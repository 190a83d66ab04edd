"""`eventbus flows` and durable functions: what waits, a signal from a terminal, and a check before a
deploy.
"""

from __future__ import annotations

import asyncio
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import Result

from eventbus import EventProvider
from workflows import FlowContext, Signal, StepContext, Workflow, WorkflowProvider, durable, task
from workflows.cli import flow_history
from workflows.client.histories import recorded_flows
from workflows.client.open_waits import open_waits
from workflows.testing import replay

Invoke = Callable[..., Result]

approval = Signal("approval", str)

_APP = """
import time
from eventbus import EventProvider
from workflows import FlowContext, Signal, WorkflowProvider, durable, task

approval = Signal("approval", str)
provider = EventProvider()
flows = WorkflowProvider(provider)

@task
async def {first}() -> str:
    raise AssertionError("a check runs no step")

@durable("paper", signals=[approval])
async def paper(ctx: FlowContext[str]) -> str:
    await ctx.step({first})
    time.time()
    return await ctx.wait_for(approval)

flows.register(paper)
"""


@task
async def write() -> str:
    return "a secret"


@durable("paper")
async def paper(ctx: FlowContext[str]) -> str:
    await ctx.step(write)
    return await ctx.wait_for(approval)


@pytest.fixture
def flow_id(environment: dict[str, str]) -> str:
    """A flow that sleeps."""

    async def start() -> str:
        provider = EventProvider(environment["EVENTBUS_URL"], prefix=environment["EVENTBUS_PREFIX"])
        flows = WorkflowProvider(provider)
        flows.register(paper)
        async with provider, provider.worker():
            flow = await flows.execute(paper, "Ada")
            while not any(  # noqa: ASYNC110
                step.state == "waiting" for step in (await flow.report()).steps.values()
            ):
                await asyncio.sleep(0.01)
            return flow.id

    return asyncio.run(start())


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Write the program `paper_app`, whose first step has this name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write_app(first: str) -> None:
        sys.modules.pop("paper_app", None)
        (tmp_path / "paper_app.py").write_text(_APP.format(first=first))

    yield write_app
    sys.modules.pop("paper_app", None)


async def _until_waits(provider: EventProvider, count: int) -> None:
    jobs = provider.jobs
    while (  # noqa: ASYNC110
        sum([len(await open_waits(jobs, flow)) async for flow in recorded_flows(jobs)]) < count
    ):
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("spread", [False, True])
def test_a_graph_that_waits_is_listed_and_gets_a_signal_from_a_terminal(
    invoke: Invoke, environment: dict[str, str], *, spread: bool
) -> None:
    graph = Workflow[Any, Any]("graph", spread=spread)
    graph.wait(approval, timeout="1 day", name="decision")

    @graph.completed
    async def done(ctx: StepContext[Any]) -> Any:
        return ctx.result("decision")

    async def serve(flow_id: str = "") -> Any:
        provider = EventProvider(environment["EVENTBUS_URL"], prefix=environment["EVENTBUS_PREFIX"])
        flows = WorkflowProvider(provider)
        flows.register(graph)
        async with provider, provider.worker():
            if flow_id:
                return await flows.handle(flow_id, graph).result(240)
            flow = await flows.execute(graph, None)
            await _until_waits(provider, 1)
            return flow.id

    flow_id = asyncio.run(serve())
    (line,) = invoke("flows", "waiting", "--json").stdout.splitlines()
    listed = msgspec.json.decode(line)
    assert (listed["flow_id"], listed["position"], listed["waits_for"]) == (flow_id, "decision", "approval")
    assert listed["until_ms"] - listed["since_ms"] == pytest.approx(86_400_000, abs=10_000)
    assert "decision  waiting" in invoke("flows", "show", flow_id).stdout
    assert invoke("flows", "signal", flow_id, "approval", '"yes"').exit_code == 0
    assert asyncio.run(serve(flow_id)) == "yes"
    assert invoke("flows", "waiting").stdout == "no flow waits\n"


def test_what_waits_is_listed_and_a_signal_from_a_terminal_is_kept_for_it(
    invoke: Invoke, flow_id: str, environment: dict[str, str]
) -> None:
    listed = invoke("flows", "waiting")
    assert re.search(rf"{flow_id} +1 +signal approval +\d{{4}}-", listed.stdout)
    (line,) = invoke("flows", "waiting", "--json").stdout.splitlines()
    assert msgspec.json.decode(line)["waits_for"] == "approval"
    assert "approval@1  waiting" in invoke("flows", "show", flow_id).stdout
    wrong = invoke("flows", "signal", flow_id, "approval", "{yes}")
    assert (wrong.exit_code, wrong.stderr) == (2, "eventbus: expected the payload to be JSON, got: '{yes}'\n")
    for text in ('"\ud800"', r'"\ud800"', '{"a": NaN}'):
        wrong = invoke("flows", "signal", flow_id, "approval", text)
        assert (wrong.exit_code, "expected the payload to be JSON" in wrong.stderr) == (2, True)
    deep = invoke("flows", "signal", flow_id, "approval", "[" * 120 + "]" * 120)
    assert deep.exit_code == 2
    waits = "the flow waits for signal approval"
    typo = invoke("flows", "signal", flow_id, "aproval", '"yes"')
    assert (typo.exit_code, " ".join(typo.stdout.split())) == (
        0,
        f"signal aproval is sent to flow {flow_id}, which keeps it: nobody waits for it now; {waits}",
    )
    assert "signal aproval is kept, and nobody waits for it" in invoke("flows", "show", flow_id).stdout
    sent = invoke("flows", "signal", flow_id, "approval", '"yes"')
    assert (sent.exit_code, sent.stdout) == (0, f"signal approval is sent to flow {flow_id}\n")

    async def end() -> Any:
        provider = EventProvider(environment["EVENTBUS_URL"], prefix=environment["EVENTBUS_PREFIX"])
        flows = WorkflowProvider(provider)
        flows.register(paper)
        async with provider, provider.worker():
            return await flows.handle(flow_id, paper).result(240)

    assert asyncio.run(end()) == "yes"
    assert invoke("flows", "waiting").stdout == "no flow waits\n"


def test_a_release_is_checked_against_what_flows_have_recorded(
    invoke: Invoke, flow_id: str, program: Callable[[str], None]
) -> None:
    program("write")
    same = invoke("flows", "check", "paper_app:provider")
    assert (same.exit_code, same.stdout) == (0, "1 flows can be replayed\n")
    assert "time.time() in durable function 'paper'; use ctx.now()" in same.stderr
    program("rewrite")
    other = invoke("flows", "check", "paper_app:provider")
    assert other.exit_code == 1
    assert re.search(rf"{flow_id} +0 +step 'write' +step 'rewrite'", other.stdout)


def test_histories_are_exported_and_can_be_replayed(invoke: Invoke, flow_id: str, tmp_path: Path) -> None:
    done = invoke("flows", "export", str(tmp_path / "histories"), "--redact")
    assert done.stdout == f"1 flows are written to {tmp_path / 'histories'}\n"
    text = (tmp_path / "histories" / f"{flow_id}.json").read_text()
    assert "secret" not in text
    asyncio.run(replay(paper, text))


@pytest.mark.parametrize("is_there", [False, True])
def test_an_export_that_fails_leaves_nothing(
    invoke: Invoke, flow_id: str, tmp_path: Path, is_there: bool
) -> None:
    folder = tmp_path / "new" / "histories"
    if is_there:
        folder.mkdir(parents=True)
        (folder / f"{flow_id}.json").write_text("of before")

    def contents() -> list[tuple[str, str]]:
        return [(str(path), path.read_text() if path.is_file() else "") for path in tmp_path.rglob("*")]

    before = contents()
    unknown = invoke("flows", "export", str(folder), "--workflow", "papper")
    assert (unknown.exit_code, "papper" in unknown.stderr) == (1, True)
    assert contents() == before
    away = invoke("flows", "export", str(folder), "--url", "redis://127.0.0.1:1/0")
    assert away.exit_code != 0
    assert contents() == before

    (tmp_path / "file").write_text("a file")
    (tmp_path / "taken" / f"{flow_id}.json").mkdir(parents=True)  # in the place of the file
    before = contents()
    for place in (tmp_path / "file" / "inside", tmp_path / "taken"):
        assert invoke("flows", "export", str(place)).exit_code != 0
        assert contents() == before
    assert invoke("flows", "export", str(folder)).exit_code == 0
    assert [path.name for path in folder.iterdir()] == [f"{flow_id}.json"]


def test_of_several_files_none_is_put_where_a_folder_stands_in_the_place_of_one(tmp_path: Path) -> None:
    (tmp_path / "f5").mkdir()

    def export() -> None:
        with flow_history._all_or_nothing(tmp_path) as beside:  # pyright: ignore[reportPrivateUsage]
            for number in range(10):
                (beside / f"f{number}").touch()

    with pytest.raises(IsADirectoryError, match="f5"):
        export()
    assert [path.name for path in tmp_path.iterdir()] == ["f5"]


def test_with_the_program_a_signal_that_nobody_waits_for_is_refused(
    invoke: Invoke, flow_id: str, program: Callable[[str], None]
) -> None:
    program("write")
    wrong = invoke("flows", "signal", flow_id, "aproval", '"yes"', "--app", "paper_app:provider")
    assert wrong.exit_code == 2
    assert "declares no signal 'aproval'; its signals: 'approval'" in wrong.stderr
    unfit = invoke("flows", "signal", flow_id, "approval", "7", "--app", "paper_app:provider")
    assert unfit.exit_code == 2
    assert (
        invoke("flows", "signal", flow_id, "approval", '"yes"', "--app", "paper_app:provider").exit_code == 0
    )


def test_what_is_parked_is_listed_with_the_reason(
    invoke: Invoke, flow_id: str, environment: dict[str, str]
) -> None:
    @durable("paper")
    async def changed(ctx: FlowContext[str]) -> str:
        return await ctx.wait_for(approval)

    async def park() -> None:
        provider = EventProvider(environment["EVENTBUS_URL"], prefix=environment["EVENTBUS_PREFIX"])
        flows = WorkflowProvider(provider)
        flows.register(changed)
        async with provider, provider.worker():
            await flows.handle(flow_id).signal(approval, "yes")
            while not (await flows.report(flow_id)).is_parked:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    asyncio.run(park())
    reason = "at 0: recorded step 'write', code has wait 'approval'"
    for command in (["show", flow_id], ["list", "--json"], ["waiting", "--json"]):
        assert reason in invoke("flows", *command).stdout, command
    assert "  parked  " in invoke("flows", "show", flow_id).stdout
    assert " parked " in invoke("flows", "list").stdout
    assert "another worker: at 0" in invoke("flows", "waiting").stdout


_PARENT = """
from eventbus import EventProvider
from workflows import FlowContext, Signal, WorkflowProvider, durable, task

approval = Signal("approval", str)
provider = EventProvider()
flows = WorkflowProvider(provider)

@task
def double(number: int) -> int:
    return number * 2

@durable("child")
async def child(ctx: FlowContext[int]) -> str:
    await ctx.map(double, [ctx.input])
    return await ctx.wait_for(approval)

@durable("parent")
async def parent(ctx: FlowContext[int]) -> str:
    await ctx.map(double, [1, 2]{options})
    return await ctx.flow(child, 3)

flows.register(parent)
flows.register(child)
"""


def test_a_flow_with_children_is_shown_listed_checked_exported_and_replayed(
    invoke: Invoke, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for (
        name,
        value,
    ) in environment.items():  # the program is imported here, and keeps the server that it found then
        monkeypatch.setenv(name, value)

    def load(options: str) -> Any:
        sys.modules.pop("parent_app", None)
        (tmp_path / "parent_app.py").write_text(_PARENT.format(options=options))
        importlib.invalidate_caches()
        return importlib.import_module("parent_app")

    async def serve(parent: Any, child: Any, flow_id: str = "") -> Any:
        provider = EventProvider(environment["EVENTBUS_URL"], prefix=environment["EVENTBUS_PREFIX"])
        flows = WorkflowProvider(provider)
        flows.register(parent)
        flows.register(child)
        async with provider, provider.worker():
            if flow_id:
                return await flows.handle(flow_id, parent).result(240)
            flow = await flows.execute(parent, 0)
            while not (  # noqa: ASYNC110
                (children := (await flows.tree(flow.id)).nested.get("child@1"))
                and any(step.state == "waiting" for step in children[0].report.steps.values())
            ):
                await asyncio.sleep(0.01)
            return flow.id, children[0].report.flow_id

    app = load("")
    try:
        flow_id, child_id = asyncio.run(serve(app.parent, app.child))
        shown = invoke("flows", "show", flow_id).stdout
        found = re.findall(r"(double@0\.[01]|child@3?1?|approval@1)  (\w+)", shown)
        assert ("double@0.0", "completed") in found, shown
        assert ("approval@1", "waiting") in found, shown
        same = invoke("flows", "check", "parent_app:provider")
        assert (same.exit_code, same.stdout) == (0, "2 flows can be replayed\n")
        folder = tmp_path / "histories"
        assert invoke("flows", "export", str(folder), "--redact").exit_code == 0
        (text,) = [path.read_text() for path in folder.rglob("*.json") if path.name == f"{flow_id}.json"]
        asyncio.run(replay(app.parent, text))
        inner = child_id.replace("/", "+")
        asyncio.run(replay(app.child, (folder / f"{inner}.json").read_text()))
        assert invoke("flows", "signal", child_id, "approval", '"yes"').exit_code == 0
        assert asyncio.run(serve(app.parent, app.child, flow_id)) == "yes"
        app = load(", local=True")
        other = invoke("flows", "check", "parent_app:provider")
        assert other.exit_code == 1
        assert re.search(rf"{flow_id} +0\.0 +child 'double' +step 'double'", other.stdout)
    finally:
        sys.modules.pop("parent_app", None)
