"""What follows from errors: attempts, backoff, declared errors, timeouts, expiry."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from importable import process_handlers

from eventbus import EmissionExpired, Event, EventContext, EventProvider, HandlerError, Retry, Unrecoverable
from workflows import Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]

AT_ONCE = Retry(attempts=3, delay=0)


class OutOfStock(Exception):
    def __init__(self, item: str, left: int) -> None:
        super().__init__(item, left)
        self.item, self.left = item, left


class Closed(Exception):
    pass


async def test_an_error_reaches_the_emitter_with_its_remote_story(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=AT_ONCE)

    @provider.on("charge")
    async def charge(n: int) -> None:
        try:
            raise KeyError("card")
        except KeyError as error:
            raise ValueError(f"no card {n}") from error

    async with provider.worker():
        emission = provider.emit("charge", 7)
        with pytest.raises(
            HandlerError, match=r"ValueError: no card 7 \(in the handler of charge, after 3"
        ) as e:
            await emission
    error = e.value
    assert (error.event, error.job_id, error.type_name) == ("charge", emission.job_id, "ValueError")
    assert (error.remote_message, error.attempts) == ("no card 7", 3)
    assert error.causes == (("KeyError", "'card'"),)
    assert "in charge" in error.remote_traceback
    assert "raise ValueError" in error.remote_traceback


async def test_an_attempt_that_succeeds_ends_the_retries(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=AT_ONCE)
    attempts: list[int] = []

    @provider.on("flaky")
    async def flaky(_: Any, ctx: EventContext) -> str:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError("again")
        return "done"

    async with provider.worker():
        assert await provider.emit("flaky") == "done"
    assert attempts == [1, 2, 3]


async def test_unrecoverable_fails_at_once(make_provider: MakeProvider) -> None:
    class Gone(Unrecoverable):
        pass

    provider = make_provider(retry=AT_ONCE)

    @provider.on("gone")
    async def gone(_: Any) -> None:
        raise Gone("for good")

    async with provider.worker():
        with pytest.raises(HandlerError, match="for good") as caught:
            await provider.emit("gone")
    assert caught.value.attempts == 1


@pytest.mark.parametrize(
    ("emission", "handler", "event", "expected"),
    [(2, 3, 4, 2), (None, 3, 4, 3), (None, None, 4, 4), (None,) * 3 + (5,)],
)
async def test_the_rule_of_the_emission_wins_over_handler_event_and_provider(
    make_provider: MakeProvider, emission: int | None, handler: int | None, event: int | None, expected: int
) -> None:
    def rule(attempts: int | None) -> Retry | None:
        return None if attempts is None else Retry(attempts=attempts, delay=0)

    provider = make_provider(retry=rule(5))
    tried = Event("tried", retry=rule(event))
    options: Any = {} if emission is None else {"retry": rule(emission)}

    @provider.on(tried, retry=rule(handler))
    async def fails(_: Any) -> None:
        raise ValueError

    async with provider.worker():
        with pytest.raises(HandlerError) as caught:
            await provider.emit(tried, None, **options)
    assert caught.value.attempts == expected


async def test_a_backoff_of_ones_own_is_asked_with_attempt_and_error(make_provider: MakeProvider) -> None:
    provider = make_provider()
    asked: list[tuple[int, str]] = []

    def backoff(attempt: int, error: BaseException) -> float:
        asked.append((attempt, str(error)))
        return 0.0

    @provider.on("tried", retry=Retry(attempts=3, backoff=backoff))
    async def fails(_: Any, ctx: EventContext) -> None:
        raise ValueError(f"try {ctx.attempt}")

    async with provider.worker():
        with pytest.raises(HandlerError, match="try 3"):
            await provider.emit("tried")
    assert asked == [(1, "try 1"), (2, "try 2")]


async def test_a_backoff_of_ones_own_may_stand_on_the_event_or_the_provider(
    make_provider: MakeProvider,
) -> None:
    asked: list[str] = []

    def rule(name: str) -> Retry:
        return Retry(attempts=2, backoff=lambda attempt, error: asked.append(f"{name} {attempt}") or 0)

    with_rule = Event("with-rule", retry=rule("event"))
    provider = make_provider(retry=rule("provider"))

    async def fails(payload: Any) -> None:
        raise ValueError(payload)

    provider.on(with_rule)(fails)
    provider.on("without")(fails)
    async with provider, provider.worker():
        for event in (with_rule, "without"):
            with pytest.raises(HandlerError):
                await provider.emit(event, "no")
    assert asked == ["event 1", "provider 1"]


async def test_a_backoff_that_raises_fails_the_job_with_both_errors(make_provider: MakeProvider) -> None:
    provider = make_provider()

    def backoff(attempt: int, error: BaseException) -> float:
        raise LookupError("no such delay")

    @provider.on("tried", retry=Retry(attempts=3, backoff=backoff))
    async def fails(_: Any) -> None:
        raise ValueError("the first one")

    async with provider.worker():
        with pytest.raises(HandlerError, match="no such delay") as caught:
            await provider.emit("tried")
    assert caught.value.attempts == 1
    assert caught.value.causes == (("ValueError", "the first one"),)


async def test_a_failed_attempt_waits_its_backoff(make_provider: MakeProvider) -> None:
    provider = make_provider()
    times: list[float] = []

    @provider.on("tried", retry=Retry(attempts=3, delay="40ms"))
    async def fails(_: Any) -> None:
        times.append(asyncio.get_running_loop().time())
        raise ValueError

    async with provider.worker():
        with pytest.raises(HandlerError):
            await provider.emit("tried")
    first, second = times[1] - times[0], times[2] - times[1]
    assert first > 0.03
    assert second > 0.07


async def test_declared_errors_are_raised_as_themselves(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=Retry(attempts=1))
    bought = Event("bought", payload=str, result=int, errors=[OutOfStock, Closed])

    @provider.on(bought)
    async def buy(item: str) -> int:
        if item == "tea":
            raise OutOfStock(item, 0)
        raise Closed

    async with provider.worker():
        with pytest.raises(OutOfStock) as caught:
            await provider.emit(bought, "tea")
        assert (caught.value.item, caught.value.left) == ("tea", 0)
        assert isinstance(caught.value.__cause__, HandlerError)
        assert "raise OutOfStock" in caught.value.__cause__.remote_traceback
        with pytest.raises(Closed):
            await provider.emit(bought, "milk")
        with pytest.raises(HandlerError, match="Closed"):  # without the event nothing is declared
            await _emit_untyped(make_provider(), "milk")


async def _emit_untyped(provider: EventProvider, item: str) -> None:
    async with provider:
        await provider.emit("bought", item)


async def test_a_handler_past_its_timeout_is_cancelled_and_has_failed(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=Retry(attempts=2, delay=0))
    ended: list[str] = []

    @provider.on("slow", timeout="40ms")
    async def slow(_: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async with provider.worker():
        with pytest.raises(HandlerError, match=r"ran longer than its timeout of 0\.04 s") as caught:
            await provider.emit("slow")
    assert (caught.value.type_name, caught.value.attempts) == ("TimeoutError", 2)
    assert ended == ["cancelled", "cancelled"]


async def test_a_handler_that_swallows_its_cancellation_has_failed_all_the_same(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider(retry=Retry(attempts=1))

    @provider.on("slow", timeout="30ms")
    async def slow(_: Any) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "in spite of all"

    async with provider.worker():
        with pytest.raises(HandlerError, match="ran longer than its timeout"):
            await provider.emit("slow")


async def test_a_handler_that_cancels_itself_has_failed(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=Retry(attempts=1))

    @provider.on("own")
    async def own(_: Any) -> None:
        raise asyncio.CancelledError("by myself")

    @provider.on("exit")
    async def leave(_: Any) -> None:
        raise SystemExit(3)

    async with provider.worker():
        with pytest.raises(HandlerError, match="CancelledError"):
            await provider.emit("own")
        with pytest.raises(HandlerError, match="SystemExit"):
            await provider.emit("exit")


@pytest.mark.real
async def test_a_sync_handler_past_its_timeout_keeps_its_thread_until_it_really_ends(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider(retry=Retry(attempts=1), max_concurrency=1)
    go, ended = threading.Event(), threading.Event()

    @provider.on("slow", timeout="60ms")
    def slow(n: int) -> int:
        if n == 1:
            go.wait(240)
            ended.set()
        return n

    try:
        async with provider.worker():
            with pytest.raises(HandlerError, match="TimeoutError"):
                await provider.emit("slow", 1)
            with pytest.raises(HandlerError, match="TimeoutError"):  # the one thread is taken
                await provider.emit("slow", 2)
            go.set()
            await until(ended.is_set, "the thread has ended its call")
            assert await provider.emit("slow", 3) == 3
    finally:
        go.set()


async def test_an_emission_not_started_within_its_ttl_expires(make_provider: MakeProvider) -> None:
    provider = make_provider()
    fresh = Event("fresh", payload=int, result=int, ttl="500ms")
    ran: list[int] = []

    @provider.on(fresh)
    async def run(n: int) -> int:
        ran.append(n)
        return n

    async with provider:
        late = provider.emit(fresh, 1)
        delayed = provider.emit(fresh, 2, delay="2s")  # its ttl counts from when it is due
        await late.enqueued()
        await asyncio.sleep(0.6)  # longer than its ttl
        async with provider.worker():
            with pytest.raises(EmissionExpired, match=r"ttl of 0\.5 s") as caught:
                await late
            assert await delayed == 2
    assert (caught.value.event, caught.value.job_id) == ("fresh", late.job_id)
    assert ran == [2]


async def test_a_retry_does_not_expire_what_was_started_in_time(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=Retry(attempts=2, delay="80ms"))
    fresh = Event("fresh", ttl="50ms")

    @provider.on(fresh)
    async def run(_: Any, ctx: EventContext) -> int:
        if ctx.attempt == 1:
            raise ValueError
        return ctx.attempt

    async with provider.worker():
        assert await provider.emit(fresh, None) == 2


async def test_an_expiry_that_a_handler_met_elsewhere_is_an_error_of_its_own(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider(retry=AT_ONCE)
    tries: list[int] = []

    @provider.on("outer")
    async def outer(_: Any, ctx: EventContext) -> None:
        tries.append(ctx.attempt)
        raise EmissionExpired("inner was not started", event="inner", job_id="0-other-1")

    async with provider.worker():
        with pytest.raises(HandlerError, match="EmissionExpired: inner was not started"):
            await provider.emit("outer")
    assert tries == [1, 2, 3]


@pytest.mark.real
async def test_a_failure_that_is_asked_for_by_its_id_names_what_ran(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=Retry(attempts=1))
    flows = WorkflowProvider(provider)
    shop = Workflow("shop", retry=Retry(attempts=1), spread=True)

    @provider.on("ask")
    @provider.on("ask", group="mail")
    async def refuse(_: Any) -> None:
        raise ValueError("no")

    @shop.step
    async def charge(ctx: Any) -> None:
        raise ValueError("no")

    provider.on("crash", pool="process")(process_handlers.fail)
    flows.register(shop)
    async with provider.worker():
        emission = provider.emit("ask")
        crashed = provider.emit("crash", "cause", reply=False)
        flow = await flows.execute(shop, None)
        ran = {
            emission.job_id: "ask",
            f"{emission.job_id}@mail": "ask",
            crashed.job_id: "crash",
            flow.id: "workflow shop",
            f"{flow.id}/1/charge/0": "shop.charge",
        }
        for job_id, name in ran.items():
            with pytest.raises(HandlerError, match=f"in the handler of {name}, after") as caught:
                await provider.result(job_id, reply_timeout=240)
            assert caught.value.event == name
        with pytest.raises(HandlerError, match="in the handler of ask"):
            await emission
