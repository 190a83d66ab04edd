"""The faulty network keeps orders: what a connection loses is the end of what it sent and of what it hears.

An error here would look like a defect of the product in each simulation.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from harness.backends import Backend

from eventbus import StoreUnavailable
from eventbus.testing.nodes import Node
from eventbus.testing.server import TestServer
from eventbus.testing.virtual_time import VirtualTime
from sim.network import FATES, Fate, FaultyNetwork, FaultyWire

pytestmark = pytest.mark.servers("one")


class Sink:
    """Takes one answer."""

    def __init__(self, told: list[Any]) -> None:
        self.told = told
        self.count = 0

    def done(self) -> bool:
        return False

    def set_result(self, result: Any, /) -> None:
        self.count += 1
        self.told.append(result)

    def set_exception(self, exception: Exception, /) -> None:
        self.count += 1
        self.told.append(exception)


class Client:
    """One connection, and what it hears."""

    def __init__(self, network: FaultyNetwork, name: str, *, node: Node | None = None) -> None:
        self.name = name
        self.sinks: list[Sink] = []
        self.heard: list[Any] = []
        self.pushed: list[int] = []
        self.ends = 0
        if node is not None:
            self.wire: FaultyWire = node.context.copy().run(self._open, network)
        else:
            self.wire = self._open(network)

    def _open(self, network: FaultyNetwork) -> FaultyWire:
        wire = FaultyWire(network, address="simulated", raw=False, on_end=self._on_end)
        network.wires.append(wire)
        return wire

    def _on_end(self, _: Any) -> None:
        self.ends += 1

    def send(self, *command: Any) -> None:
        sink = Sink(self.heard)
        self.sinks.append(sink)
        self.wire.send(command, sink)

    def push(self, n: int) -> None:
        """Leave a number in the server; it answers with how many there are."""
        self.pushed.append(n)
        self.send("RPUSH", self.name, n)

    @property
    def replies(self) -> list[Any]:
        return [each for each in self.heard if not isinstance(each, Exception)]


class World:
    """Virtual time, and a faulty network with a real server."""

    def __init__(self, server: Backend) -> None:
        self.server = TestServer(str(server.socket))

    def begin(self, seed: int, rate: float = 0.0) -> FaultyNetwork:
        self.server.clean()
        self.time = VirtualTime(start=1_893_456_000, leaps=False)
        self.time.install()
        self.network = FaultyNetwork(self.time, self.server, random.Random(seed), rate=rate)
        return self.network

    def list_of(self, key: str) -> list[int]:
        (found,) = self.server.run([("LRANGE", key, 0, -1)])
        return [int(each) for each in found]


@pytest.fixture
async def world(server: Backend) -> AsyncIterator[World]:
    world = World(server)
    yield world
    if hasattr(world, "time"):
        world.time.remove()
    world.server.clean()
    world.server.close()


def fates(network: FaultyNetwork, *drawn: Fate) -> None:
    """Have the next commands that arrive meet these fates, and all others none."""
    left = list(drawn)

    def draw(command: tuple[Any, ...]) -> Fate:
        return left.pop(0) if left else ""

    network.draw_fate = draw


async def test_answers_of_one_connection_come_in_the_order_of_its_commands(world: World) -> None:
    network = world.begin(1)
    client, other = Client(network, "a"), Client(network, "b")
    for n in range(100):
        client.push(n)
        other.push(n)
    await asyncio.sleep(60)
    assert client.heard == other.heard == list(range(1, 101))
    assert world.list_of("a") == world.list_of("b") == list(range(100))


async def test_equal_times_keep_the_order_of_all_connections(world: World) -> None:
    network = world.begin(1)
    network.draw_delay = lambda: 0.25
    clients = [Client(network, "shared") for _ in range(5)]
    for n in range(50):
        clients[n % 5].push(n)
    await asyncio.sleep(60)
    assert world.list_of("shared") == list(range(50))
    assert [each.heard for each in clients] == [list(range(n + 1, 51, 5)) for n in range(5)]


async def test_a_command_that_is_lost_before_it_ran_takes_all_behind_it_along(world: World) -> None:
    network = world.begin(1)
    fates(network, "", "", "lost before")
    client = Client(network, "a")
    for n in range(6):
        client.push(n)
    await asyncio.sleep(60)
    assert world.list_of("a") == [0, 1]
    assert client.replies == [1, 2][: len(client.replies)]
    assert [each.count for each in client.sinks] == [1] * 6
    assert client.ends == 1


async def test_nothing_runs_behind_a_command_whose_answer_is_lost_with_its_connection(world: World) -> None:
    network = world.begin(1)
    fates(network, "", "lost after")
    client = Client(network, "a")
    for n in range(6):
        client.push(n)
    await asyncio.sleep(60)
    assert world.list_of("a") == [0, 1]
    assert 2 not in client.replies
    assert isinstance(client.heard[-1], StoreUnavailable)
    assert client.heard[-1].sent


async def test_a_half_lost_connection_runs_all_and_answers_nothing_more(world: World) -> None:
    network = world.begin(1)
    fates(network, "", "half lost")
    client = Client(network, "a")
    for n in range(6):
        client.push(n)
    await asyncio.sleep(60)
    assert world.list_of("a") == list(range(6))
    assert client.replies == [1]


async def test_a_silent_connection_carries_nothing_more_in_either_direction(world: World) -> None:
    network = world.begin(1)
    fates(network, "", "silent")
    client = Client(network, "a")
    for n in range(6):
        client.push(n)
    await asyncio.sleep(60)
    assert world.list_of("a")[:1] == [0]
    assert len(world.list_of("a")) <= 2
    assert client.heard == [1]
    assert client.ends == 0, "only the watch of its owner ends it"
    client.wire.end(TimeoutError("given up"))
    await asyncio.sleep(60)
    assert network.wires == [], "the server notices, later"


async def test_a_late_connection_runs_what_was_sent_long_after_its_client_has_given_it_up(
    world: World,
) -> None:
    network = world.begin(2)
    fates(network, "", "late")
    client, other = Client(network, "shared"), Client(network, "shared")
    for n in range(3):
        client.push(n)
    await asyncio.sleep(0.4)
    client.wire.end(TimeoutError("given up"))
    other.push(3)
    await asyncio.sleep(60)
    assert world.list_of("shared") == [0, 3, 1, 2]
    assert client.replies == [1]


@pytest.mark.parametrize("seed", range(4))
async def test_commands_on_the_way_of_a_killed_node_run_without_a_hole(world: World, seed: int) -> None:
    network = world.begin(seed)
    node = Node(world.time, "worker")
    client = Client(network, "a", node=node)
    for n in range(20):
        client.push(n)
    await asyncio.sleep(0.001)
    node.kill()
    await asyncio.sleep(60)
    ran = world.list_of("a")
    assert ran == list(range(20)), "the kernel sends what was written"
    assert client.replies == list(range(1, len(client.replies) + 1))
    assert network.wires == []
    assert node.connections == []


async def test_commands_behind_a_blocked_read_wait_for_it(world: World) -> None:
    network = world.begin(1)
    client, other = Client(network, "a"), Client(network, "b")
    client.send("BZPOPMIN", "wake", 5)
    client.push(0)
    client.push(1)
    await asyncio.sleep(3)
    assert world.list_of("a") == []
    other.send("ZADD", "wake", 7, "somebody")
    await asyncio.sleep(1)
    assert client.heard == [["wake", "somebody", "7"], 1, 2]
    client.send("BZPOPMIN", "wake", 5)
    client.push(2)
    await asyncio.sleep(10)
    assert client.heard[3:] == [None, 3]


async def test_a_blocked_read_that_is_cut_takes_nothing_and_nothing_behind_it_runs(world: World) -> None:
    network = world.begin(1)
    client, other = Client(network, "a"), Client(network, "b")
    client.send("BZPOPMIN", "wake", 30)
    client.push(0)
    await asyncio.sleep(3)
    network.lose(client.wire)
    await asyncio.sleep(1)
    other.send("ZADD", "wake", 7, "somebody")
    await asyncio.sleep(60)
    assert [type(each) for each in client.heard] == [StoreUnavailable] * 2
    assert world.server.run([("ZCARD", "wake")]) == [1]
    assert world.list_of("a") == []


async def test_a_client_that_ends_ends_its_blocked_read(world: World) -> None:
    network = world.begin(1)
    client, other = Client(network, "a"), Client(network, "b")
    client.send("BZPOPMIN", "wake", 30)
    client.push(0)
    await asyncio.sleep(3)
    client.wire.end(TimeoutError("given up"))
    await asyncio.sleep(3)
    other.send("ZADD", "wake", 7, "somebody")
    await asyncio.sleep(60)
    assert world.server.run([("ZCARD", "wake")]) == [1]
    assert world.list_of("a") == []


async def test_a_half_lost_blocked_read_takes_and_tells_nobody(world: World) -> None:
    network = world.begin(1)
    fates(network, "half lost")
    client, other = Client(network, "a"), Client(network, "b")
    client.send("BZPOPMIN", "wake", 5)
    await asyncio.sleep(0.5)
    other.send("ZADD", "wake", 7, "somebody")
    await asyncio.sleep(60)
    assert client.replies == []
    assert world.server.run([("ZCARD", "wake")]) == [0]


async def test_a_stopped_server_receives_and_runs_later_also_for_who_has_ended(world: World) -> None:
    network = world.begin(1)
    client, other = Client(network, "a"), Client(network, "b")
    network.stop()
    for n in range(10):
        client.push(n)
        other.push(n)
    await asyncio.sleep(1)
    client.wire.end(TimeoutError("given up"))
    await asyncio.sleep(1)
    assert world.list_of("a") == world.list_of("b") == []
    network.go_on()
    await asyncio.sleep(60)
    assert world.list_of("a") == world.list_of("b") == list(range(10))
    assert other.heard == list(range(1, 11))
    assert client.replies == []


async def test_a_read_whose_time_ends_while_the_server_stands_is_answered_afterwards(world: World) -> None:
    network = world.begin(1)
    client = Client(network, "a")
    client.send("BZPOPMIN", "wake", 2)
    client.push(0)
    await asyncio.sleep(1)
    network.stop()
    await asyncio.sleep(10)
    assert client.heard == []
    network.go_on()
    await asyncio.sleep(1)
    assert client.heard == [None, 1]


async def test_a_server_that_fell_runs_nothing_of_its_old_connections(world: World) -> None:
    network = world.begin(1)
    client = Client(network, "a")
    for n in range(10):
        client.push(n)
    await asyncio.sleep(0.0005)
    network.fall()
    before = world.list_of("a")
    network.rise()
    client.push(10)
    await asyncio.sleep(60)
    assert world.list_of("a") == before
    assert [each.count for each in client.sinks] == [1] * len(client.sinks)


async def test_a_snapshot_brings_back_what_was(world: World) -> None:
    network = world.begin(1)
    client = Client(network, "a")
    client.push(0)
    client.send("SET", "b", "x", "PX", 10_000)
    await asyncio.sleep(1)
    kept = network.take_snapshot()
    client.push(1)
    client.send("DEL", "b")
    await asyncio.sleep(1)
    network.restore(kept)
    assert world.list_of("a") == [0]
    assert network.run([("EXISTS", "b")]) == [1]
    await asyncio.sleep(10)
    assert network.run([("EXISTS", "b")]) == [0]
    assert client.ends == 1


async def test_scripts_are_unknown_after_a_flush(world: World) -> None:
    network = world.begin(1)
    network.flush()
    client = Client(network, "a")
    client.send("EVALSHA", "0" * 40, 0)
    await asyncio.sleep(1)
    assert "NOSCRIPT" in str(client.heard[0])


async def test_a_renewal_that_was_given_up_may_run_late(world: World) -> None:
    network = world.begin(1)
    fates(network, "half lost")
    with pytest.raises(TimeoutError):
        network.run_blocking(("RPUSH", "a", 1))
    assert world.list_of("a") == []
    await asyncio.sleep(5)
    assert world.list_of("a") == [1]
    assert network.run_blocking(("RPUSH", "a", 2)) == 2


async def test_whatever_is_drawn_a_connection_loses_ends_and_no_middles(world: World) -> None:
    """Random faults of connections, clients and the server, 60 seeds."""
    met: Counter[str] = Counter()
    for seed in range(60):
        network = world.begin(seed, rate=0.03)
        try:
            await _check_random(world, network, seed)
        finally:
            world.time.remove()
        met += network.faults
    world.time.install()  # the fixture removes it
    assert set(met) == set(FATES), "a fate that is never drawn shows nothing"


async def _check_random(world: World, network: FaultyNetwork, seed: int) -> None:
    drawn = random.Random(f"{seed}-clients")
    clients: list[Client] = []
    ran_when_lost: dict[str, int] = {}
    lose = network.lose

    def note_lost(wire: FaultyWire, **options: Any) -> None:
        if not wire.is_over:
            lose(wire, **options)
            for each in clients:
                if each.wire is wire:
                    ran_when_lost[each.name] = len(world.list_of(each.name))

    network.lose = note_lost
    nodes = [Node(world.time, f"node {n}") for n in range(3)]
    for step in range(150):
        if len([each for each in clients if not each.ends]) < 4:
            place = drawn.choice([None, *(each for each in nodes if not each.is_dead)])
            clients.append(Client(network, f"{seed}-{step}", node=place))
        client = drawn.choice([each for each in clients if not each.ends])
        match drawn.choices(
            ["push", "read", "wait", "end", "stop", "fall", "kill", "pause"], [40, 4, 10, 1, 1, 0.5, 0.3, 1]
        )[0]:
            case "push":
                client.push(len(client.sinks))
            case "read":
                client.send("BZPOPMIN", f"wake {step}", 0.5)
            case "end":
                client.wire.end(TimeoutError("given up"))
            case "stop":
                network.stop()
                await asyncio.sleep(drawn.uniform(0, 1))
                network.go_on()
            case "fall":
                network.fall()
                network.rise()
            case "kill":
                drawn.choice(nodes).kill()
            case "pause":
                node = drawn.choice(nodes)
                node.pause()
                await asyncio.sleep(drawn.uniform(0, 1))
                node.resume()
            case _:
                await asyncio.sleep(drawn.choice([0, 0.0005, 0.05]))
    network.go_on()
    await asyncio.sleep(100)
    for client in clients:
        ran = world.list_of(client.name)
        assert ran == client.pushed[: len(ran)], "in the order of the commands, none left out"
        numbers = [each for each in client.heard if isinstance(each, int)]
        assert numbers == list(range(1, len(numbers) + 1)), "answers in order, none left out"
        assert len(numbers) <= len(ran)
        firsts = [type(each) for each in client.heard]
        errors = [kind for kind in firsts if kind is StoreUnavailable]
        assert firsts[len(firsts) - len(errors) :] == errors, "answers first, then the loss"
        assert all(sink.count <= 1 for sink in client.sinks)
        if client.ends:
            assert all(sink.count == 1 for sink in client.sinks)
        if client.name in ran_when_lost:
            assert ran_when_lost[client.name] == len(ran), "nothing runs after the loss"
