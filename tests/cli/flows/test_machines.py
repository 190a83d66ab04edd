"""`eventbus flows` and state machines: triggers, signals and retries from a terminal, with their exit codes
and errors.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import Result

from eventbus import EventProvider
from workflows import END, FlowHandle, FlowReport, MachineContext, StateMachine, WorkflowProvider, transition

Invoke = Callable[..., Result]
Serve = Callable[..., Any]

_APP = """
from eventbus import EventProvider
from workflows import WorkflowProvider
from test_machines import Review

provider = EventProvider()
flows = WorkflowProvider(provider)
flows.register(Review)
"""

broken: set[str] = set()


class Verdict(msgspec.Struct):
    ok: bool


class Review(StateMachine[int], name="review", start="draft"):
    @transition("draft", to="waiting")
    async def prepare(self, ctx: MachineContext[int]) -> None: ...

    @transition("waiting", to="approved", wait=Verdict, when=lambda _, verdict: verdict.ok)
    async def approve(self, ctx: MachineContext[int], verdict: Verdict) -> None:
        if "approve" in broken:
            raise ValueError("approve is broken")

    @transition("approved", to=END, wait=None)
    async def publish(self, ctx: MachineContext[int], payload: None) -> str:
        return "published"


@pytest.fixture
def serve(environment: dict[str, str]) -> Serve:
    """Run a worker until the report of a flow, begun here or named, is as the test wants it; return the
    report.
    """

    async def until(
        wanted: Callable[[FlowReport], object], flow_id: str = "", *, worker: bool = True
    ) -> FlowReport:
        provider = EventProvider(environment["EVENTBUS_URL"], prefix=environment["EVENTBUS_PREFIX"])
        flows = WorkflowProvider(provider)
        flows.register(Review)

        async def watch() -> FlowReport:
            flow: FlowHandle[Any] = flows.handle(flow_id) if flow_id else await flows.execute(Review, 1)
            async with asyncio.timeout(240):
                while not wanted(report := await flow.report()):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            return report

        async with provider:
            if not worker:
                return await watch()
            async with provider.worker():
                return await watch()

    return lambda *args, **options: asyncio.run(until(*args, **options))


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The program of the worker, for `--app`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "test_machines", sys.modules[__name__])
    (tmp_path / "review_app.py").write_text(_APP)
    yield "review_app:provider"
    sys.modules.pop("review_app", None)


@pytest.fixture(autouse=True)
def _whole() -> None:
    broken.clear()


def rests(place: str) -> Callable[[FlowReport], bool]:
    def check(report: FlowReport) -> bool:
        return report.state == "waiting" and report.machine is not None and report.machine.place == place

    return check


def told(result: Result) -> tuple[int, str]:
    """The exit code and what was printed, of which one is for errors."""
    assert not (result.stdout and result.stderr)
    return result.exit_code, result.stdout or result.stderr


def test_a_trigger_fires_and_a_second_one_is_told_where_the_machine_stands(
    invoke: Invoke, serve: Serve
) -> None:
    flow_id = serve(rests("waiting")).flow_id
    assert "at waiting, 1 move, accepts approve" in invoke("flows", "show", flow_id).stdout
    assert "trigger approve" in invoke("flows", "waiting").stdout
    sent = invoke("flows", "trigger", flow_id, "approve", '{"ok": true}')
    assert told(sent) == (0, f"trigger approve is sent to flow {flow_id}\n")
    again = invoke("flows", "trigger", flow_id, "approve", '{"ok": true}')
    assert told(again) == (
        1,
        (
            f"eventbus: trigger approve was not sent to flow {flow_id}: the machine is at place 'waiting', "
            "which accepts no trigger now\n"
        ),
    )
    serve(rests("approved"), flow_id)
    assert told(invoke("flows", "trigger", flow_id, "publish"))[0] == 0
    serve(lambda report: report.state == "completed", flow_id)
    assert "at its end, 3 moves" in invoke("flows", "show", flow_id).stdout
    for command in ("trigger", "signal"):
        assert told(invoke("flows", command, flow_id, "publish")) == (
            1,
            f"eventbus: trigger publish was not sent to flow {flow_id}: the flow has ended\n",
        )


@pytest.mark.parametrize("command", ["trigger", "signal"])
def test_what_the_place_does_not_offer_is_refused_with_what_it_does(
    invoke: Invoke, serve: Serve, command: str
) -> None:
    flow_id = serve(rests("waiting")).flow_id
    for name in ("publish", "prepare", "unknown"):
        assert told(invoke("flows", command, flow_id, name)) == (
            1,
            (
                f"eventbus: trigger {name} was not sent to flow {flow_id}: "
                "the machine is at place 'waiting', which accepts approve\n"
            ),
        )
    assert told(invoke("flows", command, flow_id, "approve", "{yes")) == (
        2,
        "eventbus: expected the payload to be JSON, got: '{yes'\n",
    )
    gone = "review~0123456789abcdef0123"
    code, text = told(invoke("flows", command, gone, "approve"))
    assert (code, text.startswith(f"eventbus: no record of job '{gone}'")) == (1, True)
    code, text = told(invoke("flows", command, "chair", "approve"))
    assert (code, text.startswith("eventbus: 'chair' is no id of a flow; expected")) == (1, True)


def test_a_flow_that_no_worker_has_begun_says_so(invoke: Invoke, serve: Serve) -> None:
    flow_id = serve(lambda report: report.state == "pending", worker=False).flow_id
    code, text = told(invoke("flows", "trigger", flow_id, "approve"))
    assert (code, "no worker has begun it yet" in text) == (1, True)
    assert "at its start" in invoke("flows", "show", flow_id).stdout


def test_a_signal_to_a_machine_is_a_trigger(invoke: Invoke, serve: Serve) -> None:
    flow_id = serve(rests("waiting")).flow_id
    sent = invoke("flows", "signal", flow_id, "approve", '{"ok": true}')
    assert told(sent) == (0, f"trigger approve is sent to flow {flow_id}\n")
    serve(rests("approved"), flow_id)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ('"yes"', 'PayloadError: payload of "approve" (Verdict): Expected `object`, got `str`'),
        ('{"ok": false}', "UsageError: the guard of transition 'approve' refuses this payload"),
    ],
    ids=["payload", "guard"],
)
def test_what_only_the_worker_can_judge_is_refused_in_the_report_and_the_machine_waits_on(
    invoke: Invoke, serve: Serve, payload: str, reason: str
) -> None:
    flow_id = serve(rests("waiting")).flow_id
    assert told(invoke("flows", "trigger", flow_id, "approve", payload))[0] == 0
    serve(lambda report: any(each.kind == "refused" for each in report.machine.moves), flow_id)
    shown = invoke("flows", "show", flow_id).stdout
    assert f"earlier: trigger 'approve' refused: {reason}" in shown
    assert "at waiting, 1 move, accepts approve" in shown


@pytest.mark.parametrize("command", ["trigger", "signal"])
def test_with_the_program_what_does_not_fit_is_refused_before_it_is_sent(
    invoke: Invoke, serve: Serve, program: str, command: str
) -> None:
    flow_id = serve(rests("waiting")).flow_id
    before = serve(rests("waiting"), flow_id)
    for words, text in (
        (("approve", '"yes"'), "Expected `object`, got `str`"),
        (
            ("aprove", "{}"),
            "state machine 'review' has no transition 'aprove'; its transitions: approve, prepare",
        ),
        (("prepare",), "transition 'prepare' waits for no trigger: it fires by itself"),
    ):
        code, said = told(invoke("flows", command, flow_id, *words, "--app", program))
        assert (code, text in said) == (2, True), said
    other = "order~0123456789abcdef0123"
    code, said = told(invoke("flows", command, other, "approve", "--app", program))
    assert (code, "has no workflow 'order'" in said) == (2, True)
    assert serve(rests("waiting"), flow_id) == before
    sent = invoke("flows", command, flow_id, "approve", '{"ok": true}', "--app", program)
    assert told(sent)[0] == 0


def test_a_machine_that_stands_with_an_error_runs_again_or_is_moved(
    invoke: Invoke, serve: Serve, program: str
) -> None:
    flow_id = serve(rests("waiting")).flow_id
    assert told(invoke("flows", "retry", flow_id)) == (
        1,
        (
            f"eventbus: flow {flow_id} is waiting, and nothing failed at its place; "
            "trigger one of its transitions, or cancel it and retry it then\n"
        ),
    )
    assert invoke("flows", "retry", flow_id, "--target", "draft").exit_code == 1
    broken.add("approve")
    assert invoke("flows", "trigger", flow_id, "approve", '{"ok": true}').exit_code == 0
    serve(lambda report: rests("waiting")(report) and report.error, flow_id)
    assert "ValueError: approve is broken" in invoke("flows", "show", flow_id).stdout
    (listed,) = map(json.loads, invoke("flows", "list", "--json").stdout.splitlines())
    assert (listed["state"], listed["error"]) == ("waiting", "ValueError: approve is broken")
    waits = [json.loads(line) for line in invoke("flows", "waiting", "--json").stdout.splitlines()]
    assert [each["error"] for each in waits if each["error"]] == ["approve: ValueError: approve is broken"]
    assert "a retry, approve: ValueError: approve is broken" in invoke("flows", "waiting").stdout
    followed = invoke("flows", "follow", flow_id)
    assert (followed.exit_code, "ValueError: approve is broken" in followed.stdout) == (3, True)
    code, said = told(invoke("flows", "retry", flow_id, "--target", "nowhere", "--app", program))
    text = "state machine 'review' has no place 'nowhere'; its places: 'approved', 'draft', 'waiting'"
    assert (code, said) == (2, f"eventbus: {text}\n")
    assert invoke("flows", "retry", flow_id, "--target", "nowhere").exit_code == 0, "its worker judges"
    serve(lambda report: any(each.kind == "refused" for each in report.machine.moves), flow_id)
    assert f"earlier: move by hand refused: UsageError: {text}" in invoke("flows", "show", flow_id).stdout
    moved = invoke("flows", "retry", flow_id, "--target", "draft", "--app", program)
    assert told(moved) == (0, f"flow {flow_id} is told to go on at place draft\n")
    serve(lambda report: rests("waiting")(report) and report.machine.version == 3, flow_id)
    assert invoke("flows", "trigger", flow_id, "approve", '{"ok": true}').exit_code == 0
    serve(lambda report: rests("waiting")(report) and report.error, flow_id)
    broken.clear()
    again = invoke("flows", "retry", flow_id)
    assert told(again) == (0, f"flow {flow_id} goes on at its place\n")
    serve(rests("approved"), flow_id)


def test_a_machine_is_followed_until_it_waits_and_the_line_says_how_to_trigger_it(
    invoke: Invoke, serve: Serve
) -> None:
    flow_id = serve(rests("waiting")).flow_id
    followed = invoke("flows", "follow", flow_id)
    assert followed.exit_code == 3
    assert f"for trigger approve: eventbus flows trigger {flow_id} approve JSON" in followed.stdout
    lines = [json.loads(line) for line in invoke("flows", "follow", flow_id, "--json").stdout.splitlines()]
    assert (lines[-1]["waits_for"], lines[-1]["by"]) == ("approve", "trigger")


def test_what_is_cancelled_takes_no_trigger_and_goes_on_with_a_retry(invoke: Invoke, serve: Serve) -> None:
    flow_id = serve(rests("waiting")).flow_id
    assert invoke("flows", "cancel", flow_id).exit_code == 0
    code, text = told(invoke("flows", "trigger", flow_id, "approve", '{"ok": true}'))
    assert (code, text.partition(": the flow ")[0]) == (
        1,
        f"eventbus: trigger approve was not sent to flow {flow_id}",
    )
    serve(lambda report: report.state == "cancelled", flow_id)
    assert told(invoke("flows", "retry", flow_id, "--target", "draft")) == (
        2,
        f"eventbus: flow {flow_id} has ended and stands at no place; retry it without a target\n",
    )
    assert told(invoke("flows", "retry", flow_id)) == (0, f"flow {flow_id} runs again, for the 2nd time\n")
    serve(rests("waiting"), flow_id)
