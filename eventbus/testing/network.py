"""The virtual network: carries commands to the server of the tests, and answers back, inside the event loop.

A command waits in a queue of the loop and runs on the server at the loop's next step. The answer comes back
by the loop, too. Nothing is under way outside. A blocked read is tried at once; if there is nothing for it,
it waits here, and each later batch of commands carries one cheap look at all keys that somebody waits for.

    sent -> run -> answered
         -> blocked (BZPOPMIN, XREAD BLOCK) -> run again when its keys have something -> answered
                                            -> timed out: answered with nothing

Each command carries the virtual time (`shim.lua`); keys whose time has come are removed before it.

What must always hold:
- the answers of one connection come in the order of its commands, and commands behind a blocked read wait
  for it;
- a connection that ended gets nothing more, and what it had sent and did not run never runs;
- a script is the one of production, byte by byte, behind the shim.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any

from eventbus.errors import StoreUnavailable
from eventbus.runtime.upkeep import marked
from eventbus.store.connection.connector import Connector
from eventbus.store.connection.translation import refusal
from eventbus.store.connection.wire import Refusal, ReplySink, Wire
from eventbus.store.scripting.scripts import list_scripts, load_script
from eventbus.testing.nodes import NODE, Node, is_dead
from eventbus.testing.server import TestServer
from eventbus.testing.virtual_time import VirtualTime

SCHEME = "virtual"
_ADDRESS = "the virtual server"

_FAR = 100 * 365 * 86_400 * 1000
"""Milliseconds by which keys expire too late by the server's own clock."""
_MOST = 64
"""Commands in one batch."""

# The time is the last argument of each call, and taken away before the script looks.
_TAKE_FOR_FUNCTIONS = """
function redis.register_function(given)
  local callback = given.callback
  given.callback = function(keys, values)
    shim.begin(table.remove(values))
    return callback(keys, values)
  end
  return real().register_function(given)
end
"""
_TAKE = "shim.begin(table.remove(ARGV))\n"

# What has no expiry any more was set anew, or made to stay.
_EXPIRE = """
for _, key in ipairs(redis.call('ZRANGEBYSCORE', 'expiring', '-inf', ARGV[1])) do
  if redis.call('PTTL', key) >= 0 then redis.call('DEL', key) end
  redis.call('ZREM', 'expiring', key)
end
"""
_PLAIN = "return redis.call(unpack(ARGV))\n"


@cache
def _shim() -> str:
    text = (files("eventbus.testing") / "shim.lua").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    return "\n".join(lines).replace("FAR_MS", str(_FAR)) + "\n"


@cache
def _sources() -> dict[str, str]:
    """Digest -> text of each script."""
    return {each.digest: each.source for each in map(load_script, list_scripts())}


class _Transport(asyncio.Transport):
    """What a wire gives up when it ends."""

    def __init__(self, on_abort: Callable[[], None]) -> None:
        super().__init__()
        self.abort = on_abort


class _Connection:
    """Stands for redis-py's connection."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._reader = None
        self._writer: Any = self
        self.transport = transport


class VirtualWire(Wire):
    """One connection of the virtual network."""

    is_watched = False

    def __init__(self, network: Network, *, address: str, raw: bool, on_end: Callable[[Wire], None]) -> None:
        super().__init__(_Connection(_Transport(self._abort)), address=address, raw=raw, on_end=on_end)
        self.raw = raw
        self.node: Node | None = NODE.get()
        self.blocked: tuple[Any, ...] | None = None
        """The read that waits for something."""
        self.behind: deque[tuple[Any, ...]] = deque()
        """The commands behind it."""
        self.timer: asyncio.TimerHandle | None = None
        self.is_over: bool = False
        self._network = network
        if self.node is not None:
            self.node.connections.append(self)

    async def take_over(self) -> None:
        """Be ready; there was nothing before."""

    def send(self, command: tuple[str | bytes | float, ...], sink: ReplySink) -> None:
        """Send one command; `sink` gets its answer, once."""
        if is_dead():
            sink.set_exception(StoreUnavailable("this process was killed", address=self._address))
            return
        self.owed.append(sink)
        self._network.send(self, command)

    def deliver(self, reply: Any) -> None:
        """Hand an answer to the sink that has waited longest."""
        if not self.is_over and self.owed:
            self._tell(self.owed.popleft(), reply)

    def vanish(self) -> None:
        """End for the server's side alone."""
        self.is_over = True
        self._network.forget(self)

    def _abort(self) -> None:
        self.vanish()
        asyncio.get_running_loop().call_soon(self.connection_lost, None)


class _BlockingConnection:
    """The connection of the leases, whose calls are answered at once."""

    def __init__(self, network: Network) -> None:
        self._network, self._node = network, NODE.get()
        self._reply: Any = None

    def send_command(self, *command: Any) -> None:
        if self._network.is_away:
            raise ConnectionResetError("the server is away")
        self._reply = self._network.run_at_once(command)

    def read_response(self) -> Any:
        if isinstance(self._reply, Refusal):
            raise refusal(self._reply.line, address=_ADDRESS)
        return self._reply

    def disconnect(self) -> None: ...


class VirtualConnector(Connector):
    """Opens connections of the virtual network."""

    blocks = False

    def __init__(self, url: str, network: Network) -> None:
        super().__init__("redis://virtual")
        self.address = url
        self._network = network

    async def start(self) -> None:
        """Do nothing: the server runs."""

    async def open_wire(
        self,
        *,
        name: str,  # noqa: ARG002
        raw: bool,
        on_end: Callable[[Wire], None],
    ) -> Wire:
        """Open a connection at the loop's next step. Raises StoreUnavailable."""
        await asyncio.sleep(0)
        self._network.check_open()
        wire = VirtualWire(self._network, address=self.address, raw=raw, on_end=on_end)
        self._network.wires.append(wire)
        return wire

    def open_blocking(self, *, name: str, timeout: float) -> Any:  # noqa: ARG002
        """Open a connection whose calls are answered at once. Raises StoreUnavailable."""
        self._network.check_open()
        return _BlockingConnection(self._network)


class Network:
    """Carries commands without a fault."""

    def __init__(self, time: VirtualTime, server: TestServer) -> None:
        self.wires: list[VirtualWire] = []
        self.is_away: bool = False
        """Whether nobody reaches the server."""
        self.calls: int = 0
        """How many commands the server has run."""
        self._time = time
        self._server = server
        self._queue: deque[tuple[VirtualWire, tuple[Any, ...]]] = deque()
        self._is_flush_due = False
        self._waiting: list[VirtualWire] = []
        self._context = contextvars.Context()
        self._context.run(NODE.set, None)
        self._expired_ms = 0
        """The time up to which keys have expired."""

    # What the connections do

    def check_open(self) -> None:
        """Raise StoreUnavailable if a connection cannot be opened now."""
        if self.is_away:
            raise StoreUnavailable(
                f"no server at {_ADDRESS} (while connecting): it is away", address=_ADDRESS, sent=False
            )

    def send(self, wire: VirtualWire, command: tuple[Any, ...]) -> None:
        """Run a command at the loop's next step."""
        self._queue.append((wire, command))
        self._flush_soon()

    def forget(self, wire: VirtualWire) -> None:
        """Run and answer nothing more of a connection."""
        if wire in self.wires:
            self.wires.remove(wire)
        if wire.node is not None and wire in wire.node.connections:
            wire.node.connections.remove(wire)
        self._unblock(wire)

    def lose_connections(self, *, node: Node | None = None) -> None:
        """End the connections of a node, or of all; what was sent and not run never runs."""
        for wire in list(self.wires):
            if node is None or wire.node is node:
                self._in_node_of(wire, wire.end, ConnectionResetError("the test has cut the connection"))

    def run_at_once(self, command: tuple[Any, ...]) -> Any:
        """Run a command and return its reply; what waits may be answered afterwards."""
        (reply,) = self.run([command])
        self._time.loop.call_soon(self._wake, context=self._context)
        return reply

    # Carrying out

    def _flush_soon(self) -> None:
        if self._queue and not self._is_flush_due:
            self._is_flush_due = True
            self._time.loop.call_soon(self._flush, context=self._context)

    def _flush(self) -> None:
        self._is_flush_due = False
        while self._queue:
            batch: list[tuple[VirtualWire, tuple[Any, ...]]] = []
            while self._queue and len(batch) < _MOST:
                wire, command = self._queue[0]
                if wire.is_over or wire.blocked is not None:
                    self._queue.popleft()
                    if not wire.is_over:
                        wire.behind.append(command)
                    continue
                if _is_blocking(command) or (batch and batch[0][0].raw is not wire.raw):
                    break
                batch.append(self._queue.popleft())
            if batch:
                self._execute(batch)
            elif self._queue and not self._queue[0][0].is_over:
                self._block(*self._queue.popleft())

    def _execute(self, batch: list[tuple[VirtualWire, tuple[Any, ...]]]) -> None:
        looks = self._looks()
        replies = self.run([*(command for _, command in batch), *looks], raw=batch[0][0].raw)
        for (wire, _), reply in zip(batch, replies, strict=False):
            self.answer(wire, reply)
        if any(replies[len(batch) :]):
            self._wake()

    def answer(self, wire: VirtualWire, reply: Any) -> None:
        """Bring a reply to its connection."""
        self._in_node_of(wire, wire.deliver, reply)

    def _in_node_of(self, wire: VirtualWire, call: Callable[..., object], *args: Any) -> None:
        context = self._context if wire.node is None else wire.node.context
        self._time.loop.call_soon(call, *args, context=context.copy())

    def run(self, commands: list[tuple[Any, ...]], *, raw: bool = False) -> list[Any]:
        """Have the server run commands now, at the virtual time."""
        now_us = self._time.server_us()
        self._expire(now_us)
        self.calls += len(commands)
        return self._server.run([self._put_time(command, now_us) for command in commands], raw=raw)

    def look(self, command: tuple[Any, ...]) -> list[Any]:
        """Ask the server something that no connection asks."""
        return self._server.run([command])

    def _expire(self, now_us: int) -> None:
        """Remove the keys whose time has come; where upkeep comes first, those of before."""
        before = self._time.is_before_expiry
        now = (now_us if before is None else self._time.server_us(before)) // 1000
        if now != self._expired_ms:
            self._expired_ms = now
            self._server.run([("EVAL", _EXPIRE, 0, now + _FAR)])

    def _put_time(self, command: tuple[Any, ...], now_us: int) -> tuple[Any, ...]:
        """Return a command with the virtual time."""
        match command[0]:
            case "FCALL":
                return (*command, now_us)
            case "EVALSHA" | "EVAL":
                script = command[1].decode() if isinstance(command[1], bytes) else command[1]
                source = _sources().get(script, script)
                return ("EVAL", f"{_shim()}{_TAKE}{source}", *command[2:], now_us)
            case "FUNCTION" if command[1] == "LOAD":
                first, _, rest = command[2].partition("\n")
                return ("FUNCTION", "LOAD", "REPLACE", f"{first}\n{_shim()}{_TAKE_FOR_FUNCTIONS}{rest}")
            case "TIME" | "EXPIRE" | "PEXPIRE" | "TTL" | "PTTL":
                return self._as_script(command, now_us)
            case "SET" if "PX" in command or "EX" in command:
                return self._as_script(command, now_us)
            case _:
                return command

    def _as_script(self, command: tuple[Any, ...], now_us: int) -> tuple[Any, ...]:
        return ("EVAL", f"{_shim()}{_TAKE}{_PLAIN}", 0, *command, now_us)

    # Reads that wait

    def _block(self, wire: VirtualWire, command: tuple[Any, ...]) -> None:
        reply = self._try(wire, command)
        if reply is not None:
            self.answer(wire, reply)
            self._wake()
            return
        wire.blocked = command
        self._waiting.append(wire)
        seconds = float(command[-1]) if command[0] == "BZPOPMIN" else int(command[4]) / 1000
        with marked("always"):
            wire.timer = self._time.loop.call_later(
                seconds, self._time_out, wire, context=self._context.copy()
            )

    def _try(self, wire: VirtualWire, command: tuple[Any, ...]) -> Any:
        """Return the answer of a blocking read if it need not wait, otherwise None."""
        if command[0] == "BZPOPMIN":
            for key in command[1:-1]:
                (popped,) = self.run([("ZPOPMIN", key)], raw=wire.raw)
                if isinstance(popped, Refusal):
                    return popped
                if popped:
                    return [key, *popped]
            return None
        (reply,) = self.run([(*command[:3], *command[5:])], raw=wire.raw)
        return reply

    def _time_out(self, wire: VirtualWire) -> None:
        if wire.blocked is not None:
            self._unblock(wire)
            self.answer(wire, None)

    def _unblock(self, wire: VirtualWire) -> None:
        if wire.blocked is None:
            return
        wire.blocked = None
        self._waiting.remove(wire)
        if wire.timer is not None:
            wire.timer.cancel()
            wire.timer = None
        behind, wire.behind = wire.behind, deque()
        if not wire.is_over:
            self._queue.extendleft((wire, command) for command in reversed(behind))
            self._flush_soon()

    def _looks(self) -> list[tuple[Any, ...]]:
        """Return commands whose answers say whether a blocked read can be answered."""
        keys: list[str] = []
        looks: list[tuple[Any, ...]] = []
        for wire in self._waiting:
            match wire.blocked:
                case ("BZPOPMIN", *awaited, _):
                    keys.extend(awaited)
                case ("XREAD", _, _, _, _, *streams):
                    looks.append(("XREAD", "COUNT", 1, *streams))
                case _:
                    pass
        return [("EXISTS", *keys), *looks] if keys else looks

    def _wake(self) -> None:
        """Answer the blocked reads that can be answered now, in the order in which they began."""
        served = True
        while served and self._waiting and any(self._server.run(self._looks())):
            served = False
            for wire in list(self._waiting):
                reply = self._try(wire, wire.blocked or ())
                if reply is not None:
                    self._unblock(wire)
                    self.answer(wire, reply)
                    served = True


def _is_blocking(command: tuple[Any, ...]) -> bool:
    return command[0] == "BZPOPMIN" or (command[0] == "XREAD" and command[3] == "BLOCK")
