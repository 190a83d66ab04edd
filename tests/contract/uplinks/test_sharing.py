"""Which providers share an uplink, and that each emission of each provider gets its own outcome over it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from eventbus import EventProvider, Retry
from eventbus.emit.uplink import Uplink, join_uplink
from eventbus.settings.settings import Settings

MakeProvider = Callable[..., EventProvider]
Find = Callable[[EventProvider], Uplink]
Streams = Callable[[], list[str]]
Connections = Callable[[str], Counter[str]]


async def test_fifty_providers_have_one_stream_and_two_connections_and_each_its_own_outcomes(
    make_provider: MakeProvider, stack: AsyncExitStack, streams: Streams, connections: Connections
) -> None:
    worker = make_provider(name="uplink-worker", concurrency=100)

    @worker.on("ask", retry=Retry(attempts=1))
    async def ask(n: int) -> int:
        if n % 7 == 0:
            raise ValueError(str(n))
        return n + 1

    providers = [make_provider(name="uplink-many", reply_timeout=10 + n) for n in range(50)]
    async with worker.worker():
        for provider in providers:
            await stack.enter_async_context(provider)
        ids: set[str] = set()
        for round_ in range(5):
            numbers = {(at, n): 1000 * at + 10 * round_ + n for at in range(50) for n in range(4)}
            emissions = [providers[at].emit("ask", number) for (at, _), number in numbers.items()]
            outcomes = await asyncio.gather(*emissions, return_exceptions=True)
            for number, outcome in zip(numbers.values(), outcomes, strict=True):
                if number % 7:
                    assert outcome == number + 1
                else:
                    assert isinstance(outcome, Exception)
                    assert str(number) in str(outcome)
            ids.update(emission.job_id for emission in emissions)
        assert len(ids) == 5 * 50 * 4
        assert (
            len(streams()) == 2
        )  # that of the worker's provider, which has another name, and one for all others
        assert connections("uplink-many") == {"uplink-many": 1, "uplink-many-replies": 1}
        await stack.aclose()
        assert len(streams()) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"name": "other"},
        {"prefix": "other"},
        {"durability": "replicated"},
        {"url": "?db=1"},
        {"url": "?socket_connect_timeout=4"},
        {"url": "?health_check_interval=1"},
    ],
    ids=str,
)
async def test_what_connections_and_streams_are_made_from_is_not_shared_if_it_differs(
    server_url: str, other: dict[str, Any]
) -> None:
    changed = {"name": "same"} | other
    found = [
        _join(server_url, {"name": "same"}),
        _join(server_url, {"name": "same"}),
        _join(server_url + changed.pop("url", ""), changed),
    ]
    first, second, third = found
    assert first is second
    assert third is not first
    for uplink in found:
        await uplink.leave()
    assert [uplink.users for uplink in found] == [0, 0, 0]


def _join(url: str, settings: dict[str, Any]) -> Uplink:
    return join_uplink(Settings(url=url, **settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"reply_timeout": 1.0},
        {"key_ttl": 5.0},
        {"max_waiting": 3},
        {"allow_eviction": True},
        {"lease": 1.0},
        {"max_payload": 10},
    ],
    ids=str,
)
async def test_what_each_call_carries_itself_may_differ(server_url: str, settings: dict[str, Any]) -> None:
    first, second = _join(server_url, {"name": "same"}), _join(server_url, {"name": "same", **settings})
    assert first is second
    await first.leave()
    await second.leave()


async def test_two_replicated_providers_share_nothing(server_url: str) -> None:
    given = {"name": "same", "durability": "replicated"}
    first, second = _join(server_url, given), _join(server_url, given)
    assert first is not second
    await first.leave()
    await second.leave()


async def test_throw_away_servers_are_not_shared_and_a_kept_one_is_by_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"name": "same"}
    monkeypatch.chdir(tmp_path)
    relative, absolute = _join("embedded:./here", given), _join(f"embedded:{tmp_path}/here", given)
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    elsewhere = _join("embedded:./here", given)
    thrown_away = [_join("memory:", given), _join("memory:", given)]
    assert relative is absolute
    assert len({id(uplink) for uplink in (relative, elsewhere, *thrown_away)}) == 4
    for uplink in (relative, absolute, elsewhere, *thrown_away):
        await uplink.leave()


async def test_one_job_that_two_providers_wait_for_tells_both(
    make_provider: MakeProvider, uplink: Find
) -> None:
    """They have one emitter name, so the server tells them once."""
    worker, first, second = make_provider(name="w"), make_provider(), make_provider()
    go = asyncio.Event()

    @worker.on("ask")
    async def ask(n: int) -> int:
        await go.wait()
        return n

    async with worker.worker(), first, second:
        assert uplink(first) is uplink(second)
        one = first.emit("ask", 1, idempotency_key="k")
        await one.enqueued()
        two = second.emit("ask", 1, idempotency_key="k")
        await two.enqueued()
        asked = asyncio.create_task(second.result(one.job_id))
        await asyncio.sleep(0)
        go.set()
        assert [await one, await two, await asked] == [1, 1, 1]
        assert one.job_id == two.job_id


async def test_one_key_in_one_call_is_one_job(make_provider: MakeProvider) -> None:
    runs: list[int] = []
    worker, first, second = make_provider(name="w"), make_provider(), make_provider()

    @worker.on("ask")
    async def ask(n: int) -> int:
        runs.append(n)
        return n

    async with worker.worker(), first, second:
        for n in range(20):
            emissions = [each.emit("ask", n, idempotency_key=f"k{n}") for each in (first, second, first)]
            assert [await each for each in emissions] == [n] * 3
            assert len({each.job_id for each in emissions}) == 1
    assert runs == list(range(20))


def test_two_event_loops_share_nothing(make_provider: MakeProvider, uplink: Find) -> None:
    async def find() -> Uplink:
        async with make_provider() as provider:
            await provider.emit("ask", 1, reply=False)
            return uplink(provider)

    assert asyncio.run(find()) is not asyncio.run(find())


async def test_providers_of_threads_share_nothing_with_those_of_the_loop(
    make_provider: MakeProvider, uplink: Find, streams: Streams
) -> None:
    here, there = make_provider(), make_provider()
    here.on("ask")(lambda n: n)
    async with here.worker():
        assert await asyncio.to_thread(lambda: there.sync.emit("ask", 3).result(240)) == 3
        assert uplink(here) is not uplink(there)
        assert len(streams()) == 2
        await asyncio.to_thread(there.sync.close)
        assert await here.emit("ask", 4) == 4
