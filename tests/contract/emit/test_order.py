"""The order in which emissions are accepted: that in which they were handed over, also over outages."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import redis
from drivers.relay import Relay, When
from drivers.servers import Server, free_port

from eventbus import Emission, EmitError, EventProvider
from eventbus.store.connection import repeat_policy, retrying

MakeProvider = Callable[..., EventProvider]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server(port=free_port())
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def relay(server: Server) -> AsyncIterator[Relay]:
    async with Relay("127.0.0.1", server.port) as relay:
        yield relay


@pytest.mark.parametrize("when", ["before", "instead", "after"])
@pytest.mark.parametrize("seed", range(4))
async def test_what_was_handed_over_first_is_accepted_first_over_outages(
    make_provider: MakeProvider,
    server: Server,
    relay: Relay,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    when: When,
    seed: int,
) -> None:
    """Deadlines end calls in the middle of the outages, and what is left of their batches goes on."""
    monkeypatch.setattr(retrying, "_LAST_PAUSE", 0.1)
    chance = random.Random(seed)
    emissions: list[Emission[object]] = []
    async with (provider := make_provider(url=relay.url)):
        await provider.emit("first", reply=False)
        for _ in range(3):
            relay.shut_at(b"word", chance.randint(1, 3), when)
            while not relay.is_cut.is_set():
                _emit_some(provider, emissions, chance)
                await asyncio.sleep(0)
            for _ in range(chance.randint(0, 20)):  # into the outage
                _emit_some(provider, emissions, chance)
                await asyncio.sleep(chance.choice([0, 0, 0.002]))
            refused = chance.randint(1, 4)
            while relay.refused < refused:  # noqa: ASYNC110  (the relay counts)
                await asyncio.sleep(0.001)
            if chance.random() < 0.5:  # just when a call ends, and a part of it goes on
                _emit_some(provider, emissions, chance)
                hurried = provider.emit("ask", "word", reply=False, reply_timeout=0.05)
                await asyncio.gather(hurried, return_exceptions=True)
            relay.open()
        errors = await asyncio.gather(*emissions, return_exceptions=True)
    accepted = _waiting(server, prefix)
    assert len(accepted) == len(set(accepted)), "nothing twice"
    there = set(accepted)
    assert accepted == [each.job_id for each in emissions if each.job_id in there]
    for emission, error in zip(emissions, errors, strict=True):
        if error is None:
            assert emission.job_id in there
        else:
            assert isinstance(error, EmitError)
            assert error.enqueued is not True
            assert error.enqueued is None or emission.job_id not in there


async def test_what_is_left_of_a_call_keeps_its_place_until_its_deadline(
    make_provider: MakeProvider, server: Server, relay: Relay, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shortly before the deadline of the first call no try begins. The others do not overtake it then."""
    monkeypatch.setattr(repeat_policy, "TOO_LATE", 10)
    async with (provider := make_provider(url=relay.url)):
        await provider.emit("first", reply=False)
        relay.shut()
        hurried = provider.emit("ask", "word", reply=False, reply_timeout=0.3)
        emissions = provider.emit_many("ask", ["word"] * 900, reply=False)
        while not relay.refused:  # noqa: ASYNC110  (the relay counts)
            await asyncio.sleep(0)
        relay.open()
        with pytest.raises(EmitError):
            await hurried
        await asyncio.gather(*emissions)
    assert _waiting(server, prefix) == [each.job_id for each in emissions]


async def test_what_is_left_of_a_call_goes_on_before_the_others_begin(
    make_provider: MakeProvider, server: Server, relay: Relay, prefix: str
) -> None:
    """The server comes back at the moment at which the first call ends, and a part of it goes on."""
    async with (provider := make_provider(url=relay.url)):
        await provider.emit("first", reply=False)
        relay.shut()
        hurried = provider.emit("ask", "word", reply=False, reply_timeout=0.2)
        emissions = provider.emit_many("ask", ["word"] * 900, reply=False)
        with pytest.raises(EmitError):
            await hurried
        relay.open()
        await asyncio.gather(*emissions)
    assert _waiting(server, prefix) == [each.job_id for each in emissions]


_MOST = 5000
"""Emissions that may wait; of more than 10,000 the provider refuses the next one."""


def _emit_some(provider: EventProvider, emissions: list[Emission[object]], chance: random.Random) -> None:
    patience = chance.choice([0.05, 0.1, 0.2, 20, 20])
    emissions += [
        provider.emit("ask", "word" * chance.randint(1, 500), reply=False, reply_timeout=patience)
        for _ in range(
            chance.choice([1, 3, 150]) if sum(not each.done() for each in emissions) < _MOST else 0
        )
    ]


def _waiting(server: Server, prefix: str) -> list[str]:
    """Return the jobs of the queue, in the order in which they will be claimed."""
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        keys = client.keys(f"{prefix}:*:ready:event.ask")
        return [each for key in keys for each in client.lrange(key, 0, -1)]  # type: ignore[union-attr]
