"""What the context of a durable function offers besides steps and waits."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import MutableMapping
from typing import Any

import msgspec
import pytest
from drivers.recorded import Died, RecordedFlow

from eventbus import DefinitionError, Event, PayloadError, Retry, UsageError
from workflows import FlowContext, HistoryFull, Signal, durable, step_key, task
from workflows.functions.control import FlowSuspended
from workflows.functions.endings import Again, Completed

DAY_MS = 86_400_000
go = Signal("go", str)


class OutOfStock(Exception):
    pass


def _output(ending: object) -> Any:
    assert isinstance(ending, Completed), ending
    return msgspec.json.decode(ending.output)


async def test_time_numbers_and_ids_are_the_same_in_each_replay_and_others_in_each_branch() -> None:
    seen: list[Any] = []

    async def nothing() -> None: ...

    async def branch(ctx: FlowContext[None]) -> Any:
        await ctx.step(nothing)
        return [str(ctx.now()), ctx.random.random(), str(ctx.uuid())]

    @durable("derived")
    async def function(ctx: FlowContext[None]) -> None:
        here = await branch(ctx)
        seen.append([here, *await ctx.gather(branch(ctx), branch(ctx))])
        await ctx.wait_for(go)

    flow = RecordedFlow(function)
    await flow.activate()
    flow.clock.now_ms += DAY_MS
    await flow.activate()
    assert seen[0] == seen[1]
    assert len({each[1] for each in seen[0]}) == len({uuid.UUID(each[2]) for each in seen[0]}) == 3


async def test_the_log_is_silent_while_the_code_repeats_itself(logs: list[MutableMapping[str, Any]]) -> None:
    async def nothing() -> None: ...

    @durable("logs")
    async def function(ctx: FlowContext[None]) -> None:
        ctx.log.info("begins")
        await ctx.step(nothing)
        ctx.log.bind(more=1).info("did")
        await ctx.wait_for(go)
        ctx.log.info("woke")

    flow = RecordedFlow(function)
    await flow.activate()
    flow.send("go", "now")
    await flow.activate()
    assert [entry["event"] for entry in logs] == ["begins", "did", "woke"]
    assert logs[0]["flow_id"] == flow.flow_id


async def test_the_live_state_goes_out_with_the_next_record_and_before_the_flow_sleeps_or_ends() -> None:
    async def nothing() -> None: ...

    @durable("state", state=int)
    async def function(ctx: FlowContext[None]) -> str:
        assert ctx.state is None
        ctx.state = 1
        await ctx.step(nothing)
        ctx.state = 2
        await ctx.wait_for(go)
        ctx.state = 3
        with pytest.raises(PayloadError):
            ctx.state = "three"
        return str(ctx.state)

    flow = RecordedFlow(function)
    await flow.activate()
    assert flow.live == {"state": "2"}
    appends = flow.appends
    await flow.activate()
    assert flow.appends == appends, "nothing new to say"
    flow.send("go", "on")
    assert _output(await flow.activate()) == "3"
    assert flow.live == {"state": "3"}


async def test_a_step_has_one_key_in_all_attempts_and_no_other_call_has_it() -> None:
    keys: list[str] = []

    async def note() -> None:
        keys.append(step_key())
        if len(keys) == 1:
            raise ValueError("once")

    def note_in_thread() -> None:
        keys.append(step_key())

    @durable("keys", retry=Retry(attempts=2, delay=0))
    async def function(ctx: FlowContext[None]) -> None:
        await ctx.step(note)
        await ctx.step(note_in_thread)

    flow = RecordedFlow(function)
    flow.dies_at = 2
    with pytest.raises(Died):
        await flow.activate()
    flow.dies_at = None
    await flow.activate()
    assert keys == ["flow~1/1/0", "flow~1/1/0", "flow~1/1/1", "flow~1/1/1"]
    with pytest.raises(UsageError, match="outside of a step"):
        step_key()


async def test_continue_as_new_forgets_the_history_and_keeps_what_is_in_the_inbox() -> None:
    keys: list[str] = []

    async def note() -> None:
        keys.append(step_key())

    @durable("again")
    async def function(ctx: FlowContext[int]) -> str:
        await ctx.step(note)
        word = await ctx.wait_for(go)
        if ctx.input < 1:
            return ctx.continue_as_new(ctx.input + 1)
        return f"{ctx.input} {word}"

    flow = RecordedFlow(function, 0)
    flow.send("go", "first")
    flow.send("go", "second")
    ending = await flow.activate()
    assert ending == Again(b"1")
    flow.journal.append('{"k":"again","r":1}')
    assert _output(await flow.activate()) == "1 second"
    assert keys == ["flow~1/1/0", "flow~1/1.1/0"]


async def test_a_full_history_is_said_before_and_raised_in_the_code() -> None:
    async def nothing() -> None: ...

    @durable("full", max_history=10)
    async def function(ctx: FlowContext[None]) -> list[Any]:
        long = []
        try:
            while True:
                await ctx.step(nothing)
                long.append(ctx.history_is_long)
        except HistoryFull as error:
            return [long.count(False), long.count(True), error.entries]

    flow = RecordedFlow(function)
    assert _output(await flow.activate()) == _output(await flow.activate()) == [7, 3, 10]


async def test_code_that_ends_early_runs_its_finally_blocks_and_their_calls_do_nothing() -> None:
    left: list[str] = []

    async def work() -> None:
        left.append("worked")

    @durable("finally")
    async def function(ctx: FlowContext[None]) -> None:
        try:
            await ctx.wait_for(go)
        except Exception:  # noqa: BLE001  (to show that it does not catch this)
            left.append("caught")
        finally:
            left.append("left")
            with pytest.raises(FlowSuspended):
                await ctx.step(work)

    await RecordedFlow(function).activate()
    assert left == ["left"]


class _Emitter:
    """Takes emissions, and answers them."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, dict[str, Any]]] = []

    def emit(self, event: Any, payload: Any = None, **options: Any) -> _Emitter:
        self.sent.append((payload, options))
        return self

    async def enqueued(self) -> None: ...

    def __await__(self) -> Any:
        return asyncio.sleep(0, 42).__await__()


async def test_an_emission_is_sent_once_with_a_key_of_its_position_awaited_or_not() -> None:
    asked = Event("asked", payload=str, result=int)

    @durable("emits")
    async def function(ctx: FlowContext[None]) -> int:
        ctx.emit(asked, "told")
        answer = await ctx.emit(asked, "asked")
        ctx.emit(asked, "last")
        return answer

    flow = RecordedFlow(function)
    flow.emitter = emitter = _Emitter()
    assert _output(await flow.activate()) == _output(await flow.activate()) == 42
    sent = {payload: (options["idempotency_key"], options.get("reply")) for payload, options in emitter.sent}
    assert len(emitter.sent) == 3
    assert sent == {
        "told": ("flow~1/1/0", False),
        "asked": ("flow~1/1/1", None),
        "last": ("flow~1/1/2", False),
    }


async def test_a_rollback_that_the_code_names_is_recorded_before_anything_that_follows() -> None:
    @durable("named")
    async def function(ctx: FlowContext[None]) -> None:
        ctx.rollback(release, 7)
        await ctx.step(fail)

    flow = RecordedFlow(function)
    flow.dies_at = 1
    with pytest.raises(Died):
        await flow.activate()
    assert flow.told == [("rollback", "0", "release")]
    with pytest.raises(DefinitionError, match="decorated with @task"):
        await _call(lambda ctx: ctx.rollback(print, 7))


@task
async def release(number: int) -> None: ...


async def fail() -> None:
    raise ValueError("odd")


async def _call(act: Any) -> None:
    errors: list[BaseException] = []

    @durable("call")
    async def function(ctx: FlowContext[None]) -> None:
        try:
            act(ctx)
        except Exception as error:  # noqa: BLE001  (raised outside)
            errors.append(error)

    await RecordedFlow(function).activate()
    raise errors[0]


async def test_a_task_that_is_called_without_a_step_is_refused_in_the_code_and_nowhere_else() -> None:
    @task
    async def inner(number: int) -> int:
        return number + 1

    @task
    def plain(number: int) -> int:
        return number * 2

    @task
    async def outer(number: int) -> int:
        return await inner(number) + plain(number)

    @durable("forgets")
    async def function(ctx: FlowContext[None]) -> list[Any]:
        found: list[Any] = [await ctx.step(outer, 1)]
        for call in (lambda: inner(1), lambda: plain(1)):
            with pytest.raises(UsageError, match=r"write `await ctx.step\((inner|plain), ...\)`"):
                call()
        return found

    assert _output(await RecordedFlow(function).activate()) == [4]
    assert (await inner(1), plain(1)) == (2, 2)
