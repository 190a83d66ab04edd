"""A proxy between clients and a server that causes a fault at a chosen moment.

It reads the protocol in both directions, so it knows which answer belongs to which command. `before`
means that the server has not received the command yet; `after` means that the server has executed it
and answered, but the client has not received the answer. A fault is one of
- `break`: the connection ends on both sides;
- `hush`: the connection stays open and carries nothing any more, like a half-open one;
- a function, such as one that kills the client's process; then the connection ends.
If the server refused a call, for example because it does not know the script, the call was not
executed, so the proxy passes it on.

The proxy runs in a thread with its own event loop, because that of the test may be blocked.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from harness.wire import Call, read_call, read_claims, take_frame

__all__ = ["Fault", "Proxy", "When"]

When = Literal["before", "after"]
Fault: TypeAlias = Literal["break", "hush"] | Callable[[], object]


@dataclass
class _Rule:
    """A fault at every n-th call of a step, `left` times, or without end if `left` is negative."""

    step: str
    when: When
    fault: Fault
    every: int
    left: int = -1
    seen: int = 0

    def is_now(self) -> bool:
        """Count one call; return whether this one gets the fault."""
        self.seen += 1
        if self.left == 0 or self.seen % self.every:
            return False
        self.left -= 1
        return True


class Proxy:
    """Listens on its own socket and passes everything on, except for the requested faults."""

    def __init__(self, place: Path, server: Path) -> None:
        self.url = f"unix://{place}"
        self.calls: Counter[str] = Counter()
        """The commands that passed: scripts by their name, others by their first word."""
        self.cuts: Counter[str] = Counter()
        """The number of faults so far, by step."""
        self.listener: Callable[[Call, bytes], None] | None = None
        """Called with each answer of the server, in the proxy's thread."""
        self._place = place
        self._server = server
        self._rules: dict[str, _Rule] = {}
        self._is_down = False
        self._links: set[_Link] = set()
        self._serving = 0  # clients, also those whose connection to the server is not made yet
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    def start(self) -> None:
        self._thread.start()
        assert self._listening.wait(60)

    def close(self) -> None:
        """Break all connections and stop."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def cut(self, *steps: str, every: int, when: When = "after") -> None:
        """Break the connection at every n-th call of each of these commands or steps."""
        for step in steps:
            self._rules[step] = _Rule(step, when, "break", every)

    def strike(self, step: str, when: When, fault: Fault) -> None:
        """Cause one fault at the next call of this command or step."""
        self._rules[step] = _Rule(step, when, fault, every=1, left=1)

    def spare(self) -> None:
        """Cancel all requested faults."""
        self._rules.clear()

    def break_all(self) -> None:
        """Break all open connections."""
        self._loop.call_soon_threadsafe(self._break_all)

    def mute(self) -> None:
        """Keep the open connections, but let no answer pass over them any more."""
        for link in list(self._links):
            link.is_mute = True

    def go_down(self) -> None:
        """Break all connections, and refuse new ones."""
        self._is_down = True
        self.break_all()

    def come_up(self) -> None:
        self._is_down = False

    def lead_to(self, server: Path) -> None:
        """Break all connections; new ones lead to another server, as a name does after a failover."""
        self._server = server
        self.break_all()

    def judge(self, call: Call) -> _Rule | None:
        """Count a command; return the rule that applies to it."""
        self.calls[call.name] += 1
        return self._due(call.steps)

    def judge_answer(self, call: Call, frame: bytes) -> _Rule | None:
        """Count an answer; return the rule that applies. Only an answer shows the step `claimed <unit>`."""
        if "claim" not in call.steps or not any(step.startswith("claimed ") for step in self._rules):
            return None
        return self._due(read_claims(frame))

    def _due(self, steps: Collection[str]) -> _Rule | None:
        rules = [self._rules[step] for step in steps if step in self._rules]
        due = [rule for rule in rules if rule.is_now()]
        return due[0] if due else None

    def do(self, rule: _Rule) -> None:
        """Cause a fault while nothing else passes; the link itself breaks or silences its connection."""
        if callable(rule.fault):
            rule.fault()
        self.cuts[rule.step] += 1

    async def _run(self) -> None:
        listener = await asyncio.start_unix_server(self._serve, self._place)
        self._listening.set()
        await self._stop.wait()
        for (
            place
        ) in listener.sockets:  # no client is accepted any more; the end of the listener would lose one
            self._loop.remove_reader(place)
        # A client that was accepted a moment ago is a task before it is served.
        while self._serving or len(asyncio.all_tasks()) > 1:
            self._break_all()
            await asyncio.sleep(0)
        listener.close()

    def _break_all(self) -> None:
        for link in self._links:
            link.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving += 1
        try:
            await self._serve_client(reader, writer)
        finally:
            self._serving -= 1

    async def _serve_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_down:
            await _close(writer)
            return
        try:
            there = await asyncio.open_unix_connection(self._server)
        except OSError:  # the server is away
            await _close(writer)
            return
        link = _Link(self, (reader, writer), there)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)


class _Link:
    """The connection of one client, and the matching one to the server."""

    def __init__(
        self,
        proxy: Proxy,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.is_mute = False
        self._is_lost = False
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._from_server, self._to_server = server
        self._owed: deque[tuple[Call, _Rule | None]] = deque()
        self._is_cut = asyncio.Event()

    async def run(self) -> None:
        """Pass on until either side ends or the connection is cut."""
        ways = [asyncio.create_task(way) for way in (self._send(), self._answer(), self._is_cut.wait())]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for writer in (self._to_client, self._to_server):
            await _close(writer)

    def cut(self) -> None:
        self._is_cut.set()

    async def _send(self) -> None:
        buffer = bytearray()
        while chunk := await self._from_client.read(1 << 20):
            buffer += chunk
            while (frame := take_frame(buffer)) is not None:
                call = read_call(frame)
                rule = self._proxy.judge(call)
                if rule is not None and rule.when == "before" and self._strike(rule):
                    return
                if not self._is_lost:
                    self._owed.append((call, rule))
                    self._to_server.write(frame)
            await self._to_server.drain()

    async def _answer(self) -> None:
        buffer = bytearray()
        while chunk := await self._from_server.read(1 << 20):
            buffer += chunk
            while (frame := take_frame(buffer)) is not None:
                call, rule = self._owed.popleft()
                rule = rule or self._proxy.judge_answer(call, frame)
                if self._proxy.listener is not None:
                    self._proxy.listener(call, frame)
                if rule is not None and frame.startswith(b"-"):
                    rule.left += 1  # refused, so not executed: the fault comes at the next call
                elif rule is not None and self._strike(rule):
                    return
                if not (self.is_mute or self._is_lost):
                    self._to_client.write(frame)
            await self._to_client.drain()

    def _strike(self, rule: _Rule) -> bool:
        """Cause the fault; return whether it ends the connection."""
        self._proxy.do(rule)
        self._is_lost = rule.fault == "hush"
        return not self._is_lost


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close a connection, and wait until it is closed: what ends the loop before that leaves it open."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
