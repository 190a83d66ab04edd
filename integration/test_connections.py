"""How many connections a process has, whatever it serves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest
from backends import Backend
from conditions import until

from eventbus import EventProvider

FOUR = Counter({"it": 1, "it-wake": 1, "it-lease": 1, "it-replies": 1})


@contextmanager
def named_connections(server: Backend) -> Generator[Callable[[], Counter[str]]]:
    """Count what is connected to the server beside this look itself, by name."""
    with server.client(client_name="look") as client:
        yield lambda: Counter(each["name"] for each in client.client_list()) - Counter(["look"])


async def use(server: Backend, types: int, found: Callable[[], Counter[str]]) -> None:
    """Serve so many event types and emit each, in one process; it comes to the four connections, and no more."""
    provider = EventProvider(server.url, name="it", lease=1)

    def subscribe(name: str) -> None:
        @provider.on(name)
        async def answer(n: int) -> int:
            return n + 1

    for number in range(types):
        subscribe(f"type.{number}")
    async with provider, provider.worker():
        most: Counter[str] = Counter()
        for _ in range(3):
            emissions = [provider.emit(f"type.{number}", number) for number in range(types)]
            assert [await each for each in emissions] == [number + 1 for number in range(types)]
            most |= found()
        await until("all four are there", lambda: found() == FOUR)
        assert most <= FOUR


@pytest.mark.servers("all")
async def test_a_process_has_four_connections_with_1_and_with_200_event_types(server: Backend) -> None:
    with named_connections(server) as found:
        for types in (1, 200):
            await use(server, types, found)
            await until("a stopped provider leaves none", lambda: not found())
