"""What a test can do with a durable function without a server, and what a deploy can check."""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import enum
import random
import time
import uuid
from typing import Any, Literal

import msgspec
import pytest
from drivers.recorded import RecordedFlow

from eventbus import UsageError
from workflows import (
    FlowContext,
    FlowTimeout,
    NonDeterminismError,
    Signal,
    StepContext,
    StepError,
    Workflow,
    durable,
    task,
)
from workflows.functions.history_check import FlowHistory, redacted
from workflows.functions.lint import lint
from workflows.testing import replay, run_inline

pytestmark = pytest.mark.virtual

go = Signal("go", str)
did: list[str] = []


@pytest.fixture(autouse=True)
def nothing_did() -> None:
    did.clear()


@task
async def reserve(name: str) -> str:
    did.append(f"reserve {name}")
    return f"the seat of {name}"


@reserve.rollback
async def release(seat: str) -> None:
    did.append(f"release {seat}")


@durable("seats")
async def seats(ctx: FlowContext[str]) -> str:
    seat = await ctx.step(reserve, ctx.input)
    number, word = await ctx.race(ctx.wait_for(go), ctx.sleep("3 days"))
    if number == 1:
        raise ValueError("nobody came")
    return f"{seat}: {word}"


async def no_sleep(_seconds: float) -> None:
    did.append("slept")


@pytest.mark.parametrize("how", ["", "always"])
async def test_a_function_runs_in_a_test_with_signals_or_until_its_sleep_is_over(how: Any) -> None:
    assert await run_inline(seats, "Ada", signals=[(go, "yes")], replay=how) == "the seat of Ada: yes"
    with pytest.raises(StepError) as caught:
        await run_inline(seats, "Bo", sleep=no_sleep, replay=how)
    assert caught.value.rollback == "complete"
    assert did == ["reserve Ada", "reserve Bo", "slept", "release the seat of Bo"]


async def test_a_function_that_waits_for_a_signal_that_does_not_come_says_so() -> None:
    @durable("waits")
    async def waits(ctx: FlowContext[None]) -> str:
        return await ctx.wait_for(go)

    with pytest.raises(UsageError, match=r"signals=\[\(signal, payload\)\]"):
        await run_inline(waits, None)


async def test_an_inline_flow_past_its_timeout_is_undone() -> None:
    @durable("slow", timeout=0.05)
    async def slow(ctx: FlowContext[None]) -> None:
        await ctx.step(reserve, "Cy")
        await ctx.step(asyncio.Event().wait)

    with pytest.raises(FlowTimeout):
        await run_inline(slow, None)
    assert did == ["reserve Cy", "release the seat of Cy"]


async def test_always_replaying_finds_a_clock_chance_and_shared_variables() -> None:
    counted: list[int] = []

    async def by_chance(ctx: FlowContext[None]) -> None:
        await ctx.step(task(name=f"step-{random.random()}".replace(".", "-"))(reserve.function), "Di")

    async def by_variable(ctx: FlowContext[None]) -> None:
        counted.append(1)
        if len(counted) == 1:
            await ctx.step(reserve, "Ed")
        else:
            await ctx.sleep(1)

    for number, code in enumerate((by_chance, by_variable)):

        @durable(f"odd-{number}")
        async def odd(ctx: FlowContext[None]) -> None:
            await code(ctx)  # noqa: B023  (it runs before the next one)

        await run_inline(odd, None, sleep=no_sleep) if number == 0 else None
        counted.clear()
        with pytest.raises(NonDeterminismError):
            await run_inline(odd, None, sleep=no_sleep, replay="always")


async def _history() -> FlowHistory:
    flow = RecordedFlow(seats, "Ada", flow_id="seats~00000000000000000000")
    await flow.activate()
    return FlowHistory(
        flow_id=flow.flow_id,
        version="1",
        input=msgspec.Raw(b'"Ada"'),
        created_ms=1,
        entries=tuple(msgspec.Raw(text.encode()) for text in flow.journal),
    )


async def test_a_history_is_replayed_without_effects_and_refuses_changed_code() -> None:
    @durable("seats")
    async def changed(ctx: FlowContext[str]) -> None:
        await ctx.sleep(1)

    history = await _history()
    did.clear()
    await replay(seats, history)
    await replay(seats, msgspec.json.encode(redacted(history)))
    with pytest.raises(NonDeterminismError) as caught:
        await replay(changed, history)
    assert (caught.value.recorded, caught.value.asked) == ("step 'reserve'", "a sleep")
    assert did == []
    with pytest.raises(UsageError, match="this is no history of a flow"):
        await replay(seats, "{}")


async def test_a_redacted_history_has_no_texts_of_users() -> None:
    text = msgspec.json.encode(redacted(await _history())).decode()
    assert "Ada" not in text
    assert '"n":"reserve"' in text


class Trip(msgspec.Struct):
    id: uuid.UUID
    day: dt.date
    starts: dt.datetime
    lasts: dt.timedelta
    price: decimal.Decimal
    guest: str


class Colour(enum.Enum):
    RED = "red"


async def test_what_takes_the_place_of_a_redacted_text_is_of_its_kind() -> None:
    trip = Trip(
        uuid.uuid4(),
        dt.date(2031, 5, 6),
        dt.datetime(2031, 5, 6, 7, tzinfo=dt.UTC),
        dt.timedelta(hours=3),
        decimal.Decimal("99.95"),
        "Ada",
    )

    async def plan(given: Trip) -> Trip:
        return given

    @durable("trip")
    async def function(ctx: FlowContext[Trip]) -> Trip:
        return await ctx.step(plan, ctx.input)

    flow = RecordedFlow(function, trip)
    await flow.activate()
    entries = tuple(msgspec.Raw(text.encode()) for text in flow.journal)
    given = msgspec.Raw(msgspec.json.encode(trip))
    history = FlowHistory(
        flow_id="trip~0123456789abcdef0123", version="1", input=given, created_ms=1_000_000, entries=entries
    )
    hidden = redacted(history)
    text = msgspec.json.encode(hidden).decode()
    assert not any(word in text for word in (str(trip.id), "2031", "PT3H", "99.95", "Ada"))
    await replay(function, text)


async def test_a_redacted_history_that_cannot_be_read_says_that_it_is_redacted() -> None:
    async def paint() -> Colour:
        return Colour.RED

    @durable("painted")
    async def function(ctx: FlowContext[str]) -> None:
        await ctx.step(paint)

    @durable("coloured")
    async def coloured(ctx: FlowContext[Colour]) -> None: ...

    flow = RecordedFlow(function, "red")
    await flow.activate()
    entries = tuple(msgspec.Raw(text.encode()) for text in flow.journal)
    history = FlowHistory(
        flow_id="painted~0123456789abcdef0123",
        version="1",
        input=msgspec.Raw(b'"red"'),
        created_ms=1,
        entries=entries,
    )
    await replay(function, history)
    with pytest.raises(NonDeterminismError, match="the texts of this history are redacted"):
        await replay(function, redacted(history))
    with pytest.raises(UsageError, match="export the flow without --redact"):
        await replay(coloured, redacted(history))


def test_the_lint_names_the_line_and_what_to_use() -> None:
    @durable("doubtful")
    async def doubtful(ctx: FlowContext[None]) -> float:
        await asyncio.sleep(1)
        return time.time() + random.random()

    lines = [line.partition(": ")[2] for line in lint(doubtful)]
    assert lines == [
        "asyncio.sleep() in durable function 'doubtful'; use ctx.sleep",
        "time.time() in durable function 'doubtful'; use ctx.now()",
        "random.random() in durable function 'doubtful'; use ctx.random",
    ]
    assert lint(seats) == []


@durable("child", errors=[KeyError])
async def child(ctx: FlowContext[int]) -> int:
    await ctx.step(reserve, f"child {ctx.input}")
    await ctx.sleep("1 day")
    if ctx.input < 0:
        raise KeyError("negative")
    return ctx.input + 1


steps: Workflow[int, int] = Workflow("steps", input=int, output=int)


@steps.step
async def add(ctx: StepContext[int]) -> None:
    did.append(f"add {ctx.input}")


@add.rollback
async def take(ctx: StepContext[int], result: None) -> None:
    did.append(f"take {ctx.input}")


@steps.completed
async def done(ctx: StepContext[int]) -> int:
    return ctx.input * 2


async def _no_time(_seconds: float) -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize("mode", ["", "always"])
async def test_flows_in_a_function_run_inline_and_are_undone_with_it(mode: Literal["", "always"]) -> None:
    @durable("parent")
    async def parent(ctx: FlowContext[int]) -> list[Any]:
        found: list[Any] = [await ctx.flow(child, 1)]
        found += await ctx.gather(ctx.flow(steps, 2), ctx.flow(child, 3))
        try:
            await ctx.flow(child, -1)
        except KeyError as error:
            found.append(error.args)
        if ctx.input:
            raise ValueError("late")
        return found

    assert await run_inline(parent, 0, sleep=_no_time, replay=mode) == [2, 4, 4, ["negative"]]
    did.clear()
    with pytest.raises(StepError) as caught:
        await run_inline(parent, 1, sleep=_no_time, replay=mode)
    assert caught.value.rollback == "complete"
    first = [
        "reserve child 1",
        "add 2",
        "reserve child 3",
        "reserve child -1",
        "release the seat of child -1",
    ]
    assert sorted(did[:5]) == sorted(first)
    assert did[5:] == ["release the seat of child 3", "take 2", "release the seat of child 1"]


async def test_a_timeout_and_a_race_stop_the_flows_in_a_function_inline() -> None:
    @durable("raced")
    async def raced(ctx: FlowContext[None]) -> int:
        return (await ctx.race(ctx.flow(child, 1), ctx.sleep(0.01))).number

    @durable("waits")
    async def waits(ctx: FlowContext[None]) -> None:
        await ctx.flow(child, 1)

    assert await run_inline(raced, None) == 1
    assert did == ["reserve child 1", "release the seat of child 1"]
    with pytest.raises(FlowTimeout):
        await run_inline(waits, None, timeout=0.05)
    assert did[2:] == ["reserve child 1", "release the seat of child 1"]


@durable("fast")
async def fast(ctx: FlowContext[str]) -> str:
    return await ctx.step(reserve, ctx.input)


@pytest.mark.parametrize("mode", ["", "always"])
@pytest.mark.parametrize("first", ["step", "done step", "flow"])
async def test_a_race_of_a_step_and_a_flow_that_end_in_one_round_is_decided_inline(
    mode: Literal["", "always"], first: str
) -> None:
    @durable("close-race")
    async def close_race(ctx: FlowContext[None]) -> Any:
        step = ctx.step(reserve, "a step")
        if first == "done step":
            await step
        flow = ctx.flow(fast, "a flow")
        found = await ctx.race(*((flow, step) if first == "flow" else (step, flow)))
        return [found.value, await ctx.step(reserve, "the end")]

    winner, end = await run_inline(close_race, None, replay=mode, sleep=_no_time)
    assert winner in ("the seat of a step", "the seat of a flow")
    assert end == "the seat of the end"
    done, undone = did.count("reserve a flow"), did.count("release the seat of a flow")
    assert done - undone == (winner == "the seat of a flow"), "the flow that lost has undone itself"
