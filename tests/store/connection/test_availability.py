"""A server that is away is reported once, and once more when it is back, whichever part notices it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import MutableMapping
from typing import Any, cast

import pytest
from drivers.fakes import CLOSE, FakeServer

from eventbus.errors import StoreRefused, StoreUnavailable
from eventbus.store.connection import retrying as caller_module
from eventbus.store.connection.availability import Availability
from eventbus.store.connection.channel import Channel
from eventbus.store.connection.connector import Connector
from eventbus.store.connection.replication import NoReplica
from eventbus.store.connection.retrying import RetryingCaller
from eventbus.store.keys import Keys

Logs = list[MutableMapping[str, Any]]

GONE, BACK = "server not available, trying again", "server available again"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(caller_module, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(caller_module, "_LAST_PAUSE", 0.002)


def _told(logs: Logs) -> list[str]:
    return [each["event"] for each in logs]


class _Channel:
    """A fake channel: each call gets the next prepared answer; the last answer is for all further calls."""

    address = "h:1"
    is_closed = False

    def __init__(self, *answers: Any) -> None:
        self._answers = deque(answers)

    async def call(self, *command: Any, deadline: float | None = None) -> Any:
        answer = self._answers.popleft() if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def drop(self, why: str) -> None:
        """There is no connection to give up."""


def _caller(*answers: Any, availability: Availability | None = None) -> RetryingCaller:
    return RetryingCaller(cast("Channel", _Channel(*answers)), keys=Keys("r", "0"), availability=availability)


def _away() -> StoreUnavailable:
    return StoreUnavailable("no server at h:1", address="h:1", sent=True)


async def test_a_call_that_its_first_repeat_answers_is_no_news(logs: Logs) -> None:
    assert await _caller(_away(), "OK").command("PING") == "OK"
    assert logs == []


async def test_a_call_whose_first_repeat_fails_too_is_told_with_what_it_took(logs: Logs) -> None:
    caller = _caller(*[_away()] * 4, "OK")
    await caller.command("PING")
    await caller.command("PING")
    assert _told(logs) == [GONE, BACK]
    assert (logs[0]["address"], logs[0]["error"]) == ("h:1", "no server at h:1")
    assert (logs[1]["repeats"], logs[1]["away"]) == (3, 0.0)


async def test_a_first_try_that_took_long_is_told_at_once(
    logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller_module, "_BLINK", 0.0)
    await _caller(_away(), "OK").command("PING")
    assert _told(logs) == [GONE, BACK]


async def test_many_callers_tell_one_outage_once(logs: Logs) -> None:
    shared, channel = Availability("h:1"), cast("Channel", _Channel(*[_away()] * 30, "OK"))
    callers = [RetryingCaller(channel, keys=Keys("r", "0"), availability=shared) for _ in range(5)]
    await asyncio.gather(*(each.command("PING") for each in callers))
    assert _told(logs) == [GONE, BACK]
    assert logs[1]["repeats"] >= 25


async def test_an_outage_that_ends_with_a_refusal_has_ended(logs: Logs) -> None:
    caller = _caller(*[_away()] * 3, StoreRefused("no", code="NOPERM"))
    with pytest.raises(StoreUnavailable):
        await caller.command("PING")
    assert _told(logs) == [GONE, BACK]


@pytest.mark.parametrize("code", ["LOADING", "READONLY"])
async def test_a_server_that_can_carry_out_nothing_is_as_one_that_is_away(code: str, logs: Logs) -> None:
    await _caller(*[StoreRefused("not now", code=code)] * 3, "OK").command("PING")
    assert _told(logs) == [GONE, BACK]


async def test_a_deadline_that_passes_says_nothing_of_the_server(logs: Logs) -> None:
    async with FakeServer(lambda _: None) as server:
        channel = Channel(Connector(server.url), name="test", answer_timeout=5)
        caller = RetryingCaller(channel, keys=Keys("r", "0"))
        with pytest.raises(StoreUnavailable):
            await caller.command("PING", deadline=time.monotonic() + 0.05)
        await channel.aclose()
    assert logs == []


async def test_a_connection_that_is_closed_by_this_side_says_nothing_of_the_server(logs: Logs) -> None:
    async with FakeServer(lambda _: CLOSE) as server:
        channel = Channel(Connector(server.url), name="test", answer_timeout=5)
        caller = RetryingCaller(channel, keys=Keys("r", "0"))
        await channel.aclose()
        with pytest.raises(StoreUnavailable):
            await caller.command("PING")
    assert logs == []


async def test_a_replica_that_does_not_acknowledge_is_news_of_its_own(logs: Logs) -> None:
    shared = Availability("h:1")
    missing = NoReplica("no replica", address="h:1", sent=True)
    adder, other = _caller(*[missing] * 5, "OK", availability=shared), _caller("OK", availability=shared)
    adding = asyncio.create_task(adder.command("SET", "a", "b"))
    while not adding.done():
        await other.command("PING")
        await asyncio.sleep(0)
    assert await adding == "OK"
    assert _told(logs) == ["no replica acknowledges, emissions wait", "a replica acknowledges again"]


async def test_a_server_that_was_away_has_forgotten_its_scripts_which_is_no_news(logs: Logs) -> None:
    forgot = StoreRefused("NOSCRIPT", code="NOSCRIPT")
    caller = _caller("1", *[_away()] * 2, forgot, "1", "1", forgot, "1")
    for _ in range(4):
        await caller.script("note", [0])
    assert _told(logs) == [GONE, BACK, "the server forgot its scripts, sending them again"]


async def test_what_starts_has_words_of_its_own_and_the_coming_is_told(logs: Logs) -> None:
    caller = _caller(*[_away()] * 3, "OK")
    shared: Availability = caller._availability  # pyright: ignore[reportPrivateUsage]
    with shared.quiet():
        shared.note_failure(_away())
        assert shared.is_lost
    assert logs == []
    await caller.command("PING")
    assert _told(logs) == [BACK]
