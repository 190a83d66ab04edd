"""Steps run in the order of the graph, parallel ones at the same time; each reads what came before."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from drivers.runners import Runner

from eventbus import DefinitionError, Retry
from workflows.definition.context import StepContext
from workflows.definition.step import step
from workflows.definition.workflow import Workflow
from workflows.errors import StepError

pytestmark = pytest.mark.virtual

_ONCE = Retry(attempts=1)
Log = list[Any]


def _named(name: str, log: Log) -> Any:
    async def run(ctx: StepContext[Any]) -> str:
        log.append(name)
        return name

    return step(run, name=name)


async def test_steps_run_one_after_the_other_and_then_the_completed_hook(runner: Runner) -> None:
    log: Log = []
    workflow = Workflow("row", input=int, output=int)

    @workflow.step()
    async def double(ctx: StepContext[int]) -> int:
        log.append("double")
        return ctx.input * 2

    @workflow.step()
    async def add(ctx: StepContext[int]) -> int:
        log.append("add")
        return ctx.result(double) + 1

    @workflow.completed
    async def finish(ctx: StepContext[int]) -> int:
        log.append("completed")
        return ctx.result(add) * 100

    handle = await runner.start(workflow, 3)
    assert await handle.result() == 700
    assert log == ["double", "add", "completed"]
    report = await handle.report()
    assert report.order == ["double", "add"]
    assert {name: (each.state, each.result, each.attempts) for name, each in report.steps.items()} == {
        "double": ("completed", 6, 0),
        "add": ("completed", 7, 0),
    }
    assert (report.state, report.rollback, report.rollbacks) == ("completed", "none", [])
    assert (await handle.status()).state == "completed"


async def test_groups_of_the_builder_run_in_order(runner: Runner) -> None:
    log: Log = []
    workflow = (
        Workflow("groups")
        .then(_named("init", log))
        .parallel(_named("left", log), _named("right", log))
        .then(_named("last", log))
    )
    handle = await runner.start(workflow, None)
    await handle.result()
    assert (log[0], sorted(log[1:3]), log[3:]) == ("init", ["left", "right"], ["last"])


async def test_members_of_a_parallel_group_run_at_the_same_time(runner: Runner) -> None:
    workflow = Workflow("meeting", retry=_ONCE)
    left_is_here, right_is_here = asyncio.Event(), asyncio.Event()

    async def left(ctx: StepContext[Any]) -> None:
        left_is_here.set()
        await right_is_here.wait()

    async def right(ctx: StepContext[Any]) -> None:
        right_is_here.set()
        await left_is_here.wait()

    workflow.parallel(left, right)
    handle = await runner.start(workflow, None)
    async with asyncio.timeout(240):
        await handle.result()


async def test_plain_functions_of_a_parallel_group_run_in_threads_at_the_same_time(runner: Runner) -> None:
    workflow = Workflow("threads", retry=_ONCE)
    barrier = threading.Barrier(2, timeout=20)
    threads: set[int] = set()

    def left(ctx: StepContext[Any]) -> int:
        threads.add(threading.get_ident())
        barrier.wait()
        return 1

    def right(ctx: StepContext[Any]) -> int:
        threads.add(threading.get_ident())
        barrier.wait()
        return 2

    workflow.parallel(left, right)

    @workflow.completed
    def total(ctx: StepContext[Any]) -> int:
        return ctx.result("left") + ctx.result("right")

    handle = await runner.start(workflow, None)
    assert await handle.result() == 3
    assert len(threads) == 2
    assert threading.get_ident() not in threads


async def test_a_step_waits_for_all_that_it_comes_after_and_reads_them(runner: Runner) -> None:
    workflow = Workflow("diamond", input=int)

    @workflow.step()
    async def top(ctx: StepContext[int]) -> int:
        return ctx.input

    @workflow.step(after=top)
    async def left(ctx: StepContext[int]) -> int:
        return ctx.result(top) + 1

    @workflow.step(after=top)
    async def right(ctx: StepContext[int]) -> int:
        return ctx.result(top) + 2

    @workflow.step(after=[left, right])
    async def bottom(ctx: StepContext[int]) -> dict[str, Any]:
        return dict(ctx.results)

    @workflow.completed
    async def finish(ctx: StepContext[int]) -> dict[str, Any]:
        return dict(ctx.results)

    handle = await runner.start(workflow, 10)
    before = {"top": 10, "left": 11, "right": 12}
    assert await handle.result() == {**before, "bottom": before}


async def test_a_step_after_nothing_starts_at_once(runner: Runner) -> None:
    workflow = Workflow("both", retry=_ONCE)
    second_began = asyncio.Event()

    @workflow.step()
    async def first(ctx: StepContext[Any]) -> None:
        await second_began.wait()

    @workflow.step(after=None)
    async def second(ctx: StepContext[Any]) -> None:
        second_began.set()

    handle = await runner.start(workflow, None)
    async with asyncio.timeout(240):
        await handle.result()
    assert (await handle.report()).order == ["second", "first"]


async def test_a_step_cannot_read_what_does_not_run_before_it(runner: Runner) -> None:
    workflow = Workflow("apart", retry=_ONCE, errors=[DefinitionError])

    @workflow.step()
    async def left(ctx: StepContext[Any]) -> int:
        return 1

    @workflow.step(after=left)
    async def between(ctx: StepContext[Any]) -> int:
        return 2

    @workflow.step(after=left)
    async def right(ctx: StepContext[Any]) -> int:
        return ctx.result(between)

    handle = await runner.start(workflow, None)
    with pytest.raises(DefinitionError, match=r"'right' of workflow 'apart'.*'between'"):
        await handle.result()


async def test_a_workflow_without_steps_calls_its_hook_alone(runner: Runner) -> None:
    workflow = Workflow("bare", input=int, output=int)

    @workflow.completed
    async def finish(ctx: StepContext[int]) -> int:
        assert dict(ctx.results) == {}
        return ctx.input + 1

    assert await (await runner.start(workflow, 1)).result() == 2


async def test_without_a_completed_hook_the_output_is_none(runner: Runner) -> None:
    workflow = Workflow("mute").then(_named("only", []))
    handle = await runner.start(workflow, None)
    assert await handle.result() is None
    assert (await handle.report()).steps["only"].result == "only"


async def test_steps_may_be_named_as_anything_of_the_objects_around_them(runner: Runner) -> None:
    names = ["constructor", "prototype", "results", "input", "result", "keys", "items", "None", "0"]
    workflow = Workflow("hostile").then(*(_named(name, []) for name in names))

    @workflow.completed
    async def finish(ctx: StepContext[Any]) -> Any:
        return dict(ctx.results)

    handle = await runner.start(workflow, None)
    assert await handle.result() == {name: name for name in names}


async def test_flows_of_one_workflow_do_not_mix(runner: Runner) -> None:
    workflow = Workflow("many", input=int, output=int)

    @workflow.step()
    async def square(ctx: StepContext[int]) -> int:
        return ctx.input**2

    @workflow.step()
    async def again(ctx: StepContext[int]) -> int:
        return ctx.result(square) ** 2

    @workflow.completed
    async def finish(ctx: StepContext[int]) -> int:
        return ctx.result(again)

    handles = [await runner.start(workflow, n) for n in range(10)]
    assert [await handle.result() for handle in handles] == [n**4 for n in range(10)]
    assert len({handle.id for handle in handles}) == 10


async def test_a_handle_gives_its_outcome_as_often_as_asked(runner: Runner) -> None:
    workflow = Workflow("again", retry=_ONCE)

    @workflow.step()
    async def fall(ctx: StepContext[Any]) -> None:
        raise ValueError("down")

    handle = await runner.start(workflow, None)
    texts: list[str] = []
    for _ in range(2):
        with pytest.raises(StepError) as caught:
            await handle.result()
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
