"""Code of the user's that exits: `sys.exit()` or any BaseException fails its job, and ends no worker."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any

import msgspec
import pydantic
import pytest
from opentelemetry.baggage import set_baggage
from opentelemetry.context import attach, detach

from eventbus import (
    Batch,
    DefinitionError,
    Event,
    EventProvider,
    HandlerError,
    JobFailure,
    Limit,
    PayloadError,
    Retry,
)
from eventbus.lowlevel import contained, contained_await

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]

ONCE = Retry(attempts=1)


class Odd(BaseException):
    """No Exception, as those of test frameworks."""


EXITS = [SystemExit(0), SystemExit("gone"), KeyboardInterrupt(), Odd("odd"), GeneratorExit()]


class Leaving(msgspec.Struct):
    """Leaves when it is read by a worker, and not when it is checked by the emitter."""

    number: int

    def __post_init__(self) -> None:
        if leaving and self.number < 0:
            raise leaving[0]


leaving: list[BaseException] = []

pytestmark = pytest.mark.usefixtures("logs")  # the tracebacks of all are long to print


def told(error: BaseException) -> str:
    name = type(error).__qualname__ if type(error).__module__ == "builtins" else f"{__name__}.Odd"
    return f"{name}: {error}" if str(error) else name


@pytest.mark.parametrize("where", ["async", "thread", "batch", "batch thread", "middleware"])
@pytest.mark.parametrize("error", EXITS, ids=repr)
async def test_a_handler_that_exits_fails_its_job_alone(
    make_provider: MakeProvider, error: BaseException, where: str
) -> None:
    provider = make_provider(retry=ONCE)

    async def leave(payload: Any) -> Any:
        raise error

    def leave_thread(payload: Any) -> Any:
        raise error

    async def leave_between(payload: Any, ctx: Any, call: Any) -> Any:
        if ctx.event == "leave":
            raise error
        return await call(payload)

    function = leave_thread if "thread" in where else leave
    provider.on("leave", batch=Batch(size=2, wait=0) if "batch" in where else None)(function)
    if where == "middleware":
        provider.use(leave_between)
    provider.on("stay")(_same)
    async with provider, provider.worker():
        for _ in range(2):
            with pytest.raises(HandlerError) as caught:
                await provider.emit("leave", 1)
            assert str(caught.value).startswith(f"{told(error)} (in the handler of leave")
        assert await provider.emit("stay", 2) == 2


@pytest.mark.parametrize("error", EXITS, ids=repr)
async def test_what_is_called_beside_handlers_may_exit(
    make_provider: MakeProvider, until: Until, error: BaseException
) -> None:
    provider = make_provider()
    heard: list[str] = []

    def strategy(attempt: int, raised: BaseException) -> float:
        raise error

    @provider.on("fails", retry=Retry(3, backoff=strategy))
    async def fails(payload: int) -> None:
        raise ValueError(payload)

    @provider.on_failure
    async def hook(failure: JobFailure) -> None:
        heard.append("hook")
        raise error

    @provider.on_failure
    def hook_in_thread(failure: JobFailure) -> None:
        heard.append("thread hook")
        raise error

    @provider.watching("failed")
    async def listener(change: Any) -> None:
        heard.append("listener")
        raise error

    @provider.watching("failed")
    def listener_in_thread(change: Any) -> None:
        heard.append("thread listener")
        raise error

    provider.on("stay")(_same)
    async with provider, provider.worker():
        for times in (1, 2):
            with pytest.raises(HandlerError) as caught:
                await provider.emit("fails", 1)
            assert told(error) in str(caught.value)
            await until(lambda times=times: len(heard) == 4 * times, "all have heard it")
        assert await provider.emit("stay", 2) == 2


@pytest.mark.parametrize("error", EXITS, ids=repr)
async def test_a_payload_that_exits_when_it_is_made_fails_its_job(
    make_provider: MakeProvider, error: BaseException
) -> None:
    provider = make_provider(retry=ONCE)
    provider.on(Event("leave", payload=Leaving))(_same)
    provider.on("stay")(_same)
    leaving.clear()
    async with provider:
        emission = provider.emit("leave", Leaving(-1))
        await emission.enqueued()
        leaving.append(error)
        async with provider.worker():
            with pytest.raises(HandlerError) as caught:
                await emission
            assert told(error).removeprefix(f"{__name__}.") in str(caught.value)
            assert await provider.emit("stay", 2) == 2
    leaving.clear()


@pytest.mark.parametrize("error", EXITS, ids=repr)
async def test_what_an_emission_calls_and_exits_refuses_the_emission(
    make_provider: MakeProvider, error: BaseException
) -> None:
    """Otherwise a SystemExit ends the event loop of the emitter."""

    def exits(*_: Any) -> Any:
        raise error

    class Equal(msgspec.Struct, eq=False):
        number: int = 1

        def __eq__(self, other: object) -> bool:
            raise error

        __hash__ = None  # type: ignore[assignment]

    class Model(pydantic.BaseModel):
        number: int = 1

        @pydantic.field_validator("number")
        @classmethod
        def check(cls, number: int) -> int:
            if leaving:
                raise leaving[0]
            return number

        @pydantic.field_serializer("number")
        def write(self, number: int) -> int:
            if leaving and number == 2:
                raise leaving[0]
            return number

    class Text(str):
        __slots__ = ()

        def __repr__(self) -> str:
            raise error

    leaving.clear()
    made, written, left = Model(), Model(number=2), Leaving(-1)
    provider = make_provider()
    async with provider:
        leaving.append(error)
        asked: list[tuple[Event[Any, Any], Any]] = [
            (Event("keyed", key=exits), 1),
            (Event("limited", limit=Limit(at_once=1, by=exits)), 1),
            (Event("struct", payload=Leaving), left),
            (Event("equal", payload=Equal), Equal()),
            (Event("model", payload=Model), made),
            (Event("written", payload=Model), written),
        ]
        for event, payload in asked:
            with pytest.raises(PayloadError, match=type(error).__name__):
                provider.emit(event, payload)
            with pytest.raises(PayloadError, match=type(error).__name__):
                provider.emit_many(event, [payload])
        with pytest.raises(DefinitionError):
            provider.emit("stay", 1, idempotency_key=Text("x" * 600))
        leaving.clear()
        with baggage_of(error):
            await provider.emit("stay", 1, reply=False)


@contextlib.contextmanager
def baggage_of(error: BaseException) -> Generator[None]:
    """Let the baggage around have a value whose text cannot be made."""

    class Exits:
        def __str__(self) -> str:
            raise error

    token = attach(set_baggage("k", Exits()))
    try:
        yield
    finally:
        detach(token)


@pytest.mark.parametrize("error", EXITS, ids=repr)
async def test_a_result_that_exits_when_it_is_read_fails_its_waiter_alone(
    make_provider: MakeProvider, error: BaseException
) -> None:
    provider = make_provider()
    leaving.clear()

    @provider.on(Event("leave", result=Leaving))
    async def leave(payload: Any) -> Leaving:
        return Leaving(-1)

    async with provider, provider.worker():
        emission = provider.emit("leave", 1)
        await emission.enqueued()
        while not emission.done():  # noqa: ASYNC110  (nobody asks for the result yet)
            await asyncio.sleep(0.01)
        leaving.append(error)
        with pytest.raises(PayloadError, match=type(error).__name__):
            await emission
        leaving.clear()
        assert await provider.emit("leave", 1) == Leaving(-1)


async def test_a_wait_that_is_closed_is_no_error_of_the_users() -> None:
    """A loop that ends closes its tasks: the code inside gets the GeneratorExit, and may clean up."""
    seen: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            seen.append("cleaned up")

    wait = contained_await(waits())
    wait.send(None)
    wait.close()
    assert seen == ["cleaned up"]
    wait = contained_await(_stays())
    wait.send(None)
    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        wait.close()


async def _stays() -> None:
    for _ in range(2):
        with contextlib.suppress(GeneratorExit):
            await asyncio.sleep(0)


@pytest.mark.parametrize("when", ["made", "entered", "left"])
@pytest.mark.parametrize("error", EXITS, ids=repr)
async def test_a_lifespan_that_exits_fails_its_worker_and_not_the_event_loop(
    make_provider: MakeProvider, logs: list[dict[str, Any]], error: BaseException, when: str
) -> None:
    provider = make_provider()

    async def pool() -> AsyncIterator[int]:
        if when == "entered":
            raise error
        yield 1
        if when == "left":
            raise error

    def make() -> Any:
        raise error

    provider.lifespan(make if when == "made" else pool)
    provider.on("stay")(_same)
    async with provider:
        if when == "left":
            async with provider.worker():
                assert await provider.emit("stay", 2) == 2
            (ended,) = [each for each in logs if each["event"] == "worker ended by an error"]
            assert ended["exc_info"].__cause__ is error
        else:
            with pytest.raises(Exception, match=f"^{type(error).__name__}") as caught:
                async with provider.worker():
                    raise AssertionError("it started")
            assert caught.value.__cause__ is error


async def test_a_cancellation_and_a_plain_error_pass_as_they_are() -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await contained_await(cancelled())
    with pytest.raises(ZeroDivisionError):
        contained(lambda: 1 // 0)
    with pytest.raises(PayloadError):
        contained(_refuse, "no")
    with pytest.raises(Exception, match=r"^SystemExit: 4$") as caught:
        contained(sys.exit, 4)
    assert isinstance(caught.value.__cause__, SystemExit)


async def _same(payload: Any) -> Any:
    return payload


def _refuse(text: str) -> None:
    raise PayloadError(text)
