"""Inputs, results and outputs arrive with the type and the value that they had."""

from __future__ import annotations

import dataclasses
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from drivers.runners import Runner

from eventbus import PayloadError, Retry
from workflows.definition.context import StepContext
from workflows.definition.workflow import Workflow
from workflows.errors import StepError

pytestmark = pytest.mark.virtual

_ONCE = Retry(attempts=1)


class Order(msgspec.Struct):
    number: str
    lines: list[Line]


class Line(msgspec.Struct):
    item: str
    price: Decimal


@dataclasses.dataclass
class Parcel:
    weight: float
    sent: datetime
    parts: dict[str, tuple[int, ...]]


_ORDER = Order("o-1", [Line("tea", Decimal("3.50")), Line("cup", Decimal(7))])
_PARCEL = Parcel(1.5, datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC), {"a": (1, 2), "b": ()})

_SHAPES = [
    (Any, None),
    (Any, "123"),
    (Any, ""),
    (Any, 123),
    (Any, 12.5),
    (Any, True),
    (Any, [1, "1", None, {"a": {"b": []}}]),
    (Any, {"__proto__": 1, "constructor": {"prototype": 2}, "": "é"}),
    (None, None),
    (str, "123"),
    (int | None, None),
    (Order, _ORDER),
    (list[Order], [_ORDER]),
    (Parcel, _PARCEL),
    (datetime, datetime(2026, 1, 2, tzinfo=UTC)),
    (date, date(2026, 1, 2)),
    (Decimal, Decimal("0.10")),
    (UUID, UUID(int=7)),
    (bytes, b"\x00\xff"),
    (set[int], {1, 2}),
    (tuple[int, str], (1, "1")),
]


@pytest.mark.parametrize(("type_", "value"), _SHAPES, ids=repr)
async def test_every_shape_passes_through_input_step_and_output(
    runner: Runner, type_: Any, value: Any
) -> None:
    workflow: Workflow[Any, Any] = Workflow("shapes", input=type_, output=type_, retry=_ONCE)
    seen: list[Any] = []

    async def give(ctx: StepContext[Any]) -> Any:
        seen.append(ctx.input)
        return ctx.input

    async def take(ctx: StepContext[Any]) -> None:
        seen.append(ctx.result("give"))

    give.__annotations__["return"] = type_
    given = workflow.step(give)
    workflow.step(take)

    @workflow.completed
    async def finish(ctx: StepContext[Any]) -> Any:
        seen.append(ctx.results["give"])
        return ctx.result(given)

    handle = await runner.start(workflow, value)
    seen.append(await handle.result())
    report = await handle.report()
    seen.append(report.steps["give"].result)
    assert seen == [value] * 5
    assert {type(each) for each in seen} == {type(value)}


async def test_readers_of_one_result_have_copies_of_their_own(runner: Runner) -> None:
    workflow = Workflow("copies", retry=_ONCE)

    @workflow.step()
    async def give(ctx: StepContext[Any]) -> list[int]:
        return [1]

    @workflow.step()
    async def spoil(ctx: StepContext[Any]) -> None:
        ctx.result(give).append(2)
        ctx.input.append("spoiled")

    @workflow.completed
    async def finish(ctx: StepContext[Any]) -> Any:
        return [ctx.result(give), ctx.input]

    given: list[str] = []
    assert await (await runner.start(workflow, given)).result() == [[1], []]
    assert given == []


async def test_an_input_that_does_not_fit_is_refused_before_anything_runs(runner: Runner) -> None:
    workflow = Workflow("strict", input=Order)
    ran: list[str] = []

    @workflow.step()
    async def never(ctx: StepContext[Order]) -> None:
        ran.append("never")

    for bad in ({"number": "o-1"}, "text", None, Order(1, [])):  # type: ignore[arg-type]  (the point of it)
        with pytest.raises(PayloadError, match='payload of "strict"') as caught:
            await runner.start(workflow, bad)
        assert caught.value.event == "strict"
    with pytest.raises(PayloadError, match=r'"strict".*decimal.*at \$.lines\[0\].price'):
        await runner.start(workflow, Order("o-1", [Line("tea", "dear")]))  # type: ignore[arg-type]
    assert ran == []


async def test_untyped_input_is_json_or_refused(runner: Runner) -> None:
    workflow = Workflow("loose")

    @workflow.completed
    async def finish(ctx: StepContext[Any]) -> Any:
        return ctx.input

    for bad in (float("nan"), {1: "a"}, (1, 2), object(), datetime(2026, 1, 1, tzinfo=UTC)):
        with pytest.raises(PayloadError, match='"loose"'):
            await runner.start(workflow, bad)


async def test_meta_that_is_no_json_is_refused(runner: Runner) -> None:
    workflow = Workflow("meta")

    @workflow.completed
    async def finish(ctx: StepContext[Any]) -> None: ...

    with pytest.raises(PayloadError, match="meta"):
        await runner.start(workflow, None, meta={"a": object()})


async def test_a_result_that_does_not_fit_fails_its_step_at_once(runner: Runner) -> None:
    workflow = Workflow("wrong", retry=Retry(attempts=5, delay=0.01))
    ran: list[int] = []

    @workflow.step()
    async def lie(ctx: StepContext[Any]) -> int:
        ran.append(ctx.attempt)
        return "no int"  # type: ignore[return-value]  # pyright: ignore[reportReturnType]

    handle = await runner.start(workflow, None)
    with pytest.raises(StepError, match=r'result of "wrong.lie" \(int\)') as caught:
        await handle.result()
    assert caught.value.step == "lie"
    assert ran == [1]


async def test_an_output_that_does_not_fit_undoes_everything(runner: Runner) -> None:
    workflow = Workflow("output", output=int, retry=Retry(attempts=5, delay=0.01))
    undone: list[Any] = []

    @workflow.step()
    async def make(ctx: StepContext[Any]) -> int:
        return 1

    @make.rollback
    async def unmake(ctx: StepContext[Any], result: int) -> None:
        undone.append(result)

    @workflow.completed
    async def finish(ctx: StepContext[Any]) -> Any:
        return "no int"

    handle = await runner.start(workflow, None)
    with pytest.raises(StepError, match=r'result of "output" \(int\)') as caught:
        await handle.result()
    assert (caught.value.step, caught.value.rollback, undone) == ("__completed__", "complete", [1])
