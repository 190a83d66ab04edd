"""What the steps of a pipeline get and give, in every runner."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pydantic
import pytest
from drivers.runners import Runner

from eventbus import Retry
from workflows import ConflictError, Pipeline, PipelineContext, StepError, Workflow

pytestmark = pytest.mark.virtual


class Given(msgspec.Struct):
    numbers: list[int]
    at: datetime = datetime(2030, 1, 1, tzinfo=UTC)


class Sum(msgspec.Struct):
    sum: int


class Left(msgspec.Struct):
    left: int


class Right(pydantic.BaseModel):
    right: int


class Output(msgspec.Struct):
    left: int
    right: int
    sum: int = 0


class Both(msgspec.Struct):
    numbers: list[int]
    at: datetime
    sum: int = -1


class Cursor(msgspec.Struct):
    done: list[str] = []
    count: int = 0


async def _run(runner: Runner, workflow: Workflow[Any, Any], given: Any) -> Any:
    return await (await runner.start(workflow, given)).result()


async def add(given: Given) -> Sum:
    return Sum(sum(given.numbers))


async def test_outputs_are_laid_over_the_input_and_siblings_see_the_same(runner: Runner) -> None:
    seen: dict[str, Any] = {}

    def left(given: Both, ctx: PipelineContext[None]) -> Left:  # in a thread
        seen["left"] = (given.at, dict(ctx.result))
        return Left(given.sum + 1)

    async def right(ctx: PipelineContext[None]) -> Right:
        seen["right"] = dict(ctx.result)
        with pytest.raises(TypeError):
            ctx.result["sum"] = 7  # type: ignore[index]  # pyright: ignore[reportIndexIssue]
        return Right(right=ctx.result["sum"] + 2)

    pipeline = Pipeline("sync", input=Given, output=Output).then(add).parallel(left, right).returns()
    assert await _run(runner, pipeline, Given([1, 2])) == Output(4, 5, 3)
    assert seen["left"][0] == datetime(2030, 1, 1, tzinfo=UTC)
    assert seen["left"][1] == seen["right"] == {"numbers": [1, 2], "at": "2030-01-01T00:00:00Z", "sum": 3}


async def test_a_step_that_is_skipped_gives_nothing(runner: Runner) -> None:
    ran: list[str] = []

    async def never(given: Given) -> Sum:
        ran.append("never")
        return Sum(0)

    async def show(given: Both) -> None:
        ran.append(f"show {given.sum}")

    pipeline = (
        Pipeline("sync", input=Given)
        .then(never, when=lambda ctx: len(ctx.result["numbers"]) > 5)
        .then(show)
        .returns(lambda ctx: {"ran": "sum" in ctx})
    )
    assert await _run(runner, pipeline, Given([1])) == {"ran": False}
    assert ran == ["show -1"]


async def test_the_output_may_be_made_of_the_merged_result(runner: Runner) -> None:
    def total(given: Sum, ctx: PipelineContext[None]) -> Left:
        return Left(given.sum + len(ctx.input.numbers))

    pipeline = Pipeline("sync", input=Given, output=Left).then(add).returns(total)
    assert await _run(runner, pipeline, Given([1, 2])) == Left(5)


async def test_a_second_parameter_without_a_type_is_the_context(runner: Runner) -> None:
    pipeline = (
        Pipeline("sync", input=Given, output=Left)
        .then(add)
        .returns(lambda merged, ctx: Left(merged["sum"] + len(ctx.input.numbers)))
    )
    assert await _run(runner, pipeline, Given([1, 2])) == Left(5)


async def test_siblings_that_write_one_field_fail_the_flow_without_a_retry(runner: Runner) -> None:
    attempts: list[int] = []

    async def one() -> dict[str, Any]:
        return {"a": 1, "same": 1}

    async def other() -> dict[str, Any]:
        return {"b": 2, "same": 1}

    async def last(ctx: PipelineContext[None]) -> None:
        attempts.append(ctx.attempt)

    pipeline = Pipeline("sync").parallel(one, other).then(last).returns()
    with pytest.raises(ConflictError) as raised:
        await _run(runner, pipeline, {})
    conflict = raised.value
    assert (conflict.key, conflict.steps, conflict.workflow) == ("same", ("one", "other"), "sync")
    assert isinstance(conflict.__cause__, StepError)
    assert (conflict.__cause__.step, attempts) == ("last", [])
    assert "'one' and 'other' of pipeline 'sync' ran side by side, and both gave the field 'same'" in str(
        raised.value
    )


async def test_an_output_that_is_no_object_fails_its_step(runner: Runner) -> None:
    async def wrong() -> Any:
        return [1]

    with pytest.raises(StepError, match="expected an object, whose fields"):
        await _run(runner, Pipeline("sync").then(wrong).returns(), {})


async def test_what_a_step_misses_at_run_fails_it_before_it_is_called(runner: Runner) -> None:
    async def use(given: Sum) -> None:
        raise AssertionError("not called")

    with pytest.raises(StepError, match="sum"):
        await _run(runner, Pipeline("sync").then(use).returns(), {"numbers": []})


async def test_data_is_made_once_for_a_flow_in_one_worker(runner: Runner) -> None:
    made: list[Any] = []

    def make(ctx: Any) -> dict[str, int]:
        made.append(ctx.input.numbers)
        return {"client": 1}

    async def one(given: Given, ctx: PipelineContext[None]) -> None:
        ctx.data["client"] += 1

    async def two(given: Given, ctx: PipelineContext[None]) -> Sum:
        return Sum(ctx.data["client"])

    pipeline = Pipeline("sync", input=Given, output=Sum, data=make).then(one).then(two).returns()
    found = await _run(runner, pipeline, Given([1]))
    assert found == Sum(2 if len(made) == 1 else 1)  # each job of a spread flow makes its own


async def test_hooks_get_the_context_of_the_step(runner: Runner) -> None:
    log: list[Any] = []

    async def flaky(given: Sum, ctx: PipelineContext[None]) -> Left:
        if ctx.attempt == 1:
            raise ValueError("down")
        return Left(given.sum)

    def after(ctx: PipelineContext[None], output: Any) -> None:
        log.append((f"after {ctx.step}", output))

    async def before(ctx: PipelineContext[None]) -> None:
        log.append((f"before {ctx.step}", sorted(ctx.result)))

    async def failed(ctx: PipelineContext[None], error: Exception) -> None:
        log.append((f"error {ctx.step}", str(error)))

    pipeline = Pipeline("sync", input=Given, retry=Retry(3, delay=0.01))
    pipeline.before_each(before).after_each(after).on_error(failed)
    await _run(runner, pipeline.then(add).then(flaky).returns(), Given([1, 2]))
    assert log == [
        ("before add", ["at", "numbers"]),
        ("after add", {"sum": 3}),
        ("before flaky", ["at", "numbers", "sum"]),
        ("error flaky", "down"),
        ("before flaky", ["at", "numbers", "sum"]),
        ("after flaky", {"left": 3}),
    ]


async def test_an_error_that_a_hook_calls_final_is_not_tried_again(runner: Runner) -> None:
    attempts: list[int] = []

    async def down(ctx: PipelineContext[None]) -> None:
        attempts.append(ctx.attempt)
        raise ValueError("down")

    pipeline = (
        Pipeline("sync", retry=Retry(3, delay=0)).on_error(lambda ctx, error: False).then(down).returns()
    )
    with pytest.raises(StepError):
        await _run(runner, pipeline, {})
    assert attempts == [1]


async def test_a_rollback_has_the_result_of_its_step_in_the_merged_result(runner: Runner) -> None:
    undone: list[Any] = []

    async def fall(given: Sum) -> None:
        raise ValueError("down")

    async def undo(given: Both, ctx: PipelineContext[None]) -> None:
        undone.append((given.sum, ctx.step))

    def undo_too(ctx: PipelineContext[None]) -> None:
        undone.append((ctx.result["left"], ctx.step))

    def left(given: Sum) -> Left:
        return Left(9)

    pipeline = Pipeline("sync", input=Given, retry=Retry(1))
    workflow = pipeline.then(add, rollback=undo).then(left, rollback=undo_too).then(fall).returns()
    with pytest.raises(StepError):
        await _run(runner, workflow, Given([1, 2]))
    assert undone == [(9, "left"), (3, "add")]


async def test_progress_goes_from_step_to_step_and_siblings_change_their_own_fields(runner: Runner) -> None:
    seen: list[Cursor] = []

    async def first(ctx: PipelineContext[Cursor]) -> None:
        ctx.progress.done.append("first")

    async def left(ctx: PipelineContext[Cursor]) -> None:
        ctx.progress.done.append("left")

    def right(ctx: PipelineContext[Cursor]) -> None:
        ctx.progress.count += 5

    def last(ctx: PipelineContext[Cursor]) -> None:
        seen.append(ctx.progress)

    pipeline = Pipeline("sync", progress=Cursor).then(first).parallel(left, right).then(last).returns()
    await _run(runner, pipeline, {})
    assert seen == [Cursor(["first", "left"], 5)]


async def test_siblings_that_change_one_field_of_the_progress_fail_the_flow(runner: Runner) -> None:
    async def one(ctx: PipelineContext[Cursor]) -> None:
        ctx.progress.count = 1

    async def other(ctx: PipelineContext[Cursor]) -> None:
        ctx.progress.count = 2

    async def last() -> None: ...

    pipeline = Pipeline("sync", progress=Cursor).parallel(one, other).then(last).returns()
    with pytest.raises(ConflictError, match=r"both gave the field 'progress\.count'"):
        await _run(runner, pipeline, {})


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "thread"])
async def test_the_next_attempt_goes_on_from_the_saved_progress(runner: Runner, is_async: bool) -> None:
    stored: list[str] = []

    def items(ctx: PipelineContext[Cursor]) -> list[str]:
        return ["a", "b", "c"][ctx.progress.count :]

    async def store(ctx: PipelineContext[Cursor]) -> Sum:
        for item in items(ctx):
            if item == "b" and ctx.attempt == 1:
                raise ConnectionError("down")
            stored.append(item)
            ctx.progress.count += 1
            await ctx.save()
        return Sum(ctx.progress.count)

    def store_in_thread(ctx: PipelineContext[Cursor]) -> Sum:
        for item in items(ctx):
            if item == "b" and ctx.attempt == 1:
                raise ConnectionError("down")
            stored.append(item)
            ctx.progress.count += 1
            ctx.save()
        return Sum(ctx.progress.count)

    pipeline = Pipeline("sync", output=Sum, progress=Cursor, retry=Retry(2, delay=0))
    workflow = pipeline.then(store if is_async else store_in_thread, name="store").returns()
    assert await _run(runner, workflow, {}) == Sum(3)
    assert stored == ["a", "b", "c"]


async def test_saving_without_a_progress_is_told(runner: Runner) -> None:
    async def store(ctx: PipelineContext[None]) -> None:
        await ctx.save()

    with pytest.raises(StepError, match="pipeline 'sync' has no progress"):
        await _run(runner, Pipeline("sync", retry=Retry(1)).then(store).returns(), {})


class Left2(msgspec.Struct, omit_defaults=True):
    left: int = 0
    note: str = ""


class Place(msgspec.Struct, omit_defaults=True):
    index: int = 0
    note: str = ""


async def test_siblings_that_change_one_field_to_the_same_value_fail_the_flow_too(runner: Runner) -> None:
    async def one(ctx: PipelineContext[Cursor]) -> None:
        ctx.progress.count += 1

    async def other(ctx: PipelineContext[Cursor]) -> None:
        ctx.progress.count += 1

    async def last() -> None: ...

    pipeline = Pipeline("sync", progress=Cursor, retry=Retry(1))
    with pytest.raises(ConflictError, match=r"both gave the field 'progress\.count'"):
        await _run(runner, pipeline.parallel(one, other).then(last).returns(), {})


async def test_a_field_that_is_set_back_to_its_default_is_set(runner: Runner) -> None:
    seen: list[Any] = []

    async def there(ctx: PipelineContext[Place]) -> Left2:
        ctx.progress.index, ctx.progress.note = 5, "five"
        return Left2(5, "five")

    def back(ctx: PipelineContext[Place]) -> Left2:
        ctx.progress.index = 0
        return Left2(0, "")

    async def last(ctx: PipelineContext[Place]) -> None:
        seen.append((ctx.progress, ctx.result["left"], ctx.result["note"]))

    await _run(runner, Pipeline("sync", progress=Place).then(there).then(back).then(last).returns(), {})
    assert seen == [(Place(0, "five"), 0, "")]


async def test_an_output_that_forbids_other_fields_gets_its_own(runner: Runner) -> None:
    class Strict(msgspec.Struct, forbid_unknown_fields=True):
        sum: int

    pipeline = Pipeline("sync", input=Given, output=Strict).then(add).returns()
    assert await _run(runner, pipeline, Given([1, 2])) == Strict(3)
