"""Fewer jobs from many emissions: `throttle`, `debounce` with `longest`, and `keep_last`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from eventbus import DefinitionError, Event, EventProvider, JobCancelled

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


async def test_a_throttled_key_runs_once_in_its_window_and_answers_every_emission(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    runs: list[int] = []

    @provider.on("refresh")
    async def refresh(n: int) -> int:
        runs.append(n)
        return n

    async with provider.worker():
        first = provider.emit("refresh", 1, idempotency_key="k", throttle="60s")
        assert await first == 1
        second = provider.emit("refresh", 2, idempotency_key="k", throttle="60s")
        assert await second == 1
        other = provider.emit("refresh", 3, idempotency_key="l", throttle="60s")
        assert await other == 3
    assert (first.joined, second.joined, other.joined) == (False, True, False)
    assert second.job_id == first.job_id
    assert runs == [1, 3]


async def test_the_window_of_a_throttle_ends_by_time(make_provider: MakeProvider) -> None:
    provider = make_provider()
    runs: list[int] = []
    provider.on("refresh")(runs.append)
    async with provider.worker():
        began = asyncio.get_running_loop().time()
        while len(runs) < 2:
            await provider.emit("refresh", 1, idempotency_key="k", throttle="300ms")
            await asyncio.sleep(0.02)
        assert asyncio.get_running_loop().time() - began > 0.29


async def test_a_debounced_job_runs_once_with_the_last_payload_and_answers_every_emission(
    make_provider: MakeProvider, logs: list[MutableMapping[str, Any]]
) -> None:
    provider = make_provider()
    runs: list[int] = []

    @provider.on("index")
    async def index(n: int) -> int:
        runs.append(n)
        return n

    async with provider.worker():
        emissions = [provider.emit("index", n, idempotency_key="k", debounce="200ms") for n in range(5)]
        assert await asyncio.gather(*emissions) == [4] * 5
    assert runs == [4]
    assert [each.joined for each in emissions] == [False, True, True, True, True]
    assert len({each.job_id for each in emissions}) == 1
    assert not [each for each in logs if each["log_level"] == "warning"], "other payloads are no mistake here"


async def test_a_debounced_job_runs_at_the_latest_after_longest_while_emissions_go_on(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    runs: list[int] = []
    provider.on("index")(runs.append)
    options: dict[str, Any] = {"idempotency_key": "k", "debounce": "300ms", "longest": "600ms"}
    async with provider.worker():
        n = 0
        while not runs:  # each comes long before the last one's time is over
            n += 1
            await provider.emit("index", n, reply=False, **options)
            await asyncio.sleep(0.1)
        assert n > 2


async def test_while_a_job_runs_only_the_last_emission_is_kept_as_the_next_one(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider()
    runs: list[int] = []
    gate = asyncio.Event()

    @provider.on("rebuild")
    async def rebuild(n: int) -> int:
        runs.append(n)
        await gate.wait()
        return n

    async with provider.worker():
        first = provider.emit("rebuild", 0, idempotency_key="k", keep_last=True)
        await until(lambda: runs == [0], "the first one runs at once")
        rest = [provider.emit("rebuild", n, idempotency_key="k", keep_last=True) for n in range(1, 6)]
        for each in rest:
            await each.enqueued()
        assert [each.joined for each in rest] == [False, True, True, True, True]
        assert runs == [0]
        gate.set()
        assert await first == 0
        assert await asyncio.gather(*rest) == [5] * 5
    assert runs == [0, 5]


async def test_a_cancel_of_the_next_job_ends_all_its_emissions_and_not_the_running_one(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider()
    runs: list[int] = []
    gate = asyncio.Event()

    @provider.on("rebuild")
    async def rebuild(n: int) -> int:
        runs.append(n)
        await gate.wait()
        return n

    async with provider.worker():
        first = provider.emit("rebuild", 5, idempotency_key="k", keep_last=True)
        await until(lambda: runs[-1:] == [5], "it runs")
        following = [provider.emit("rebuild", n, idempotency_key="k", keep_last=True) for n in (6, 7)]
        await following[1].enqueued()
        await following[1].cancel()
        for each in following:
            with pytest.raises(JobCancelled):
                await each
        gate.set()
        assert await first == 5


async def test_the_key_function_of_the_event_says_what_is_merged(make_provider: MakeProvider) -> None:
    provider = make_provider()
    changed = Event("changed", payload=dict[str, int], key=lambda order: f"order-{order['id']}")
    seen: list[dict[str, int]] = []
    provider.on(changed)(seen.append)
    orders = [{"id": 1, "v": 1}, {"id": 2, "v": 1}, {"id": 1, "v": 2}]
    async with provider.worker():
        for each in provider.emit_many(changed, orders, debounce="100ms"):
            await each
    assert sorted(seen, key=lambda order: order["id"]) == [{"id": 1, "v": 2}, {"id": 2, "v": 1}]


async def test_all_emissions_of_an_event_without_a_payload_share_a_key(make_provider: MakeProvider) -> None:
    provider = make_provider()
    runs: list[None] = []
    provider.on("sync")(runs.append)
    provider.on("other")(runs.append)
    async with provider.worker():
        for each in [provider.emit("sync", debounce="100ms") for _ in range(4)]:
            await each
        assert len(runs) == 1
        await provider.emit("other", debounce="50ms")
        await provider.emit("sync", idempotency_key="sync", debounce="50ms")
    assert len(runs) == 3


async def test_an_edit_sees_that_a_later_emission_replaced_the_payload(make_provider: MakeProvider) -> None:
    async with make_provider() as provider:
        first = provider.emit("rebuild", 1, idempotency_key="k", keep_last=True, reply=False)
        await first.enqueued()
        seen = await provider.inspector.jobs.get(first.job_id)
        await provider.emit("rebuild", 2, idempotency_key="k", keep_last=True, reply=False).enqueued()
        done = await provider.inspector.jobs.edit(first.job_id, 3, revision=seen.revision)
        assert (done.changed, done.differences) == (False, ["its payload, delay or priority was edited"])
        assert (await provider.inspector.jobs.get(first.job_id)).payload == 2


@pytest.mark.parametrize("option", [{"throttle": 1}, {"debounce": 1}, {"keep_last": True}])
async def test_a_payload_without_a_key_is_refused_for_two_of_them_are_two_things(
    make_provider: MakeProvider, option: dict[str, Any]
) -> None:
    provider = make_provider()
    async with provider:
        with pytest.raises(DefinitionError, match=f"{next(iter(option))} needs a key: give idempotency_key"):
            provider.emit("index", {"id": 1}, **option)


_NOON = datetime.now(UTC) + timedelta(hours=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"throttle": 0}, "expected throttle to be more than 0 s, got: 0"),
        ({"throttle": -1}, "expected throttle to be from 0 s to 100 years, got: -1"),
        ({"throttle": True}, "expected throttle to be seconds"),
        ({"debounce": "0s"}, "expected debounce to be more than 0 s, got: '0s'"),
        ({"debounce": "soon"}, "expected debounce to be seconds.* got: 'soon'"),
        ({"debounce": 1, "longest": 0}, "expected longest to be more than 0 s, got: 0"),
        (
            {"debounce": "5s", "longest": "1s"},
            "expected longest to be at least debounce, got: longest='1s', debounce='5s'",
        ),
        ({"longest": "1s"}, "longest belongs to debounce, got: longest='1s' without it"),
        ({"throttle": 1, "longest": 2}, "expected either throttle or longest, got both"),
        (
            {"throttle": 1, "debounce": 2},
            "expected either throttle or debounce, got both: throttle=1, debounce=2",
        ),
        ({"debounce": 2, "keep_last": True}, "expected either debounce or keep_last, got both"),
        ({"debounce": 2, "delay": 1}, "expected either debounce or delay, got both: debounce=2, delay=1"),
        ({"debounce": 2, "delay": 0}, "expected either debounce or delay, got both"),
        ({"keep_last": True, "at": _NOON}, "expected either keep_last or at, got both"),
        ({"debounce": 2, "supersede": True}, "expected either debounce or supersede, got both"),
        ({"throttle": 2, "supersede": True}, "expected either throttle or supersede, got both"),
        ({"keep_last": True, "reuse_failure": True}, "expected either keep_last or reuse_failure, got both"),
        ({"keep_last": 1}, "expected keep_last to be bool, got: 1"),
    ],
)
async def test_options_that_contradict_each_other_are_refused_with_their_values(
    make_provider: MakeProvider, options: dict[str, Any], message: str
) -> None:
    provider = make_provider()
    async with provider:
        with pytest.raises(DefinitionError, match=message):
            provider.emit("index", 1, idempotency_key="k", **options)


async def test_a_throttled_emission_may_be_delayed(make_provider: MakeProvider) -> None:
    provider = make_provider()
    runs: list[int] = []
    provider.on("index")(runs.append)
    async with provider.worker():
        for n in range(2):
            await provider.emit("index", n, idempotency_key="k", throttle="60s", delay="50ms")
    assert runs == [0]


@pytest.mark.real
async def test_threads_see_whether_an_emission_joined(make_provider: MakeProvider) -> None:
    provider = make_provider()

    def emit() -> list[bool]:
        emissions = [provider.sync.emit("index", n, idempotency_key="k", debounce=60) for n in range(2)]
        for each in emissions:
            each.enqueued()
        return [each.joined for each in emissions]

    async with provider:
        assert await asyncio.to_thread(emit) == [False, True]
