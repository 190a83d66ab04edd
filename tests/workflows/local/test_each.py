"""Steps that run for each item of a list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from drivers.runners import DistributedRunner, FlowHandle, InlineRunner, Runner, wait_states

from eventbus import DefinitionError, EventProvider, Retry
from workflows import FlowCancelled, StepContext, StepError, StepFailed, Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

_ONCE = Retry(attempts=1)


class _SpreadRunner(DistributedRunner):
    """Runs local flows whose each steps are spread: each item is a job."""

    async def start(self, workflow: Workflow[Any, Any], given: Any, **options: Any) -> FlowHandle:
        for each in (workflow, *workflow.nested()):
            for step in each.steps.values():
                step.spread = step.is_each
        return await super().start(workflow, given, **options)


@pytest.fixture(params=["inline", "local", "spread items", "spread"])
async def runner(
    request: pytest.FixtureRequest, make_provider: Callable[..., EventProvider]
) -> AsyncIterator[Runner]:
    """The ways to run such a step."""
    runner: Runner
    if request.param == "inline":
        runner = InlineRunner()
    elif request.param == "spread items":
        runner = _SpreadRunner(make_provider, spread=False)
    else:
        runner = DistributedRunner(make_provider, spread=request.param == "spread")
    yield runner
    await runner.aclose()


def _graph(
    convert: Callable[..., Any],
    *,
    log: list[Any] | None = None,
    over: Any = "find",
    output: Callable[[Any], Any] = list,
    **options: Any,
) -> Workflow[Any, Any]:
    """find, then convert for each item, with a rollback that notes the item and its result in `log`."""
    graph = Workflow[Any, Any]("each", retry=options.pop("rule", _ONCE))

    @graph.step
    async def find(ctx: StepContext[Any]) -> Any:
        return ctx.input

    each: Any = graph.each(over=over, name="convert", **options)(convert)

    if log is not None:

        async def undo(ctx: StepContext[Any], item: Any, result: Any) -> None:
            log.append((ctx.step, item, result))

        each.rollback(undo)

    @graph.completed
    async def done(ctx: StepContext[Any]) -> Any:
        return output(ctx.result(each))

    return graph


async def test_results_come_in_the_order_of_the_items(runner: Runner) -> None:
    seen: list[tuple[str, str]] = []

    async def convert(ctx: StepContext[Any], item: str) -> int:
        await asyncio.sleep(0.02 * (3 - len(item)))  # the last one ends first
        seen.append((ctx.step, ctx.job_id))
        return len(item)

    handle = await runner.start(_graph(convert), ["a", "bb", "ccc"])
    assert await handle.result() == [1, 2, 3]
    assert sorted(name for name, _ in seen) == ["convert[0]", "convert[1]", "convert[2]"]
    assert len({job for _, job in seen}) == 3
    report = await handle.report()
    assert (report.order, list(report.steps)) == (["find", "convert"], ["find", "convert"])
    step = report.steps["convert"]
    assert (step.state, step.result, step.progress) == ("completed", [1, 2, 3], "3/3")


async def test_a_function_gives_the_items_and_plain_functions_run_in_threads(runner: Runner) -> None:
    def convert(ctx: StepContext[Any], item: int) -> int:
        return item * ctx.result("find")

    handle = await runner.start(_graph(convert, over=lambda ctx: range_of(ctx.input)), 4)
    assert await handle.result() == [0, 4, 8, 12]


def range_of(count: int) -> list[int]:
    return list(range(count))


@pytest.mark.parametrize("at_once", [1, 3])
async def test_at_most_so_many_items_run_at_a_time(runner: Runner, at_once: int) -> None:
    running: set[int] = set()
    most: list[int] = []

    async def convert(ctx: StepContext[Any], item: int) -> None:
        running.add(item)
        most.append(len(running))
        await asyncio.sleep(0.02)
        running.discard(item)

    handle = await runner.start(_graph(convert, at_once=at_once), list(range(8)))
    await handle.result()
    assert (len(most), max(most)) == (8, at_once)


async def test_an_item_is_tried_again_alone(runner: Runner) -> None:
    tries: list[tuple[int, int]] = []

    async def convert(ctx: StepContext[Any], item: int) -> int:
        tries.append((item, ctx.attempt))
        if item == 1 and ctx.attempt == 1:
            raise ValueError("not yet")
        return item

    handle = await runner.start(_graph(convert, retry=Retry(attempts=2, delay=0.05)), [0, 1, 2])
    assert await handle.result() == [0, 1, 2]
    assert sorted(tries) == [(0, 1), (1, 1), (1, 2), (2, 1)]


@pytest.mark.parametrize("at_once", [1, 2])
async def test_an_item_that_waits_long_goes_on_in_another_activation(runner: Runner, at_once: int) -> None:
    tries: list[tuple[int, int]] = []

    async def convert(ctx: StepContext[Any], item: int) -> int:
        tries.append((item, ctx.attempt))
        if item == 1 and ctx.attempt == 1:
            raise ValueError("not yet")
        return item

    graph = _graph(convert, at_once=at_once, retry=Retry(attempts=2, delay=1.3))  # longer than a worker waits
    handle = await runner.start(graph, [0, 1, 2])
    assert await handle.result() == [0, 1, 2]
    assert sorted(tries) == [(0, 1), (1, 1), (1, 2), (2, 1)]


async def test_the_items_of_a_sub_workflow_are_undone(runner: Runner) -> None:
    log: list[Any] = []

    async def convert(ctx: StepContext[Any], item: int) -> int:
        return item + 1

    outer = Workflow[Any, Any]("outer", retry=_ONCE)
    outer.flow(_graph(convert, log=log, at_once=1), name="inner")

    @outer.step
    async def late(ctx: StepContext[Any]) -> None:
        raise ValueError(f"late {ctx.result('inner')}")

    handle = await runner.start(outer, [5, 6])
    with pytest.raises(StepError, match=r"late \[6, 7\]"):
        await handle.result()
    assert log == [("convert[1]", 6, 7), ("convert[0]", 5, 6)]
    rollbacks = [each.step for each in (await handle.report()).rollbacks]
    assert rollbacks == ["inner/convert[1]", "inner/convert[0]"]


async def test_the_first_failed_item_stops_the_flow_and_the_others_are_undone(runner: Runner) -> None:
    log: list[Any] = []
    begun: list[int] = []
    failed = asyncio.Event()

    async def convert(ctx: StepContext[Any], item: int) -> int:
        begun.append(item)
        if item == 2:
            failed.set()
            raise ValueError("broken")
        if item == 1:
            await failed.wait()
            await asyncio.sleep(0.1)  # ends after the failure
        return item * 10

    handle = await runner.start(_graph(convert, log=log, at_once=2), [0, 1, 2, 3, 4])
    with pytest.raises(StepError, match="broken") as caught:
        await handle.result()
    assert (caught.value.step, caught.value.rollback) == ("convert[2]", "complete")
    assert log == [("convert[1]", 1, 10), ("convert[0]", 0, 0)]
    assert begun == [0, 1, 2]
    report = await handle.report()
    assert report.steps["convert"].state == "failed"
    assert [each.step for each in report.rollbacks] == ["convert[1]", "convert[0]"]


async def test_all_items_are_undone_if_a_later_step_fails(runner: Runner) -> None:
    log: list[Any] = []

    async def convert(ctx: StepContext[Any], item: int) -> int:
        return item + 1

    graph = _graph(convert, log=log, at_once=1)

    @graph.step
    async def late(ctx: StepContext[Any]) -> None:
        raise ValueError("late")

    handle = await runner.start(graph, [5, 6])
    with pytest.raises(StepError, match="late"):
        await handle.result()
    assert log == [("convert[1]", 6, 7), ("convert[0]", 5, 6)]


async def test_ignored_failures_stand_in_the_result(runner: Runner) -> None:
    async def convert(ctx: StepContext[Any], item: int) -> int:
        if item == 1:
            raise ValueError("broken")
        return item

    def told(results: Any) -> Any:
        return [f"{each.step}: {each.error}" if isinstance(each, StepFailed) else each for each in results]

    handle = await runner.start(_graph(convert, on_failure="ignore", output=told), [0, 1, 2])
    first, second, third = await handle.result()
    assert (first, third) == (0, 2)
    assert second.startswith("convert[1]: ")
    assert "broken" in second
    assert (await handle.report()).state == "completed"


async def test_an_empty_list_ends_at_once(runner: Runner) -> None:
    async def convert(ctx: StepContext[Any], item: int) -> int:
        raise AssertionError("no item")

    handle = await runner.start(_graph(convert), [])
    assert await handle.result() == []


@pytest.mark.parametrize(
    ("given", "said"), [("text", "to give a list"), (["1"], "item 0"), ([1] * 10_001, "at most 10000 items")]
)
async def test_what_is_no_list_of_items_fails_the_step_at_once(runner: Runner, given: Any, said: str) -> None:
    async def convert(ctx: StepContext[Any], item: int) -> int:
        return item

    graph = _graph(convert, rule=Retry(attempts=3, delay=30))
    handle = await runner.start(graph, given)
    with pytest.raises(StepError, match=said) as caught:
        await handle.result()
    assert caught.value.step == "convert"


@pytest.mark.parametrize("options", [{"when": lambda ctx: False}, {"on_failure": "ignore"}])
async def test_a_step_without_a_list_fails_the_one_that_runs_over_it_at_once(
    runner: Runner, options: Any
) -> None:
    graph = Workflow[Any, Any]("empty", retry=Retry(attempts=3, delay=30))

    @graph.step(retry=_ONCE, **options)
    async def find(ctx: StepContext[Any]) -> list[int]:
        raise ValueError("none found")

    @graph.each(over=find)
    async def convert(ctx: StepContext[Any], item: int) -> int:
        return item

    with pytest.raises(
        StepError, match=r"has no list: .* `over=lambda ctx: ctx.result\('find', default=\[\]\)`"
    ):
        await asyncio.wait_for((await runner.start(graph, None)).result(), 240)


async def test_a_skipped_step_has_no_items(runner: Runner) -> None:
    async def convert(ctx: StepContext[Any], item: int) -> int:
        return item

    graph = Workflow[Any, Any]("skipping")
    each = graph.each(over=lambda ctx: [1], when=lambda ctx: False, after=None)(convert)

    @graph.completed
    async def done(ctx: StepContext[Any]) -> Any:
        return ctx.result(each, default="none")

    assert await (await runner.start(graph, None)).result() == "none"


async def test_an_item_that_takes_too_long_fails(runner: Runner) -> None:
    async def convert(ctx: StepContext[Any], item: float) -> float:
        await asyncio.sleep(item)
        return item

    log: list[Any] = []
    handle = await runner.start(_graph(convert, log=log, timeout=0.2, at_once=1), [0.0, 30.0])
    with pytest.raises(StepError) as caught:
        await handle.result()
    assert caught.value.step == "convert[1]"
    assert log == [("convert[0]", 0.0, 0.0)]


async def test_a_cancel_in_the_middle_undoes_the_items_that_completed(runner: Runner) -> None:
    log: list[Any] = []
    reached = asyncio.Event()

    async def convert(ctx: StepContext[Any], item: int) -> int:
        if item == 2:
            reached.set()
            await asyncio.sleep(60)
        return item

    handle = await runner.start(_graph(convert, log=log, at_once=1), [0, 1, 2, 3])
    await asyncio.wait_for(reached.wait(), 240)
    report = await handle.report()
    assert (report.steps["convert"].state, report.steps["convert"].progress) == ("active", "2/4")
    assert await handle.cancel("enough")
    with pytest.raises(FlowCancelled):
        await handle.result()
    assert log == [("convert[1]", 1, 1), ("convert[0]", 0, 0)]
    await wait_states(handle, {"convert": "cancelled"})


async def test_a_retry_by_hand_keeps_the_items_and_undoes_them_later(
    make_provider: Callable[..., EventProvider],
) -> None:
    ran: list[Any] = []
    log: list[Any] = []
    graph = Workflow[Any, Any]("again", retry=_ONCE)

    @graph.each(over=lambda ctx: [1, 2], at_once=1)
    async def convert(ctx: StepContext[Any], item: int) -> int:
        ran.append(item)
        return item * 10

    @convert.rollback
    async def undo(ctx: StepContext[Any], item: int, result: int) -> None:
        log.append((item, result))
        if ctx.run == 1:
            raise ValueError("not undone")

    @graph.step
    async def late(ctx: StepContext[Any]) -> None:
        raise ValueError(f"late {ctx.result(convert)}")

    async with make_provider() as provider:
        flows = WorkflowProvider(provider)
        flows.register(graph)
        async with provider.worker():
            handle = await flows.execute(graph, None)
            with pytest.raises(StepError, match=r"late \[10, 20\]"):
                await handle.result()
            again = await flows.retry(handle.id)
            with pytest.raises(StepError, match=r"late \[10, 20\]") as caught:
                await again.result()
    assert caught.value.rollback == "complete"
    assert ran == [1, 2]
    assert log == [(2, 20), (1, 10)] * 2


def test_what_cannot_work_is_refused_when_it_is_defined() -> None:
    async def convert(ctx: StepContext[Any], item: int) -> int:
        return item

    graph: Any = Workflow[Any, Any]("refused")
    with pytest.raises(DefinitionError, match="spread"):
        graph.each(over=lambda ctx: [1], spread="yes")(convert)
    with pytest.raises(DefinitionError, match="does not have yet"):
        graph.each(over="missing")(convert)
    with pytest.raises(DefinitionError, match="to be a step, its name or a function"):
        graph.each(over=[1, 2])(convert)
    with pytest.raises(DefinitionError, match="at_once"):
        graph.each(over=lambda ctx: [1], at_once=0)(convert)
    with pytest.raises(DefinitionError, match="on_failure"):
        graph.each(over=lambda ctx: [1], on_failure="skip")(convert)
    with pytest.raises(DefinitionError, match="2 parameters"):

        @graph.each(over=lambda ctx: [1])
        async def alone(ctx: StepContext[Any]) -> None: ...

    made = graph.each(over=lambda ctx: [1])(convert)
    with pytest.raises(DefinitionError, match="the item is int"):

        @made.rollback
        async def undo(ctx: StepContext[Any], item: str, result: int) -> None: ...
