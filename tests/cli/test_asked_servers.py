"""Which server a command asks: that of its program, with its prefix; and what a look makes of a server
that is not there.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from drivers.servers import free_port
from typer.main import get_command
from typer.testing import CliRunner, Result

from eventbus import EventProvider
from eventbus.cli.app import app
from workflows import FlowContext, Signal, WorkflowProvider, durable

Until = Callable[..., Awaitable[None]]

_go = Signal("go", int)


@durable("asked", signals=[_go])
async def asked(ctx: FlowContext[int]) -> int:
    return await ctx.wait_for(_go)


_PROGRAM = """
from eventbus import EventProvider
from workflows import FlowContext, Signal, WorkflowProvider, durable

provider = EventProvider({url!r}, prefix={prefix!r})
flows = WorkflowProvider(provider)

go = Signal("go", int)

@durable("asked", signals=[go])
async def asked(ctx: FlowContext[int]) -> int:
    {body}
    return await ctx.wait_for(go)

flows.register(asked)

@provider.on("pinged")
async def pinged(number: int) -> int:
    return number
"""


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """Run a command line in an empty folder, with no server in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    for name in ("EVENTBUS_URL", "EVENTBUS_PREFIX"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: str) -> Result:
        sys.modules.pop("asked_program", None)
        return CliRunner().invoke(app, list(words))

    yield run
    sys.modules.pop("asked_program", None)


@pytest.mark.parametrize(
    "words",
    [
        ["queues"], ["queues", "list", "--json"], ["queues", "orders"], ["queues", "history", "a"],
        ["jobs", "list", "a"], ["jobs", "count", "a"], ["jobs", "show", "a~1"], ["jobs", "why", "a~1"],
        ["jobs", "find", "--correlation-id", "a"], ["jobs", "failures"], ["workers"], ["top", "--once"],
        ["groups"],
        ["schedules"], ["schedules", "show", "a"], ["operations", "list"], ["audit"], ["watch"], ["flows"],
        ["flows", "show", "a"],
        ["flows", "waiting"], ["flows", "follow", "a"], ["flows", "export", "out"], ["dashboard",
        "--read-only"],
        ["jobs", "retry", "a~1"], ["jobs", "retry-all", "a"], ["queues", "pause", "a"], ["flows", "cancel",
        "a"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_command_in_an_empty_folder_makes_nothing_and_names_the_server(
    alone: Callable[..., Result], tmp_path: Path, words: list[str]
) -> None:
    told = alone(*words)
    assert (told.exit_code, told.stdout) == (1, "")
    assert f"there is no embedded server in {tmp_path / '.eventbus'}; start a server there" in told.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_look_starts_no_server_in_a_folder_that_has_none_now(
    alone: Callable[..., Result], tmp_path: Path
) -> None:
    (tmp_path / ".eventbus").mkdir(mode=0o700)
    (tmp_path / ".eventbus" / "start.lock").touch()
    told = alone("flows", "list")
    assert (told.exit_code, told.stdout) == (1, "")
    assert f"the embedded server in {tmp_path / '.eventbus'} does not run" in told.stderr
    assert not (tmp_path / ".eventbus" / "server.pid").exists()


async def test_a_look_joins_a_server_that_runs(alone: Callable[..., Result], tmp_path: Path) -> None:
    async with EventProvider("embedded:./.eventbus", prefix="mine") as provider:
        await provider.emit("pinged", 1).enqueued()
        told = await asyncio.to_thread(alone, "queues", "--prefix", "mine")
        assert "pinged" in told.stdout
        none = await asyncio.to_thread(alone, "queues")
        assert (none.exit_code, none.stdout.partition(":")[0]) == (0, "no queue is known")
        assert f"asked embedded:{tmp_path / '.eventbus'} (prefix eb)" in none.stderr


async def test_commands_with_a_program_ask_its_server_with_its_prefix(
    alone: Callable[..., Result], tmp_path: Path, server_url: str, prefix: str, until: Until
) -> None:
    place = "asked_program:provider"

    def write(url: str, own: str, body: str) -> None:
        (tmp_path / "asked_program.py").write_text(_PROGRAM.format(url=url, prefix=own, body=body))

    provider = EventProvider(server_url, prefix=prefix)
    flows = WorkflowProvider(provider)
    flows.register(asked)
    async with provider, provider.worker():
        flow = await flows.execute(asked, 1)
        await until(lambda: _waits(flows, flow.id), "the flow waits")
        write(server_url, prefix, "pass")

        async def run(*words: str) -> Result:
            return await asyncio.to_thread(alone, *words)

        same = await run("flows", "check", place)
        assert (same.exit_code, same.stdout) == (0, "1 flows can be replayed\n")
        write(server_url, prefix, "await ctx.sleep('1s')")
        changed = await run("flows", "check", place)
        assert (changed.exit_code, flow.id in changed.stdout) == (1, True), changed
        write(f"redis://127.0.0.1:{free_port()}", "other", "pass")
        away = await run("flows", "check", place)
        assert (away.exit_code, "no server at" in away.stderr) == (1, True)
        there = await run("flows", "check", place, "--url", server_url, "--prefix", prefix)
        assert (there.exit_code, there.stdout) == (0, "1 flows can be replayed\n")
        write(server_url, prefix, "pass")
        elsewhere = await run("flows", "check", place, "--prefix", f"{prefix}none")
        assert (elsewhere.exit_code, elsewhere.stdout) == (0, "0 flows can be replayed\n")
        assert f"(prefix {prefix}none)" in elsewhere.stderr
        emitted = await asyncio.to_thread(_emit, tmp_path, "pinged", "7", "--app", place)
        assert (await provider.inspector.jobs.get(emitted)).queue == "event.pinged"
        sent = await run("flows", "signal", flow.id, "go", "5", "--app", place)
        assert sent.exit_code == 0, sent.stderr
        assert await flow.result(240) == 5
    assert not (tmp_path / ".eventbus").exists()


def _emit(folder: Path, *words: str) -> str:
    """Emit in a process of its own, since that listens to signals; return what it prints."""
    line = [sys.executable, "-m", "eventbus", "emit", *words]
    return subprocess.run(line, cwd=folder, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


async def _waits(flows: WorkflowProvider, flow_id: str) -> bool:
    return any(step.state == "waiting" for step in (await flows.report(flow_id)).steps.values())


def _commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    names = group.list_commands(None) if hasattr(group, "list_commands") else []
    for name in names:
        found = group.get_command(None, name)
        yield " ".join((*path, name)), found
        yield from _commands(found, (*path, name))


def test_every_command_that_takes_a_program_takes_another_server_and_prefix() -> None:
    takes, alone = set[str](), set[str]()
    for path, command in _commands(get_command(app)):
        metavars = {each.metavar or "" for each in command.params}
        names = {each.name for each in command.params}
        if any("MODULE:PROVIDER" in each for each in metavars):
            takes.add(path)
        if "url" in names and "prefix" not in names:
            alone.add(path)
        if path in takes:
            assert {"url", "prefix"} <= names, path
    assert takes == {
        "worker", "emit", "check", "flows check", "flows graph", "flows retry", "flows signal",
        "flows trigger",
    }  # fmt: skip
    assert not alone
