"""Bad input is refused where it is given: the error has the value and what is expected, and nothing
is sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from eventbus import ConfigError, DefinitionError, EmitError, Event, EventProvider, PayloadError, QueueFull
from eventbus.emit import send_buffer

MakeProvider = Callable[..., EventProvider]
Admin = Callable[..., Any]


class When(msgspec.Struct):
    at: datetime


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.fixture
async def provider(make_provider: MakeProvider, admin: Admin, prefix: str) -> AsyncIterator[EventProvider]:
    """A started provider; in the end no job of it may have been sent."""
    provider = make_provider(max_payload=10_000)
    async with provider:
        yield provider
    assert admin("KEYS", f"{prefix}:*:job:*") == []


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (float("nan"), "expected a finite number"),
        ({"a": [float("inf")]}, r"expected a finite number, .* at \$\.a\[0\]"),
        (_deep(101), "at most 100 levels"),
        ("x" * 10_001, "at most 10000 bytes"),
        (datetime(2026, 1, 1, tzinfo=UTC), "would arrive as str"),
        ((1, 2), "would arrive as list"),
        ({1: 2}, "payload"),
        (object(), "payload"),
        ({1, 2}, "payload"),
        (b"bytes", "payload"),
        ("\ud800", "surrogate"),
        (lambda: None, "payload"),
    ],
)
async def test_an_untyped_payload_must_be_a_json_value(
    provider: EventProvider, payload: Any, message: str
) -> None:
    with pytest.raises(PayloadError, match=message) as caught:
        provider.emit("ask", payload)
    assert "ask" in str(caught.value)


@pytest.mark.parametrize(
    ("type_", "payload", "message"),
    [
        (int, "5", "expected int, got: str"),
        (When, When(datetime(2026, 1, 1)), "expected a datetime with a timezone"),
        (When, {"at": "2026-01-01T00:00:00Z"}, "dict"),
        (None, 0, "payload"),
        (list[int], [1, None], r"at `?\$\[1\]"),
    ],
)
async def test_a_typed_payload_must_be_of_its_type(
    provider: EventProvider, type_: Any, payload: Any, message: str
) -> None:
    with pytest.raises(PayloadError, match=message):
        provider.emit(Event("typed", payload=type_), payload)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prio": 1}, r"unknown emit option 'prio'; there are: reply_timeout, delay"),
        ({"priority": 4001}, "expected priority to be a whole number from -4000 to 4000, got: 4001"),
        ({"priority": 1.5}, "expected priority"),
        ({"priority": True}, "expected priority"),
        ({"priority": None}, "expected priority"),
        ({"at": datetime(2026, 1, 1)}, "expected a datetime with a timezone"),
        ({"at": 5}, "expected a datetime with a timezone"),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC), "delay": 1}, "either delay or at, got both"),
        ({"delay": -1}, "expected delay to be from 0 s"),
        ({"delay": "soon"}, "expected delay to be seconds"),
        ({"delay": float("nan")}, "expected delay"),
        ({"reply_timeout": "soon"}, "expected reply_timeout"),
        ({"reply_timeout": -1}, "expected reply_timeout"),
        ({"idempotency_key": ""}, "expected an idempotency key"),
        ({"idempotency_key": "x" * 513}, "expected an idempotency key"),
        ({"idempotency_key": 5}, "expected an idempotency key"),
        ({"idempotency_key": "a\0b"}, "expected an idempotency key"),
        ({"lifo": "yes"}, "expected lifo to be bool, got: 'yes'"),
        ({"reply": 1}, "expected reply to be bool or None, got: 1"),
        ({"reuse_failure": None}, "expected reuse_failure to be bool"),
        ({"retry": 5}, "expected retry to be Retry or None, got: 5"),
        ({"meta": [1]}, r"expected meta to be dict or None, got: \[1\]"),
    ],
)
async def test_an_option_that_cannot_be_used_is_refused(
    provider: EventProvider, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DefinitionError, match=message):
        provider.emit("ask", 1, **options)


@pytest.mark.parametrize("meta", [{1: 2}, {"a": float("nan")}, {"a": object()}, {"a": "x" * 10_001}])
async def test_meta_must_be_json_values_under_text(provider: EventProvider, meta: Any) -> None:
    with pytest.raises(PayloadError, match="meta"):
        provider.emit("ask", 1, meta=meta)
    with provider.context(fine=1), pytest.raises(PayloadError, match="meta"):
        provider.emit("ask", 1, meta=meta)


async def test_a_backoff_function_cannot_travel_with_an_emission(provider: EventProvider) -> None:
    from eventbus import Retry

    with pytest.raises(DefinitionError, match="set it on the handler"):
        provider.emit("ask", 1, retry=Retry(backoff=lambda attempt, error: 1))


@pytest.mark.parametrize("name", ["", "a b", "a:{b}", "*", "ü", "x" * 129, "-a", "a@b", 5, None, int])
async def test_a_name_that_cannot_be_one_is_refused(provider: EventProvider, name: Any) -> None:
    with pytest.raises(DefinitionError, match="expected an"):
        provider.emit(name, 1)


async def test_one_key_for_many_is_refused(provider: EventProvider) -> None:
    with pytest.raises(DefinitionError, match="emit_many takes no idempotency_key"):
        provider.emit_many("ask", [1, 2], idempotency_key="k")


async def test_a_full_queue_refuses_with_its_name_and_nothing_is_enqueued(
    make_provider: MakeProvider, admin: Admin, prefix: str
) -> None:
    provider = make_provider(max_waiting=3)
    async with provider:
        emissions = [provider.emit("ask", n) for n in range(5)]
        for each in emissions[:3]:
            await each.enqueued()
        for each in emissions[3:]:
            with pytest.raises(QueueFull, match=r"'event\.ask' holds its max_waiting of 3 jobs") as caught:
                await each
            assert (caught.value.queue, caught.value.enqueued) == ("event.ask", False)
            with pytest.raises(QueueFull):
                await each.enqueued()
        assert admin("LLEN", f"{prefix}:2:{{0}}:ready:event.ask") == 3
        provider.on("ask")(lambda n: n)
        async with provider.worker():
            assert [await each for each in emissions[:3]] == [0, 1, 2]
            assert await provider.emit("ask", 9) == 9


async def test_too_much_unsent_is_refused_but_emit_many_waits(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_buffer, "MAX_UNSENT", 5)
    provider = make_provider()
    provider.on("ask")(lambda n: n)
    async with provider.worker():
        emissions = [provider.emit("ask", n) for n in range(5)]
        with pytest.raises(EmitError, match=r"5 emissions .* wait to be sent; await some of them"):
            provider.emit("ask", 5)
        emissions += provider.emit_many("ask", range(5, 500))
        assert [await each for each in emissions] == list(range(500))
        assert await provider.emit("ask", 1) == 1


async def test_too_many_bytes_unsent_are_refused(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_buffer, "MAX_UNSENT_BYTES", 2000)
    provider = make_provider()
    async with provider:
        first = provider.emit("ask", "x" * 2000, reply=False)
        with pytest.raises(EmitError, match="bytes"):
            provider.emit("ask", 1)
        await first
        await provider.emit("ask", 1, reply=False)


@pytest.mark.parametrize("when", [timedelta(milliseconds=80), timedelta(days=-400)])
async def test_a_point_in_time_may_be_given_also_one_that_is_over(
    make_provider: MakeProvider, when: timedelta
) -> None:
    provider = make_provider()
    provider.on("ask")(lambda n: n)
    async with provider.worker():
        due = datetime.now(UTC) + when
        assert await provider.emit("ask", 1, at=due, reply_timeout=240) == 1
        assert datetime.now(UTC) >= due


async def test_a_url_or_a_setting_that_cannot_be_used_is_refused_before_anything_starts() -> None:
    for url in ("redis+cluster://a:1", "http://a", "redis://a:port"):
        with pytest.raises(ConfigError):
            EventProvider(url)
    with pytest.raises(ConfigError, match="did you mean concurrency"):
        EventProvider("redis://a", concurency=5)  # pyright: ignore[reportCallIssue]
