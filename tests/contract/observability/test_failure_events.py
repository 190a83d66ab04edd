"""Every failure is in the log of a worker: one event for each, in every group, awaited or not."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
from drivers.records import change_record
from importable import process_handlers

from eventbus import Event, EventContext, EventProvider, HandlerError, Retry
from eventbus.telemetry import propagation

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
Logs = list[MutableMapping[str, Any]]

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
ONCE = Retry(attempts=1)
FAILURES = ("job failed", "attempt failed, trying again")


def _failures(logs: Logs) -> Logs:
    return [each for each in logs if each["event"] in FAILURES]


def _files(text: str) -> set[str]:
    return {os.path.basename(each) for each in re.findall(r'File "([^"]+)"', text)}  # noqa: PTH119


@asynccontextmanager
async def _working(provider: EventProvider) -> AsyncGenerator[Callable[[], Awaitable[None]]]:
    """A worker; gives a wait until all that was emitted has ended."""
    async with provider, provider.worker() as runner:

        async def drain() -> None:
            await runner.wait_drained(provider.flush)

        yield drain


def _reserve(item: int) -> None:
    raise LookupError(f"nothing in stock of {item}")


async def test_each_attempt_is_one_event_though_nobody_listens(
    make_provider: MakeProvider, logs: Logs, until: Until
) -> None:
    provider = make_provider(retry=Retry(attempts=2, delay="10ms", jitter=0))

    @provider.on("sold")
    async def sell(item: int) -> None:
        try:
            _reserve(item)
        except LookupError as error:
            raise RuntimeError("cannot\nsell") from error

    async with _working(provider) as drain:
        emission = provider.emit("sold", 7, reply=False)
        await until(lambda: len(_failures(logs)) == 2, "both attempts are told")
        await drain()
    first, last = _failures(logs)
    facts = {"event_name": "sold", "job_id": emission.job_id, "correlation_id": emission.job_id}
    told = {**facts, "max_attempts": 2, "error": "RuntimeError: cannot sell"}
    text = first["exception"]
    assert first == {
        **told,
        "event": "attempt failed, trying again",
        "log_level": "warning",
        "attempt": 1,
        "retry_in": 0.01,
        "exception": text,
    }
    assert last == {
        **told,
        "event": "job failed",
        "log_level": "error",
        "attempt": 2,
        "exception": last["exception"],
    }
    assert _files(text) == {"test_failure_events.py"}
    assert re.findall(r"line \d+, in (\w+)", text) == ["sell", "_reserve", "sell"]
    assert "LookupError: nothing in stock of 7" in text
    assert text.endswith("RuntimeError: cannot\nsell")


async def test_handlers_of_every_group_and_kind_tell_their_own_frames(
    make_provider: MakeProvider, logs: Logs
) -> None:
    provider = make_provider(retry=ONCE)

    @provider.on("sold", group="billing")
    def bill(item: int) -> None:
        _reserve(item)

    provider.on("fail", pool="process")(process_handlers.fail)
    async with _working(provider) as drain:
        sold = provider.emit("sold", 7, reply=False)
        failed = provider.emit("fail", "as it comes", reply=False)
        await drain()
    by_name = {each["event_name"]: each for each in _failures(logs)}
    billed, crunched = by_name["sold"], by_name["fail"]
    assert (billed["event"], billed["log_level"], billed["group"]) == ("job failed", "error", "billing")
    assert (billed["job_id"], billed["correlation_id"]) == (f"{sold.job_id}@billing", sold.job_id)
    assert _files(billed["exception"]) == {"test_failure_events.py"}
    assert (crunched["job_id"], crunched["error"]) == (failed.job_id, "ValueError: outside")
    assert _files(crunched["exception"]) == {"process_handlers.py"}
    assert "group" not in crunched


class SoldOut(Exception):
    pass


async def test_a_declared_error_is_an_answer_but_not_of_a_group_that_answers_nobody(
    make_provider: MakeProvider, logs: Logs
) -> None:
    provider = make_provider()
    sold = Event("sold", payload=int, errors=[SoldOut], retry=ONCE)

    @provider.on(sold)
    async def sell(item: int) -> None:
        raise SoldOut(item)

    @provider.on(sold, group="billing")
    async def bill(item: int) -> None:
        raise SoldOut(item)

    async with _working(provider) as drain:
        with pytest.raises(SoldOut):
            await provider.emit(sold, 7)
        await drain()
    found = {each.get("group", ""): each for each in _failures(logs)}
    assert {group: each["log_level"] for group, each in found.items()} == {"": "info", "billing": "error"}
    assert "exception" not in found[""]
    assert found[""]["error"].endswith("SoldOut: 7")
    assert "in bill" in found["billing"]["exception"]


async def test_a_timeout_tells_where_the_handler_was(make_provider: MakeProvider, logs: Logs) -> None:
    provider = make_provider(retry=ONCE)

    @provider.on("slow", timeout="20ms")
    async def wait_for_the_bank(_: Any) -> None:
        await asyncio.sleep(60)

    async with _working(provider) as drain:
        provider.emit("slow", reply=False)
        await drain()
    (entry,) = _failures(logs)
    assert entry["error"].startswith("TimeoutError: the handler timed out")
    assert re.findall(r"line \d+, in (\w+)", entry["exception"]) == ["wait_for_the_bank"]


async def test_what_expires_and_what_is_cancelled_are_told_once_each(
    make_provider: MakeProvider, logs: Logs, until: Until
) -> None:
    provider = make_provider(retry=ONCE)
    late = Event("late", payload=int, ttl="1ms")
    began = asyncio.Event()
    provider.on(late)(lambda _: None)

    @provider.on("long")
    async def run_long(_: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    async with provider:
        expired = provider.emit(late, 1, reply=False)
        await expired
        over = time.monotonic() + 0.01
        await until(lambda: time.monotonic() > over, "the ttl is over")
        async with _working(provider) as drain:
            long = provider.emit("long")
            await began.wait()
            await long.cancel("not wanted")
            await drain()
    (failed,) = _failures(logs)
    assert (failed["event"], failed["job_id"]) == ("job failed", expired.job_id)
    assert "EmissionExpired" in failed["error"]
    (cancelled,) = [each for each in logs if each["event"] == "job cancelled while it ran"]
    assert (cancelled["event_name"], cancelled["job_id"]) == ("long", long.job_id)


async def test_a_message_that_cannot_be_read_is_told_without_its_text(
    make_provider: MakeProvider, logs: Logs, admin: Callable[..., Any], prefix: str
) -> None:
    provider = make_provider(retry=ONCE)
    provider.on("sold")(lambda _: None)
    async with provider:
        emission = provider.emit("sold", "secret", reply=False)
        await emission
        admin(*change_record(f"{prefix}:2:{{0}}:job:{emission.job_id}", body='{"p":"secret"'))
        async with _working(provider) as drain:
            await drain()
    (entry,) = _failures(logs)
    assert (entry["event_name"], entry["job_id"]) == ("sold", emission.job_id)
    assert "StoreCorrupt" in entry["error"]
    assert not [each for each in logs if "secret" in str(each)]


async def test_the_event_names_the_trace_that_came_with_the_job(
    make_provider: MakeProvider, logs: Logs
) -> None:
    provider = make_provider(retry=ONCE)

    @provider.on("sold")
    async def sell(_: Any) -> None:
        raise KeyError("card")

    async with _working(provider) as drain:
        token = propagation._current.set(  # pyright: ignore[reportPrivateUsage]
            propagation.Ambient(traceparent=f"00-{TRACE}-00f067aa0ba902b7-01")
        )
        provider.emit("sold", reply=False)
        propagation._current.reset(token)  # pyright: ignore[reportPrivateUsage]
        await drain()
    (entry,) = _failures(logs)
    assert entry["trace_id"] == TRACE
    assert "span_id" not in entry  # no SDK, no span


async def test_texts_are_cut(make_provider: MakeProvider, logs: Logs) -> None:
    provider = make_provider(retry=ONCE)

    @provider.on("long")
    async def fail(_: Any) -> None:
        raise ValueError("x" * 50_000)

    async with _working(provider) as drain:
        provider.emit("long", reply=False)
        await drain()
    (entry,) = _failures(logs)
    assert len(entry["error"]) == 500
    assert 8 * 1024 < len(entry["exception"]) < 8 * 1024 + 100


async def test_a_job_is_settled_though_its_failure_cannot_be_logged(make_provider: MakeProvider) -> None:
    provider = make_provider(retry=ONCE)
    told: list[dict[str, Any]] = []

    @provider.on("sold")
    async def sell(_: Any, ctx: EventContext) -> None:
        raise KeyError(ctx.job_id)

    def refuse(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if event["event"] == "job failed":
            raise OSError("the disk of the log is full")
        raise structlog.DropEvent

    before, was_configured = structlog.get_config(), structlog.is_configured()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    structlog.configure(processors=[refuse])
    try:
        async with provider.worker():
            with pytest.raises(HandlerError):
                await provider.emit("sold")
    finally:
        structlog.configure(**before)
        if not was_configured:
            structlog.reset_defaults()
    assert [type(each["exception"]) for each in told] == [OSError]
    assert "could not be logged" in told[0]["message"]
