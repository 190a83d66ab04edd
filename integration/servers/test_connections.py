"""The number of connections of a process, whatever it serves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest
from harness.backends import Backend
from harness.conditions import until

from eventbus import EventProvider

FOUR = Counter({"it": 1, "it-wake": 1, "it-lease": 1, "it-replies": 1})


@contextmanager
def named_connections(server: Backend) -> Generator[Callable[[], Counter[str]]]:
    """Count the connections to the server by name, without this one."""
    with server.client(client_name="look") as client:
        yield lambda: Counter(each["name"] for each in client.client_list()) - Counter(["look"])


async def use(server: Backend, types: int, found: Callable[[], Counter[str]]) -> None:
    """Serve and emit `types` event types in one process; it opens four connections, and no more."""
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
            seen = found()
            assert seen.total() <= FOUR.total()
            most |= seen
        await until("all four are there", lambda: found() == FOUR)
        most.pop("", None)  # one of the four that had just connected, and had no name yet
        assert most <= FOUR


@pytest.mark.servers("each")
async def test_a_process_has_four_connections_with_1_and_with_200_event_types(server: Backend) -> None:
    with named_connections(server) as found:
        for types in (1, 200):
            await use(server, types, found)
            await until("a stopped provider leaves none", lambda: not found())
