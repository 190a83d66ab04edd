"""What a durable function emits: what is refused at once, and which errors it gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from drivers.recorded import RecordedFlow

from eventbus import (
    DefinitionError,
    EmissionExpired,
    Event,
    EventProvider,
    HandlerError,
    JobCancelled,
    PayloadError,
    ResponseTimeout,
    Retry,
    StalledError,
    StoreError,
    UsageError,
)
from workflows import FlowContext, StepContext, Workflow, WorkflowProvider, durable
from workflows.functions.endings import Asleep, Completed, Failed

pytestmark = pytest.mark.virtual


class OutOfStock(Exception):
    pass


class Odd(Exception):
    pass


async def word() -> str:
    return "word"


def _output(ending: object) -> Any:
    assert isinstance(ending, Completed), ending
    return msgspec.json.decode(ending.output)


class _Emitter:
    """Takes emissions, and raises the error of the number that is their payload."""

    job_id = "j"

    def __init__(self, errors: list[Exception]) -> None:
        self._errors = errors
        self._number = 0

    def emit(self, event: Any, payload: int = 0, **options: Any) -> _Emitter:
        self._number = payload
        return self

    async def enqueued(self) -> None: ...

    def __await__(self) -> Any:
        raise self._errors[self._number]
        yield


async def test_an_emission_that_cannot_be_sent_is_refused_where_it_is_called() -> None:
    asked = Event("asked", payload=int)

    @durable("refused")
    async def function(ctx: FlowContext[None]) -> str:
        any_ctx: Any = ctx
        with pytest.raises(PayloadError):
            any_ctx.emit(asked, "no number")
        with pytest.raises(DefinitionError, match="expected an Event"):
            any_ctx.emit(5, 1)
        with pytest.raises(DefinitionError):
            ctx.emit(asked, 1, priority=99_999)
        with pytest.raises(PayloadError):
            ctx.emit("by its name", object())
        return await ctx.step(word)

    flow = RecordedFlow(function)
    assert _output(await flow.activate()) == _output(await flow.activate()) == "word"
    assert flow.told == [("step", "4", "word")]


async def test_an_emission_that_was_sent_already_cannot_be_awaited_any_more() -> None:
    @durable("late")
    async def function(ctx: FlowContext[None]) -> str:
        emission = ctx.emit("asked", 1)
        await ctx.step(word)
        with pytest.raises(
            UsageError, match="the emission of 'asked' at position 0 was sent without waiting"
        ):
            await emission
        return "told"

    flow = RecordedFlow(function)
    flow.emitter = _Emitter([])
    assert _output(await flow.activate()) == _output(await flow.activate()) == "told"


async def test_the_error_of_an_event_is_what_an_emitter_gets_also_in_a_replay() -> None:
    asked = Event("asked", payload=int, errors=[OutOfStock])
    cause = HandlerError(
        event="asked",
        job_id="j",
        type_name="KeyError",
        remote_message="'x'",
        remote_traceback="Trace",
        attempts=3,
    )
    errors: list[Exception] = [
        OutOfStock("no chairs"),
        cause,
        JobCancelled("cancelled", event="asked", job_id="j", reason="not now"),
        EmissionExpired("too late", event="asked", job_id="j"),
        StalledError("died", event="asked", job_id="j", stalls=3),
        ResponseTimeout(event="asked", job_id="j", timeout=2.5, state="active"),
        Odd("of the emitter"),
    ]
    seen: list[list[Any]] = []

    @durable("asks", retry=Retry(attempts=1))
    async def function(ctx: FlowContext[None]) -> None:
        found: list[Any] = []
        for number in range(len(errors)):
            try:
                await ctx.emit(asked, number)
            except Exception as error:  # noqa: BLE001  (all of them)
                found.append(error)
        seen.append(found)

    flow = RecordedFlow(function)
    flow.emitter = _Emitter(errors)
    await flow.activate()
    await flow.activate()
    for found in seen:
        assert [type(error) for error in found] == [*map(type, errors[:-1]), HandlerError]
        stock, handler, cancelled, _, stalled, late, odd = found
        assert (stock.args, handler.type_name, handler.remote_traceback) == (
            ("no chairs",),
            "KeyError",
            "Trace",
        )
        assert (handler.attempts, handler.event, cancelled.reason, stalled.stalls) == (
            3,
            "asked",
            "not now",
            3,
        )
        assert (late.timeout, late.state, late.job_id) == (2.5, "active", "j")
        assert odd.type_name.endswith("Odd")


class _Away:
    """Takes no emission but the last one of so many attempts."""

    job_id = "j"

    def __init__(self, fails: int) -> None:
        self.attempts = 0
        self.keys: list[str] = []
        self._fails = fails

    def emit(self, event: Any, payload: int = 0, **options: Any) -> _Away:
        self.keys.append(options["idempotency_key"])
        return self

    async def enqueued(self) -> None:
        self.attempts += 1
        if self.attempts <= self._fails:
            raise StoreError("the server is away")


@pytest.mark.parametrize("delay", [0, 60])
async def test_a_function_ends_only_after_the_emission_that_it_does_not_await_was_sent(delay: float) -> None:
    @durable("sends", retry=Retry(attempts=3, delay=delay, backoff="fixed"))
    async def function(ctx: FlowContext[None]) -> str:
        ctx.emit("asked", 1)
        return "told"

    flow = RecordedFlow(function)
    flow.emitter = emitter = _Away(fails=2)
    ending = await flow.activate()
    while isinstance(ending, Asleep):
        assert ending == Asleep(flow.clock.now_ms + 60_000, listens=False)
        flow.clock.now_ms += 60_000
        ending = await flow.activate()
    assert _output(ending) == "told"
    assert (emitter.attempts, set(emitter.keys)) == (3, {"flow~1/1/0"})
    assert [kind for kind, _, _ in flow.told] == ["try", "try", "step"]


async def test_a_function_that_raised_does_not_wait_for_the_next_attempt_of_an_emission() -> None:
    @durable("fails", retry=Retry(attempts=3, delay=60, backoff="fixed"))
    async def function(ctx: FlowContext[None]) -> None:
        ctx.emit("asked", 1)
        await ctx.step(word)
        raise Odd

    flow = RecordedFlow(function)
    flow.emitter = emitter = _Away(fails=2)
    assert isinstance(await flow.activate(), Failed)
    assert emitter.attempts == 1


@pytest.mark.parametrize("how", ["function", "step"])
@pytest.mark.parametrize(
    ("options", "sums"),
    [
        ({"throttle": "1h"}, [(1, 1), (1, 1)]),
        ({"keep_last": True}, [(1, 1), (2, 2)]),
        ({"debounce": "10ms"}, [(1, 1), (2, 2)]),
        ({"supersede": True}, [(1, 1), (2, 2)]),
    ],
)
async def test_emissions_in_flows_merge_with_those_of_their_key(
    options: Any, sums: list[tuple[int, int]], how: str, make_provider: Callable[..., EventProvider]
) -> None:
    summed = Event("summed", payload=int, result=int, key=lambda number: "all")
    provider = make_provider()
    flows = WorkflowProvider(provider)

    @provider.on(summed)
    async def handle(number: int) -> int:
        return number

    @durable("sums")
    async def function(ctx: FlowContext[int]) -> int:
        return await ctx.emit(summed, ctx.input, **options)

    graph = Workflow("steps", input=int, output=int)

    @graph.step
    async def total(ctx: StepContext[int]) -> int:
        return await ctx.emit(summed, ctx.input, **options)

    @graph.completed
    async def done(ctx: StepContext[int]) -> int:
        return ctx.result(total)

    flows.register(function)
    flows.register(graph)
    async with provider, provider.worker():
        for number, wanted in sums:
            flow = await flows.execute(function if how == "function" else graph, number)
            assert await flow.result(240) == wanted


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"throttle": "1h"}, "throttle needs a key"),
        ({"supersede": True}, "supersede needs a key"),
        ({"debounce": "1s", "delay": 5, "idempotency_key": "k"}, "either debounce or delay"),
        (
            {"keep_last": True, "reuse_failure": True, "idempotency_key": "k"},
            "either keep_last or reuse_failure",
        ),
        (
            {"supersede": True, "reuse_failure": True, "idempotency_key": "k"},
            "either supersede or reuse_failure",
        ),
        ({"ttl": 0}, "ttl"),
        ({"idempotency_key": ""}, "key"),
    ],
)
async def test_an_emission_whose_options_cannot_be_is_refused_at_its_call(options: Any, text: str) -> None:
    @durable("refused")
    async def function(ctx: FlowContext[None]) -> str:
        with pytest.raises(DefinitionError, match=text):
            ctx.emit(Event("asked", payload=int), 1, **options)
        return await ctx.step(word)

    flow = RecordedFlow(function)
    assert _output(await flow.activate()) == "word"
    assert [kind for kind, _, _ in flow.told] == ["step"]


class Receipt(msgspec.Struct):
    number: int


asked_for = Event("asked.for", payload=int, result=Receipt)
told_only = Event("told.only", payload=int, result=Receipt, reply=False)
to_groups = Event("to.groups", payload=int, result=Receipt, default=False)


@pytest.mark.parametrize("event", [asked_for, told_only, to_groups, "asked.for"])
async def test_awaiting_an_emission_without_a_reply_waits_only_until_it_is_sent(
    make_provider: Callable[..., EventProvider], event: Any
) -> None:
    """It gives None, as the emission of a provider does, though the event has a type of result."""
    options: dict[str, Any] = {} if event in (told_only, to_groups) else {"reply": False}

    @durable("tells")
    async def tells(ctx: FlowContext[None]) -> list[Any]:
        alone = await ctx.emit(event, 1, **options)
        (together, _) = await ctx.gather(ctx.emit(event, 2, **options), ctx.step(word))
        replied = await ctx.emit(asked_for, 3, reply=True)
        return [alone, together, replied.number]

    seen: list[Any] = []
    tells_in_steps = Workflow[None, Any]("tells.in.a.step")

    @tells_in_steps.step()
    async def tell(ctx: StepContext[None]) -> None:
        many = ctx.emit_many(event, [2], **options)
        seen.extend([await ctx.emit(event, 1, **options), *[await each for each in many]])

    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(tells)
    flows.register(tells_in_steps)
    for each in (asked_for, told_only):

        @provider.on(each)
        async def answer(number: int) -> Receipt:
            return Receipt(number)

    async with provider, provider.worker():
        handle = await flows.execute(tells, None)
        assert await handle.result() == [None, None, 3]
        await (await flows.execute(tells_in_steps, None)).result()
        assert seen == [None, None]
