"""`eventbus flows`, in this process: what it prints of real flows, and what it does to them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from eventbus import EventBusError, EventProvider, Retry
from workflows import FlowContext, FlowHandle, StepContext, Workflow, WorkflowProvider, durable

Invoke = Callable[..., Result]
Act = Callable[["Mill"], Coroutine[Any, Any, Any]]


class Mill:
    """A workflow with a sub-workflow, and what of it is broken; run by a worker for as long as `act`
    takes.
    """

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.gate = asyncio.Event()
        self.packing, self.milling = Workflow[Any, Any]("packing"), Workflow[Any, Any]("milling")
        self.packing.step(self.wrap).rollback(self.unwrap)
        grind = self.milling.step(self.grind, retry=Retry(attempts=2, delay=0.001))
        grind.rollback(retry=Retry(attempts=1))(self.sweep)
        self.milling.flow(self.packing, name="pack")
        self.milling.step(self.deliver, retry=Retry(attempts=1))
        self.flows: WorkflowProvider

    def check(self, what: str) -> None:
        if what in self.broken:
            raise ValueError(f"{what} is\nbroken")

    async def grind(self, ctx: StepContext[Any]) -> int:
        if ctx.attempt == 1:
            self.check("grind")
        return 1

    async def sweep(self, ctx: StepContext[Any], ground: int) -> None:
        self.check("sweep")

    async def wrap(self, ctx: StepContext[Any]) -> str:
        return "wrapped"

    async def unwrap(self, ctx: StepContext[Any], wrapped: str) -> None:
        pass

    async def deliver(self, ctx: StepContext[Any]) -> None:
        if "gate" in self.broken:
            await self.gate.wait()
        self.check("deliver")

    async def run(self, *broken: str, key: str | None = None) -> FlowHandle[Any]:
        """Run a flow to its end."""
        self.broken = set(broken)
        handle = await self.flows.execute(self.milling, None, idempotency_key=key)
        try:
            await handle.result()
        except EventBusError:
            pass  # as the test wants it
        return handle


@pytest.fixture
def act(environment: dict[str, str]) -> Callable[[Act], Any]:
    """Run a coroutine function beside a worker of the mill."""

    async def within(function: Act) -> Any:
        mill = Mill()
        provider = EventProvider(
            environment["EVENTBUS_URL"],
            prefix=environment["EVENTBUS_PREFIX"],
            retry=Retry(attempts=2, delay=0.001),
        )
        mill.flows = WorkflowProvider(provider)
        mill.flows.register(mill.milling)
        async with provider, provider.worker():
            return await function(mill)

    return lambda function: asyncio.run(within(function))


def _ids(act: Callable[[Act], Any], *runs: tuple[str, ...]) -> list[str]:
    async def make(mill: Mill) -> list[str]:
        return [(await mill.run(*broken)).id for broken in runs]

    return act(make)


def _shown(text: str) -> str:
    """The output with times and spans of one length."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d", "MOMENT", text)
    return re.sub(r"\d+\.\d\d s", "SPAN", text)


def test_without_flows_it_says_so(invoke: Invoke) -> None:
    for words in (("flows",), ("flows", "list")):
        result = invoke(*words)
        assert (result.stdout, result.exit_code) == ("no flows\n", 0)
        assert result.stderr.startswith("asked ")
    told = invoke("flows", "--json")
    assert (told.stdout, told.stderr.partition(" ")[0]) == ("", "asked")


def test_a_misspelt_workflow_is_told_with_the_close_one(
    invoke: Invoke, act: Callable[[Act], Any], server_url: str, tmp_path: Path
) -> None:
    _ids(act, ())
    for words in (("list",), ("list", "--json"), ("waiting",), ("export", str(tmp_path))):
        result = invoke("flows", *words, "--workflow", "miling")
        assert (result.stdout, result.exit_code) == ("", 1)
        assert result.stderr == (
            f"eventbus: there is no workflow miling on the server {server_url}; did you mean milling?\n"
        )
        assert invoke("flows", *words, "--workflow", "milling").exit_code == 0
    result = invoke("flows", "--workflow", "zzz", "--state", "failed")
    assert result.stderr.endswith(
        f"there is no workflow zzz on the server {server_url}; `eventbus queues` lists all\n"
    )
    assert invoke("flows", "--workflow", "milling", "--state", "failed").stdout == "no flows\n"


def test_the_newest_flows_come_first_with_their_outcome(invoke: Invoke, act: Callable[[Act], Any]) -> None:
    good, bad = _ids(act, (), ("deliver", "sweep"))
    result = invoke("flows")
    lines = [line.split() for line in _shown(result.stdout).splitlines()]
    assert lines[0] == ["flow", "state", "run", "done", "began", "took", "error"]
    assert lines[1][:9] == [
        bad,
        "failed,",
        "rollback",
        "incomplete",
        "1",
        lines[1][5],
        "MOMENT",
        "SPAN",
        "StepError:",
    ]
    assert lines[2] == [good, "completed", "1", lines[2][3], "MOMENT", "SPAN"]
    assert (len(lines), result.stderr, result.exit_code) == (3, "", 0)


def test_a_list_is_narrowed_and_told_as_json_lines(invoke: Invoke, act: Callable[[Act], Any]) -> None:
    good, bad, newer = _ids(act, (), ("deliver",), ())

    def listed(*words: str) -> list[str]:
        return [json.loads(line)["flow_id"] for line in invoke("flows", *words, "--json").stdout.splitlines()]

    assert listed() == [newer, bad, good]
    assert listed("list", "--limit", "2") == [newer, bad]
    assert listed("--state", "failed") == [bad]
    assert listed("--state", "completed", "--limit", "1") == [newer]
    assert listed("--state", "running") == []
    assert listed("--workflow", "milling") == [newer, bad, good]
    assert listed("--workflow", "packing") == []
    line = invoke("flows", "--state", "failed", "--json").stdout
    assert (
        json.loads(line).items()
        >= {"workflow": "milling", "state": "failed", "rollback": "complete", "run": 1}.items()
    )


def test_a_flow_is_shown_as_a_tree_with_attempts_sub_workflows_and_rollbacks(
    invoke: Invoke, act: Callable[[Act], Any]
) -> None:
    (flow_id,) = _ids(act, ("grind", "deliver", "sweep"))
    result = invoke("flows", "show", flow_id)
    *lines, error = _shown(result.stdout).splitlines()
    assert lines == [
        f"{flow_id}  failed, rollback incomplete  began MOMENT, took SPAN",
        "├── grind  completed  SPAN  2 attempts",
        "│   └── ValueError: grind is broken",
        "├── pack  completed  SPAN",
        f"│   └── {flow_id}/1/pack/0/packing~0  completed  began MOMENT, took SPAN",
        "│       └── wrap  completed  SPAN",
        "├── deliver  failed  SPAN",
        "│   └── ValueError: deliver is broken",
        "├── rollback incomplete",
        "│   ├── pack/wrap  rolled back",
        "│   └── grind  failed  ValueError: sweep is broken",
    ]
    assert error.startswith(
        f"└── StepError: step 'deliver' of flow {flow_id} failed: ValueError: deliver is broken"
    )
    assert (result.stderr, result.exit_code) == ("", 0)


def test_a_flow_as_json_is_one_document(invoke: Invoke, act: Callable[[Act], Any]) -> None:
    (flow_id,) = _ids(act, ("grind",))
    shown = json.loads(invoke("flows", "show", flow_id, "--json").stdout)
    assert shown["report"]["steps"]["grind"]["result"] == 1
    assert shown["errors"] == {"grind": ["ValueError: grind is\nbroken"]}
    (nested,) = shown["nested"]["pack"]
    assert (nested["report"]["state"], nested["report"]["order"]) == ("completed", ["wrap"])


def test_a_running_flow_is_cancelled_and_a_second_time_there_is_nothing_to_cancel(
    invoke: Invoke, act: Callable[[Act], Any]
) -> None:
    said: list[Result] = []

    async def cancel(mill: Mill) -> str:
        mill.broken = {"gate"}
        handle = await mill.flows.execute(mill.milling, None)
        while "deliver" not in (await _active(handle)):  # noqa: ASYNC110  (of the server)
            await asyncio.sleep(0.002)
        said.append(await asyncio.to_thread(invoke, "flows", "--state", "running"))
        said.append(
            await asyncio.to_thread(invoke, "flows", "cancel", handle.id, "--reason", "no more grain")
        )
        with pytest.raises(EventBusError, match="no more grain"):
            await handle.result()
        return handle.id

    async def _active(handle: FlowHandle[Any]) -> list[str]:
        steps = (await handle.report()).steps
        return [name for name, step in steps.items() if step.state == "active"]

    flow_id = act(cancel)
    assert f"{flow_id}  running" in said[0].stdout
    assert (
        said[1].stdout.splitlines()[-1] == f"flow {flow_id} is being cancelled"
    )  # the worker logs beside it
    assert said[1].exit_code == 0
    again = invoke("flows", "cancel", flow_id)
    assert again.stderr == f"eventbus: flow {flow_id} is cancelled, there is nothing to cancel\n"
    assert (again.stdout, again.exit_code) == ("", 1)


def test_a_failed_flow_is_retried_and_a_worker_goes_on_with_it(
    invoke: Invoke, act: Callable[[Act], Any]
) -> None:
    (flow_id,) = _ids(act, ("deliver",))
    result = invoke("flows", "retry", flow_id)
    assert (result.stdout, result.exit_code) == (f"flow {flow_id} runs again, for the 2nd time\n", 0)
    twice = invoke("flows", "retry", flow_id)
    assert "is running; only a flow that has ended can be retried" in twice.stderr
    assert twice.exit_code == 1

    async def wait(mill: Mill) -> None:
        await mill.flows.handle(flow_id).result()

    act(wait)
    lines = _shown(invoke("flows", "show", flow_id).stdout).splitlines()
    assert lines[0] == f"{flow_id}  completed  run 2  began MOMENT, took SPAN"
    assert lines[1].startswith("├── earlier: StepError: step 'deliver' of flow")
    assert lines[-1] == "└── deliver  completed  SPAN"
    assert "rollback" not in "".join(lines)
    assert invoke("flows", "retry", flow_id, "--resume").exit_code == 0
    act(wait)
    assert "run 3" in invoke("flows", "show", flow_id).stdout
    assert "3rd time" not in invoke("flows", "retry", flow_id, "--from-start").stdout
    act(wait)


def test_a_flow_that_has_ended_is_removed(invoke: Invoke, act: Callable[[Act], Any]) -> None:
    good, bad = _ids(act, (), ("deliver",))
    removed = invoke("flows", "remove", bad)
    assert (removed.stdout, removed.stderr, removed.exit_code) == (f"flow {bad} is removed\n", "", 0)
    again = invoke("flows", "remove", bad)
    assert (again.stdout, again.exit_code) == ("", 1)
    assert bad in again.stderr
    assert [json.loads(line)["flow_id"] for line in invoke("flows", "--json").stdout.splitlines()] == [good]


@pytest.mark.parametrize(
    ("words", "told", "code"),
    [
        (["show", "milling~00000000000000000000"], "no record of job", 1),
        (["cancel", "milling~00000000000000000000"], "no record of job", 1),
        (["retry", "milling~00000000000000000000"], "no record of job", 1),
        (["show", "milling"], "'milling' is no id of a flow; expected", 1),
        (["cancel", "milling"], "'milling' is no id of a flow; expected", 1),
        (["retry", "milling"], "'milling' is no id of a flow; expected", 1),
        (["retry", "milling~00000000000000000000/1/pack/0/packing~0"], "is a part of flow", 2),
        (["retry", "a", "--resume", "--from-start"], "expected either --from-start or --resume, got both", 2),
        (["--state", "broken"], "expected --state to be one of pending, running", 2),
        (["--limit", "0"], "see `eventbus flows list --help`", 2),
        (["mend"], "see `eventbus flows --help`", 2),
        (["list", "--url", "ftp://host"], "expected a URL of redis://", 2),
    ],
)
def test_what_is_wrong_is_told_on_one_line(invoke: Invoke, words: list[str], told: str, code: int) -> None:
    result = invoke("flows", *words)
    assert told in result.stderr
    assert (result.stdout, result.stderr.count("\n"), result.exit_code) == ("", 1, code)


def test_a_server_that_is_not_there_is_told(invoke: Invoke, unused_tcp_port: int) -> None:
    result = invoke("flows", "--url", f"redis://127.0.0.1:{unused_tcp_port}")
    assert "start a server there, or name another one with --url" in result.stderr
    assert result.exit_code == 1


def test_help_names_the_commands(invoke: Invoke) -> None:
    result = invoke("flows", "--help")
    assert all(word in result.stdout for word in ("list", "show", "cancel", "retry"))
    assert result.exit_code == 0


def test_a_flow_is_shown_with_what_it_got_and_returned_and_long_values_in_full_if_asked(
    invoke: Invoke, environment: dict[str, str]
) -> None:
    @durable("echo", state=str)
    async def echo(ctx: FlowContext[str]) -> str:
        ctx.state = "told"
        return ctx.input.upper()

    async def run() -> str:
        provider = EventProvider(environment["EVENTBUS_URL"], prefix=environment["EVENTBUS_PREFIX"])
        flows = WorkflowProvider(provider)
        flows.register(echo)
        async with provider, provider.worker():
            flow = await flows.execute(echo, "a" * 600)
            await flow.result(240)
            return flow.id

    flow_id = asyncio.run(run())
    shown = invoke("flows", "show", flow_id).stdout
    assert f'input "{"a" * 499}... (102 characters more)' in shown
    assert 'state "told"' in shown
    assert "AAA" in shown
    assert f'output "{"A" * 600}"' in invoke("flows", "show", flow_id, "--full").stdout
    report = json.loads(invoke("flows", "show", flow_id, "--json").stdout)["report"]
    assert (report["input"], report["output"], report["own_state"]) == ("a" * 600, "A" * 600, "told")
