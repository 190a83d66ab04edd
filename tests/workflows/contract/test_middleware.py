"""Middleware is around each attempt of a step, a rollback and a hook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from drivers.runners import Runner
from importable import process_steps
from importable.process_steps import Picture

from eventbus import CallNext, DefinitionError, EventContext, EventProvider, Retry
from workflows import (
    AttemptContext,
    FlowContext,
    StepContext,
    StepError,
    Workflow,
    WorkflowProvider,
    durable,
    task,
)
from workflows.testing import run_inline

pytestmark = pytest.mark.virtual


class Witness:
    """Middleware that notes what it is around."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def note(self, value: Any, ctx: AttemptContext, call: CallNext) -> Any:
        name = f"{ctx.kind} {ctx.step}".strip()
        self.seen.append(f"{name} {ctx.attempt}: {value!r}")
        try:
            result = await call(value)
        except Exception as error:
            self.seen.append(f"{name} raised {type(error).__name__}")
            raise
        self.seen.append(f"{name} returned {result!r}")
        return result


async def test_it_is_around_each_attempt_and_the_hook(runner: Runner) -> None:
    witness = Witness()
    workflow = Workflow[Any, Any]("watched", retry=Retry(attempts=2, delay=0))

    @workflow.step
    async def first(ctx: StepContext[Any]) -> str:
        if ctx.attempt == 1:
            raise ConnectionError("again")
        return "one"

    @workflow.step
    def second(ctx: StepContext[Any]) -> str:
        return ctx.result(first) + " two"

    @workflow.step(when=lambda _: False)
    async def skipped(_: StepContext[Any]) -> None: ...

    @workflow.completed
    async def output(ctx: StepContext[Any]) -> str:
        return ctx.result(second)

    handle = await runner.start(workflow, "in", middleware=[witness.note])
    assert await handle.result() == "one two"
    assert witness.seen == [
        "step first 1: 'in'",
        "step first raised ConnectionError",
        "step first 2: 'in'",
        "step first returned 'one'",
        "step second 1: 'in'",
        "step second returned 'one two'",
        "completed 1: 'in'",
        "completed returned 'one two'",
    ]


async def test_it_is_around_rollbacks_and_the_failed_hook(runner: Runner) -> None:
    witness = Witness()
    workflow = Workflow[Any, Any]("undone", retry=Retry(attempts=1))

    @workflow.step
    async def first(_: StepContext[Any]) -> str:
        return "one"

    @first.rollback
    def undo(_: StepContext[Any], result: str) -> None: ...

    @workflow.step
    async def fails(_: StepContext[Any]) -> None:
        raise ValueError("no")

    @workflow.failed
    async def tell(_: StepContext[Any], error: Exception) -> None: ...

    handle = await runner.start(workflow, None, middleware=[witness.note])
    with pytest.raises(StepError):
        await handle.result()
    assert witness.seen[2:4] == ["step fails 1: None", "step fails raised ValueError"]
    assert witness.seen[4:6] == ["rollback first 1: 'one'", "rollback first returned None"]
    assert witness.seen[6].startswith("failed 1: StepError")
    assert witness.seen[7:] == ["failed returned None"]


async def test_the_first_is_outermost_and_results_may_change_within_their_type(runner: Runner) -> None:
    workflow = Workflow[Any, Any]("changed", retry=Retry(attempts=1))

    def adds(text: str) -> Any:
        async def around(value: Any, ctx: AttemptContext, call: CallNext) -> Any:
            result = await call(value)
            return result + text if ctx.kind == "step" else result

        return around

    @workflow.step
    async def first(_: StepContext[Any]) -> str:
        return "a"

    @workflow.completed
    async def output(ctx: StepContext[Any]) -> str:
        return ctx.result(first)

    handle = await runner.start(workflow, None, middleware=[adds(" outer"), adds(" inner")])
    assert await handle.result() == "a inner outer"


async def _wrong_result(value: Any, ctx: AttemptContext, call: CallNext) -> Any:
    await call(value)
    return 5 if ctx.kind == "step" else None


async def _other_value(value: Any, ctx: AttemptContext, call: CallNext) -> Any:
    return await call({"other": value, "kind": ctx.kind})


@pytest.mark.parametrize(
    ("middleware", "message"), [(_wrong_result, "PayloadError"), (_other_value, "another value")]
)
async def test_what_it_must_not_do_fails_the_step(runner: Runner, middleware: Any, message: str) -> None:
    workflow = Workflow[Any, Any]("wrong", retry=Retry(attempts=1))

    @workflow.step
    async def first(_: StepContext[Any]) -> str:
        return "a"

    handle = await runner.start(workflow, None, middleware=[middleware])
    with pytest.raises(StepError, match=message):
        await handle.result()


async def test_it_is_around_steps_in_processes(runner: Runner) -> None:
    witness = Witness()
    handle = await runner.start(process_steps.pictures, Picture("cat"), middleware=[witness.note])
    await handle.result()
    assert [text.split(":")[0] for text in witness.seen if "returned" not in text] == [
        "step find 1",
        "step cut 1",
        "completed 1",
    ]


@task(name="reserve-for-middleware", retry=Retry(attempts=2, delay=0))
async def reserve(name: str) -> str:
    return f"{name} reserved"


@reserve.rollback
async def release(result: str) -> None: ...


@durable("watched-function", retry=Retry(attempts=1))
async def watched(ctx: FlowContext[str]) -> None:
    await ctx.step(reserve, ctx.input)
    raise ValueError("no")


@pytest.mark.parametrize("is_inline", [True, False])
async def test_it_is_around_tasks_and_their_rollbacks(
    make_provider: Callable[..., EventProvider], *, is_inline: bool
) -> None:
    witness = Witness()
    if is_inline:
        with pytest.raises(StepError):
            await run_inline(watched, "seat", middleware=[witness.note])
    else:
        flows = WorkflowProvider(make_provider())
        flows.register(watched)
        flows.use(witness.note)
        async with flows.provider, flows.provider.worker():
            with pytest.raises(StepError):
                await (await flows.execute(watched, "seat")).result()
    assert witness.seen == [
        "task reserve-for-middleware@0 1: ('seat',)",
        "task reserve-for-middleware@0 returned 'seat reserved'",
        "rollback reserve-for-middleware@0 1: 'seat reserved'",
        "rollback reserve-for-middleware@0 returned None",
    ]


async def test_one_function_serves_handlers_and_flows(make_provider: Callable[..., EventProvider]) -> None:
    provider = make_provider()
    flows, seen = WorkflowProvider(provider), list[tuple[str, int]]()
    workflow = Workflow[Any, Any]("both")

    @provider.use
    @flows.use
    async def note(value: Any, ctx: EventContext | AttemptContext, call: CallNext) -> Any:
        seen.append((ctx.correlation_id, ctx.attempt))
        ctx.log.info("around")
        return await call(value)

    @provider.on("thing")
    async def thing(_: Any) -> None: ...

    @workflow.step
    async def emits(ctx: StepContext[Any]) -> None:
        await ctx.emit("thing")

    flows.register(workflow)
    async with provider, provider.worker():
        handle = await flows.execute(workflow, None)
        await handle.result()
    assert seen == [(handle.id, 1)] * 2


@pytest.mark.parametrize("wrong", [None, 5, lambda value, ctx, call: call(value)])
def test_what_is_no_middleware_is_refused(make_provider: Callable[..., EventProvider], wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="an async function of a value, an AttemptContext and a call"):
        WorkflowProvider(make_provider()).use(wrong)


@task
async def double(number: int) -> int:
    return number * 2


@durable("watched-map")
async def watched_map(ctx: FlowContext[None]) -> list[int]:
    return await ctx.map(double, [1, 2])


@pytest.mark.parametrize("is_inline", [True, False])
async def test_it_is_around_the_items_of_a_map_wherever_they_run(
    make_provider: Callable[..., EventProvider], *, is_inline: bool
) -> None:
    witness, jobs = Witness(), set[bool]()

    async def add_one(value: Any, ctx: AttemptContext, call: CallNext) -> Any:
        jobs.add(ctx.job_id != ctx.flow_id and ctx.job_id.startswith(ctx.flow_id))
        return await call(value) + 1

    if is_inline:
        assert await run_inline(watched_map, None, middleware=[witness.note, add_one]) == [3, 5]
    else:
        flows = WorkflowProvider(make_provider())
        flows.register(watched_map)
        flows.use(witness.note)
        flows.use(add_one)
        async with flows.provider, flows.provider.worker():
            assert await (await flows.execute(watched_map, None)).result() == [3, 5]
    assert sorted(witness.seen) == [
        "task double@0.0 1: (1,)",
        "task double@0.0 returned 3",
        "task double@0.1 1: (2,)",
        "task double@0.1 returned 5",
    ]
    assert jobs == {not is_inline}
