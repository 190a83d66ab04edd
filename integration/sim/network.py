"""The faulty network of the simulation: a seed decides each delay and each fault.

A connection is a pipe in each direction and a state on each side. What one side does reaches the other
through a pipe, behind all that was put in before it.

    client:  open -- hears of the loss, gives up, is killed --> gone
    server:  open -- reset, restart, hears that the client ended --> over

    command -> pipe -> inbox of the server -> run -> pipe -> answer
                       (a stopped server leaves it there)

Faults of one connection, drawn for each command that is sent (`FATES`):
    lost before     the server loses the connection and runs nothing more of it; the client hears of it later
    lost after      the same, after the server ran the command; its answer is lost
    half lost       the server runs the command and those that follow, and no answer comes any more; the
                    client hears of the loss late, or never: then its watch gives the connection up
    silent          nothing comes through any more, in neither direction; the server keeps a blocked read
    late            the command and those that follow arrive up to 15 s later, mostly after their client
                    has given the connection up and sent them again on another one

Faults of the server: `stop` and `go_on`, `fall` and `rise`, `refuse`, `mute`, `flush`, `restore`.

What must always hold, whatever is drawn:
- the commands of one connection reach the server in their order, and its answers come in the order of the
  commands; commands behind a blocked read wait for it;
- nothing of a connection runs after the server lost it;
- a lost connection loses the end of its commands and of its answers, never one out of the middle;
- what happens at equal times keeps its order.

Crash windows: a client that ends leaves commands in the pipe. The server may still run them, also much
later if it was stopped. A renewal that its thread gave up may run late, too.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, TypeAlias

from eventbus.errors import StoreUnavailable
from eventbus.store.connection.wire import Refusal, ReplySink, Wire
from eventbus.store.scripting.scripts import list_scripts, load_script
from eventbus.testing.network import Network, VirtualConnector, VirtualWire, _BlockingConnection, _is_blocking
from eventbus.testing.nodes import Node
from eventbus.testing.server import TestServer
from eventbus.testing.virtual_time import VirtualTime

__all__ = ["FATES", "READS_OF_NEWS", "Fate", "FaultyConnector", "FaultyNetwork", "FaultyWire"]

Fate: TypeAlias = Literal["", "lost before", "lost after", "half lost", "silent", "late"]
FATES: tuple[Fate, ...] = ("lost before", "lost after", "half lost", "silent", "late")
_WEIGHTS = (6, 8, 3, 1, 2)
_AIMED = 20
_LATE = 15.0
"""Seconds that a late connection stands, at most; who watches it gives it up before."""

READS_OF_NEWS = ("BZPOPMIN", "ZPOPMIN")
"""Commands by which a worker reads messages to it."""
_END: tuple[Any, ...] = ("the end of the connection",)
"""Stands behind the last command of a client that ended."""
_CONNECT_WITHIN = 5.0
_LOADING = "LOADING Valkey is loading the dataset in memory"
_READONLY = "READONLY You can't write against a read only replica."
_ODD = "ERR something odd"
_UNKNOWN = ("INFO", "FUNCTION")
"""Commands whose answers differ from server to server."""


class FaultyWire(VirtualWire):
    """One connection; `is_over` is what the server's side knows."""

    is_watched = True

    def __init__(self, network: FaultyNetwork, **options: Any) -> None:
        super().__init__(network, **options)
        self.is_gone = False
        """Whether the client's side has ended."""
        self.is_mute = False
        """Whether the answers from now on are lost."""
        self.is_deaf = False
        """Whether the answers that are under way are lost, too."""
        self.is_silent = False
        """Whether the commands that are under way, and those that follow, are lost."""
        self.fates: deque[Fate] = deque()
        """What happens to each command that the server has received and not carried out."""
        self.arrives = 0.0
        self.answers = 0.0
        """When the last thing comes out of each pipe."""
        self.brings_news = False
        """Whether it reads messages to a worker."""

    def send(self, command: tuple[str | bytes | float, ...], sink: ReplySink) -> None:
        if not self.owed:
            self.heard = self._now()
        super().send(command, sink)

    def deliver(self, reply: Any) -> None:
        if self.is_gone or self.is_deaf:
            return
        self.heard = self._now()
        if self.owed:
            self._tell(self.owed.popleft(), reply)

    def vanish(self) -> None:
        """End for the client's side; the server hears of it later."""
        if not self.is_gone:
            self.is_gone = True
            self._network.forget(self)


class _LeaseConnection(_BlockingConnection):
    """The connection of a lease thread. Its calls take no time, but may fail, and run late."""

    def __init__(self, network: FaultyNetwork) -> None:
        super().__init__(network)
        self._faulty = network
        self._age = network.losses

    def send_command(self, *command: Any) -> None:
        if self._age != self._faulty.losses:
            raise ConnectionResetError("the connection was lost")
        self._reply = self._faulty.run_blocking(command)


class FaultyConnector(VirtualConnector):
    """Opens faulty connections."""

    def __init__(self, url: str, network: FaultyNetwork) -> None:
        super().__init__(url, network)
        self._faulty = network

    async def open_wire(self, *, name: str, raw: bool, on_end: Callable[[Wire], None]) -> Wire:
        network = self._faulty
        await asyncio.sleep(2 * network.draw_delay())
        if network.is_stopped:
            await asyncio.sleep(_CONNECT_WITHIN)  # the kernel takes it, and nobody answers
        network.check_open()
        wire = FaultyWire(network, address=self.address, raw=raw, on_end=on_end)
        network.wires.append(wire)
        return wire

    def open_blocking(self, *, name: str, timeout: float) -> Any:
        self._faulty.check_open()
        return _LeaseConnection(self._faulty)


class FaultyNetwork(Network):
    """Carries commands with delays and faults."""

    def __init__(
        self,
        time: VirtualTime,
        server: TestServer,
        rng: random.Random,
        *,
        rate: float = 0.0,
        tape: Any = None,
    ) -> None:
        """`rate` is the share of commands that meet a fault; `tape` is a file for the whole history."""
        super().__init__(time, server)
        self.rng = rng
        self.rate = rate
        self.is_stopped = False
        self.losses = 0
        """How often all connections were lost at once."""
        self.refuses = 0.0
        """The share of calls that the server refuses now."""
        self.target = ""
        """The script or command that meets faults far more often; `""` for none."""
        self.is_gentle = False
        """Whether a worker can always confirm within a second what it was handed."""
        self.is_mute = False
        """Whether each connection that would get an answer now goes mute."""
        self.faults: Counter[str] = Counter()
        self.history = hashlib.sha256()
        self.last: deque[str] = deque(maxlen=30)
        self.listeners: list[Callable[[tuple[Any, ...], Any], None]] = []
        """Called with each command and its reply."""
        self._tape = tape
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._overdue: list[VirtualWire] = []
        self._scripts: set[str] = set()

    # Delays

    def draw_delay(self) -> float:
        """Return the seconds that something takes from one side to the other."""
        rng = self.rng
        return rng.uniform(0.0001, 0.001) if rng.random() < 0.98 else rng.uniform(0.001, 0.3)

    def draw_fate(self, command: tuple[Any, ...]) -> Fate:
        """Return what happens to a command that is sent, and to its connection."""
        is_aimed = self.target and _is_call(command, self.target)
        if self.rng.random() >= self.rate * (_AIMED if is_aimed else 1):
            return ""
        fate = self.rng.choices(FATES, _WEIGHTS)[0]
        if self.is_gentle and fate in ("silent", "late") and command[0] == "ZREM":
            return "lost before"
        return fate

    def _at(self, when: float, call: Callable[..., None], *args: Any) -> None:
        """Call something at a time; what is due at equal times is called in the order of these calls."""
        self._count += 1
        heapq.heappush(self._agenda, (when, self._count, call, args))
        if self._agenda[0][1] == self._count:
            self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._time.loop.call_at(self._agenda[0][0], self._ring, context=self._context)

    def _ring(self) -> None:
        self._alarm = None
        while self._agenda and self._agenda[0][0] <= self._time.now:
            _, _, call, args = heapq.heappop(self._agenda)
            call(*args)
        if self._agenda:
            self._set_alarm()

    # From the client to the server

    def check_open(self) -> None:
        if self.is_stopped:
            raise StoreUnavailable("no answer in time (while connecting)", address="simulated", sent=False)
        super().check_open()

    def send(self, wire: VirtualWire, command: tuple[Any, ...]) -> None:
        assert isinstance(wire, FaultyWire)
        wire.brings_news = wire.brings_news or command[0] in READS_OF_NEWS
        fate = "" if command is _END else self.draw_fate(command)
        delay = self.draw_delay()
        if fate == "late":
            self.faults[fate] += 1
            delay, fate = self.rng.uniform(0.5, _LATE), ""
        wire.arrives = max(wire.arrives, self._time.now + delay)
        self._at(wire.arrives, self._arrive, wire, command, fate)

    def forget(self, wire: VirtualWire) -> None:
        """The client's side has ended: what it sent comes through, or its last part is lost."""
        assert isinstance(wire, FaultyWire)
        if wire.node is not None and wire in wire.node.connections:
            wire.node.connections.remove(wire)
        if wire.is_over:
            return
        if self.rng.random() < 0.2 and self.rate:
            self.lose(wire)
        elif wire.is_silent:
            self._at(self._time.now + self.rng.uniform(1, 20), self.lose, wire)
        else:
            self.send(wire, _END)

    def _arrive(self, wire: FaultyWire, command: tuple[Any, ...], fate: Fate) -> None:
        if wire.is_over or wire.is_silent:
            return
        if command is not _END:
            wire.fates.append(fate)
        self._queue.append((wire, command))
        self._flush()

    def _flush(self) -> None:
        """Carry out what the server has received."""
        self._is_flush_due = False
        while self._queue and not self.is_stopped:
            wire, command = self._queue.popleft()
            assert isinstance(wire, FaultyWire)
            if wire.is_over:
                continue
            if command is _END:
                self.lose(wire)
            elif wire.blocked is not None:
                wire.behind.append(command)
            else:
                self._serve(wire, command)

    def _serve(self, wire: FaultyWire, command: tuple[Any, ...]) -> None:
        fate = wire.fates.popleft()
        if fate:
            self.faults[fate] += 1
        if fate == "lost before":
            self.lose(wire)
            return
        if fate in ("half lost", "silent"):
            wire.is_mute = True
            wire.is_silent = fate == "silent"
            if fate == "half lost" and self.rng.random() < 0.7:
                self._at(self._time.now + self.rng.uniform(0.01, 2), self.lose, wire)
        if _is_blocking(command):
            self._block(wire, command)
        else:
            looks = self._looks()
            reply = self._refusal(command)
            if reply is None:
                reply, *found = self.run([command, *looks], raw=wire.raw)
            else:
                found = []
            if fate != "lost after":
                self.answer(wire, reply)
            if any(found):
                self._wake()
        if fate == "lost after":
            self.lose(wire, answers_too=True)

    def _refusal(self, command: tuple[Any, ...]) -> Refusal | None:
        """Return the refusal of a call, if it is refused."""
        name = command[0]
        if name == "EVAL":
            self._scripts.add(hashlib.sha1(command[1].encode()).hexdigest())
        if name == "EVALSHA" and command[1] not in self._scripts:
            return self._note_refused(command, "NOSCRIPT No matching script. Please use EVAL.")
        if name not in ("EVAL", "EVALSHA", "FCALL") or self.rng.random() >= self.refuses:
            return None
        self.faults["refused"] += 1
        lines = [_LOADING, _READONLY, _ODD] if _is_call(command, "turn") else [_LOADING, _READONLY]
        return self._note_refused(command, self.rng.choice(lines))

    def _note_refused(self, command: tuple[Any, ...], line: str) -> Refusal:
        self.note(f"refused {command[:2]!r} {line}")
        return Refusal(line)

    # From the server to the client

    def answer(self, wire: VirtualWire, reply: Any) -> None:
        assert isinstance(wire, FaultyWire)
        if self.is_mute:
            wire.is_mute = True
        if not wire.is_mute:
            wire.answers = max(wire.answers, self._time.now + self.draw_delay())
            self._at(wire.answers, self._bring, wire, reply)

    def _bring(self, wire: FaultyWire, reply: Any) -> None:
        if not wire.is_gone:
            self._in_node_of(wire, wire.deliver, reply)

    def hold_news(self, node: Node, seconds: float) -> None:
        """Let what comes to a node's reads of messages arrive late, as over a line that repeats packets."""
        self.faults["news held"] += 1
        for wire in self.wires:
            assert isinstance(wire, FaultyWire)
            if wire.node is node and wire.brings_news:
                wire.answers = max(wire.answers, self._time.now + seconds)

    def lose(self, wire: FaultyWire, *, answers_too: bool | None = None) -> None:
        """The server loses a connection; the client hears of it later. `answers_too`: those under way."""
        if wire.is_over:
            return
        wire.is_over = True
        self.wires.remove(wire)
        self._unblock(wire)
        wire.behind.clear()
        wire.is_deaf = self.rng.random() < 0.5 if answers_too is None else answers_too
        wire.answers = max(wire.answers, self._time.now + self.draw_delay())
        self._at(wire.answers, self._break, wire)

    def _break(self, wire: FaultyWire) -> None:
        if not wire.is_gone:
            self._in_node_of(wire, wire.end, ConnectionResetError("the connection was lost"))

    def lose_connections(self, *, node: Node | None = None) -> None:
        """The server loses the connections of a node, or all."""
        if node is None:
            self.losses += 1
        for wire in list(self.wires):
            assert isinstance(wire, FaultyWire)
            if node is None or wire.node is node:
                self.lose(wire)

    # Reads that wait

    def _time_out(self, wire: VirtualWire) -> None:
        if self.is_stopped:
            self._overdue.append(wire)
        else:
            super()._time_out(wire)

    def unblock_all(self) -> None:
        """End each blocked read as a server does that becomes a replica."""
        for wire in list(self._waiting):
            self._unblock(wire)
            self.answer(
                wire, Refusal("UNBLOCKED force unblock from blocking operation, instance state changed")
            )

    # The lease threads

    def run_blocking(self, command: tuple[Any, ...]) -> Any:
        """Run a renewal. Raises ConnectionResetError or TimeoutError; it may have run, or run later."""
        if self.is_away:
            raise ConnectionResetError("the server is away")
        if self.is_stopped:
            self._run_late(command)
        fate = self.draw_fate(command)
        if fate:
            self.faults[f"renewal {fate}"] += 1
        if fate == "lost before":
            raise ConnectionResetError("the connection was lost")
        if fate in ("half lost", "late"):
            self._run_late(command)
        reply = self._refusal(command)
        if reply is None:
            (reply,) = self.run([command])
            self._time.loop.call_soon(self._wake, context=self._context)
        if fate or self.is_mute:
            raise TimeoutError("no answer")
        return reply

    def _run_late(self, command: tuple[Any, ...]) -> None:
        """Run a renewal for which nobody waits any more. Raises TimeoutError."""
        ghost = FaultyWire(self, address="", raw=False, on_end=lambda _: None)
        if ghost.node is not None:
            ghost.node.connections.remove(ghost)
        ghost.is_gone = ghost.is_mute = True
        self.wires.append(ghost)
        ghost.arrives = self._time.now + self.rng.uniform(0, 0.7)
        self._at(ghost.arrives, self._arrive, ghost, command, "")
        self._at(ghost.arrives, self._arrive, ghost, _END, "")
        raise TimeoutError("no answer")

    # Faults of the server

    def stop(self) -> None:
        """Stop the server as SIGSTOP does: it receives, and answers nothing."""
        self.is_stopped = True

    def go_on(self) -> None:
        """Let it go on. It serves its connections in an order of its own."""
        if not self.is_stopped:
            return
        self.is_stopped = False
        lines: defaultdict[int, deque[Any]] = defaultdict(deque)
        for each in self._queue:
            lines[id(each[0])].append(each)
        turns = [line for line in lines.values() for _ in line]
        self.rng.shuffle(turns)
        self._queue = deque(line.popleft() for line in turns)
        overdue, self._overdue = self._overdue, []
        for wire in overdue:
            self._time_out(wire)
        self._flush()

    def fall(self) -> None:
        """End the server; its data and its library stay, its scripts do not."""
        self.is_away = True
        self._scripts.clear()
        self.lose_connections()

    def rise(self) -> None:
        """Start it again."""
        self.is_away = False

    def flush(self) -> None:
        """Take the functions and scripts away."""
        self._scripts.clear()
        self._server.run([("FUNCTION", "FLUSH", "SYNC")])

    def take_snapshot(self) -> list[tuple[Any, ...]]:
        """Return commands that make the data as they are now."""
        (keys,) = self._server.run([("KEYS", "*")])
        keys = sorted(keys)
        if not keys:
            return []
        dumps = self._server.run([("DUMP", key) for key in keys], raw=True)
        ends = self._server.run([("PEXPIRETIME", key) for key in keys])
        return [
            ("RESTORE", key, max(0, end), dump, "ABSTTL")
            for key, dump, end in zip(keys, dumps, ends, strict=True)
        ]

    def restore(self, snapshot: list[tuple[Any, ...]]) -> None:
        """Put older data back, as a failover to a replica that lags does; all connections are lost."""
        self._server.run([("FLUSHALL", "SYNC"), *snapshot])
        self._scripts.clear()
        self.lose_connections()

    # The history

    def run(self, commands: list[tuple[Any, ...]], *, raw: bool = False) -> list[Any]:
        replies = super().run(commands, raw=raw)
        for command, reply in zip(commands, replies, strict=True):
            told = "" if command[0] in _UNKNOWN else getattr(reply, "line", reply)
            if command[0] == "HGETALL" and isinstance(told, list):
                told = sorted(zip(told[::2], told[1::2], strict=True))  # each server has an order of its own
            sent = command[:2] if command[0] in _UNKNOWN else command
            self.note(f"{sent!r} {told!r}")
            for listener in self.listeners:
                listener(command, reply)
        return replies

    def note(self, what: str) -> None:
        """Put an event into the history."""
        line = f"{self._time.now:.6f} {what}\n"
        self.history.update(line.encode("utf-8", "surrogateescape"))
        self.last.append(line)
        if self._tape is not None:
            self._tape.write(line)


@cache
def _marks(name: str) -> tuple[str, ...]:
    """Return what stands in a call of a script: its digest, or its source."""
    if name not in list_scripts():
        return ()
    script = load_script(name)
    return script.digest, script.source


def _is_call(command: tuple[Any, ...], name: str) -> bool:
    """Return whether a command is that of this name, or a call of the script of this name."""
    if command[0] == "FCALL":
        return command[1].endswith(f"_{name}")
    return command[0] == name or (command[0] in ("EVAL", "EVALSHA") and command[1] in _marks(name))
