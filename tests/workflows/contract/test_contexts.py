"""The contexts of a flow's functions: each has the same meta, correlation and ids."""

from __future__ import annotations

from typing import Any

import pytest
from drivers.runners import Runner

from eventbus import Retry
from eventbus.lowlevel import Ambient, current, enter
from workflows.definition.context import StepContext
from workflows.definition.workflow import Workflow
from workflows.errors import FlowError, StepError

pytestmark = pytest.mark.virtual

_ONCE = Retry(attempts=1)


class Witness:
    """A flow that notes what each of its functions sees, and fails at the end."""

    def __init__(self, name: str = "witness") -> None:
        self.seen: dict[str, dict[str, Any]] = {}
        self.workflow = workflow = Workflow(name, retry=_ONCE)
        workflow.step(self._first, name="first").rollback(self._undo)
        workflow.parallel(self.left, self.right)
        workflow.flow(self._inner(f"inner-of-{name}"), name="inner")
        workflow.completed(self._completed)
        workflow.failed(self._failed)

    def _inner(self, name: str) -> Workflow[Any, Any]:
        workflow = Workflow(name, retry=_ONCE)

        @workflow.step()
        async def nested(ctx: StepContext[Any]) -> None:
            self._note("nested", ctx)

        return workflow

    def _note(self, name: str, ctx: StepContext[Any]) -> None:
        around = current()
        self.seen[name] = {
            "meta": dict(ctx.meta),
            "correlation": ctx.correlation_id,
            "flow": ctx.flow_id,
            "job": ctx.job_id,
            "workflow": ctx.workflow,
            "step": ctx.step,
            "run": ctx.run,
            "attempt": ctx.attempt,
            "around": (dict(around.meta or {}), around.correlation_id),
        }

    def values(self, fact: str) -> set[Any]:
        return {repr(each[fact]) for each in self.seen.values()}

    async def _first(self, ctx: StepContext[Any]) -> int:
        self._note("first", ctx)
        return 1

    async def left(self, ctx: StepContext[Any]) -> None:
        self._note("left", ctx)

    def right(self, ctx: StepContext[Any]) -> None:
        self._note("right", ctx)

    async def _undo(self, ctx: StepContext[Any], result: int) -> None:
        self._note("undo", ctx)

    async def _completed(self, ctx: StepContext[Any]) -> None:
        self._note("completed", ctx)
        raise ValueError("for the rollback")

    async def _failed(self, ctx: StepContext[Any], error: FlowError) -> None:
        self._note("failed", ctx)


async def _run(runner: Runner, witness: Witness, **options: Any) -> str:
    handle = await runner.start(witness.workflow, None, **options)
    with pytest.raises(StepError):
        await handle.result()
    return handle.id


async def test_every_function_sees_the_same_facts(runner: Runner) -> None:
    witness = Witness()
    flow_id = await _run(runner, witness, meta={"tenant": "a", "deep": {"n": [1]}})
    names = {"first", "left", "right", "nested", "completed", "undo", "failed"}
    assert set(witness.seen) == names
    assert witness.values("meta") == {repr({"tenant": "a", "deep": {"n": [1]}})}
    assert witness.values("correlation") == {repr(flow_id)}
    assert witness.values("around") == {repr(({"tenant": "a", "deep": {"n": [1]}}, flow_id))}
    assert witness.values("run") == {"1"}
    assert witness.values("attempt") == {"1"}
    own = {name: each for name, each in witness.seen.items() if name != "nested"}
    assert {(each["flow"], each["workflow"]) for each in own.values()} == {(flow_id, "witness")}
    assert {name: each["step"] for name, each in witness.seen.items()} == {
        "first": "first",
        "left": "left",
        "right": "right",
        "nested": "nested",
        "undo": "first",
        "completed": "",
        "failed": "",
    }
    assert own["first"]["job"] == f"{flow_id}/1/first/0"
    nested = witness.seen["nested"]
    assert nested["workflow"] == "inner-of-witness"
    assert nested["flow"].startswith(f"{flow_id}/1/inner/0/inner-of-witness~")
    assert nested["job"] == f"{nested['flow']}/1/nested/0"


async def test_ambient_meta_is_passed_on_and_given_meta_wins(runner: Runner) -> None:
    witness = Witness()
    with runner.context(tenant="ambient", user="u"):
        await _run(runner, witness, meta={"tenant": "given"})
    assert witness.values("meta") == {repr({"tenant": "given", "user": "u"})}


async def test_without_meta_there_is_none(runner: Runner) -> None:
    witness = Witness()
    await _run(runner, witness)
    assert witness.values("meta") == {"{}"}


async def test_a_flow_belongs_to_the_chain_that_started_it(runner: Runner) -> None:
    witness = Witness()
    before = current()
    enter(Ambient({"tenant": "t"}, "chain-1", "job-1"))
    try:
        await _run(runner, witness)
    finally:
        enter(before)
    assert witness.values("correlation") == {"'chain-1'"}
    assert witness.values("meta") == {repr({"tenant": "t"})}


async def test_flows_at_the_same_time_do_not_mix_their_meta(runner: Runner) -> None:
    witnesses = [Witness(f"witness-{n}") for n in range(5)]  # workers run whatever has the name
    handles: list[Any] = []
    for n, witness in enumerate(witnesses):
        with runner.context(user=n):
            handles.append(await runner.start(witness.workflow, None))
    for handle in handles:
        with pytest.raises(StepError):
            await handle.result()
    for n, witness in enumerate(witnesses):
        assert witness.values("meta") == {repr({"user": n})}


async def test_the_log_of_a_step_knows_its_flow(runner: Runner, logs: list[dict[str, Any]]) -> None:
    workflow = Workflow("talks", retry=Retry(attempts=2, delay=0.01))

    @workflow.step()
    async def talk(ctx: StepContext[Any]) -> None:
        ctx.log.info("hello", own=1)
        if ctx.attempt == 1:
            raise ValueError("again")

    @workflow.completed
    async def finish(ctx: StepContext[Any]) -> None:
        ctx.log.info("bye")

    handle = await runner.start(workflow, None)
    await handle.result()
    said = [each for each in logs if each["event"] in ("hello", "bye")]
    assert [(each["event"], each.get("step"), each["attempt"]) for each in said] == [
        ("hello", "talk", 1),
        ("hello", "talk", 2),
        ("bye", None, 1),
    ]
    assert {(each["flow_id"], each["workflow"], each["correlation_id"]) for each in said} == {
        (handle.id, "talks", handle.id)
    }
