"""The store: every operation on the server, words in and words out.

Each call here is one script call on the keys of one shard, or a plain command that may
be repeated. No bytes and no exception of the client library leaves this package.

Deadlines are monotonic seconds; None repeats for ever. Every method raises
StoreUnavailable past its deadline and StoreRefused for what repeating cannot mend.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from eventbus.errors import StoreRefused
from eventbus.store.caller import Caller
from eventbus.store.channel import Channel
from eventbus.store.connection import Connector, translate
from eventbus.store.keys import Keys
from eventbus.store.rows import (
    AddQueue,
    AddRow,
    AddVerdict,
    AnnounceQueue,
    ClaimRow,
    LeaseRow,
    NoteRow,
    Outcome,
    SettleRow,
    SweepQueue,
    TurnAnswer,
    TurnQueue,
)
from eventbus.store.scripts import load_script, pack

__all__ = ["LeaseStore", "Store", "WakeReader"]

SHARD = "0"
"""The one shard there is by default."""

_BLOCK = 4.0
_ANSWER_TIMEOUT = 5.0
_LOOK_BYTES = 4 << 20
_OLDEST = (6, 2)


class Store:
    """One shard of one server, over one connection that all callers share."""

    def __init__(self, connector: Connector, *, prefix: str, name: str, prelude: str = "") -> None:
        self.connector = connector
        self.keys = Keys(prefix, SHARD)
        self.name = name
        self._channel = Channel(connector, name=name, answer_timeout=_ANSWER_TIMEOUT)
        self._caller = Caller(self._channel, root=self.keys.root, prelude=prelude)

    @property
    def address(self) -> str:
        """Where the server is, without a password."""
        return self.connector.address

    async def start(self, *, deadline: float | None, allow_eviction: bool = False) -> None:
        """Connect and check that the server can keep what it is given.

        Raises StoreRefused for a server that is too old, a replica, or one that may evict keys.
        """
        await self.connector.start()
        facts = _parse_info(await self._caller.command("INFO", deadline=deadline))
        version = facts.get("redis_version", "0")
        if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
            raise StoreRefused(
                f"the server at {self.address} is Redis {version}; 6.2 or newer is needed", code="VERSION"
            )
        if facts.get("role") == "slave":
            raise StoreRefused(
                f"the server at {self.address} is a read-only replica; use the URL of its primary "
                f"({facts.get('master_host')}:{facts.get('master_port')})",
                code="READONLY",
            )
        policy = facts.get("maxmemory_policy", "noeviction")
        if policy != "noeviction" and not allow_eviction:
            raise StoreRefused(
                f"the server at {self.address} may evict keys (maxmemory-policy {policy}) and so lose jobs; "
                "set maxmemory-policy noeviction, or pass allow_eviction=True",
                code="EVICTION",
            )

    async def aclose(self) -> None:
        """Close the connection and leave the embedded server. Idempotent."""
        await self._channel.aclose()
        await self.connector.aclose()

    def open_wakes(self, *, pool: str, worker: str) -> WakeReader:
        """A reader for one worker's wakes, on a connection of its own."""
        channel = Channel(self.connector, name=f"{self.name}-wake", answer_timeout=_BLOCK + _ANSWER_TIMEOUT)
        return WakeReader(channel, wake=self.keys.wake(pool), control=self.keys.control(worker))

    def open_leases(self, *, timeout: float) -> LeaseStore:
        """A store for the lease thread, on a blocking connection of its own."""
        return LeaseStore(self.connector, self.keys, name=f"{self.name}-lease", timeout=timeout)

    async def add(
        self,
        emitter: str,
        queues: Sequence[AddQueue],
        rows: Sequence[AddRow],
        *,
        deadline: float,
        now: int | str = "",
    ) -> list[AddVerdict]:
        """Add emissions; returns verdicts for those that are not simply new jobs."""
        arguments: list[Any] = [now, emitter, len(queues), len(rows)]
        arguments.extend(chain.from_iterable(queues))
        arguments.extend(chain.from_iterable(rows))
        flat = await self._caller.script("add", arguments, deadline=deadline)
        return [AddVerdict(*flat[i : i + 5]) for i in range(1, len(flat), 5)]

    async def turn(
        self,
        *,
        worker: str,
        call: int,
        lease_ms: int,
        pool: str,
        want: int,
        max_bytes: int,
        queues: Sequence[TurnQueue],
        settles: Sequence[SettleRow],
        deadline: float | None = None,
        now: int | str = "",
    ) -> TurnAnswer:
        """Settle, promote and claim in one call. `call` must rise by one from turn to turn."""
        arguments: list[Any] = [now, worker, call, lease_ms, pool, want, max_bytes, len(queues), len(settles)]
        arguments.extend(chain.from_iterable(queues))
        arguments.extend(chain.from_iterable(settles))
        answer = await self._caller.script("turn", arguments, deadline=deadline)
        flat = answer[5]
        claims = [
            ClaimRow(
                flat[i],
                flat[i + 1],
                flat[i + 2],
                int(flat[i + 3]),
                int(flat[i + 4]),
                int(flat[i + 5]),
                int(flat[i + 6]),
            )
            for i in range(0, len(flat), 7)
        ]
        return TurnAnswer(*answer[:5], token=f"{worker}:{call}", claims=claims)

    async def rescue(
        self, *, lease_ms: int, limit: int, max_stalls: int, key_ttl_ms: int, now: int | str = ""
    ) -> tuple[int, list[str], list[str]]:
        """End leases that ran out; returns the ms until the next one ends (-1: nothing active),
        the ids given back and the ids failed.
        """
        answer = await self._caller.script("rescue", [now, lease_ms, limit, max_stalls, key_ttl_ms])
        return answer[0], answer[1], answer[2]

    async def announce(
        self, *, pool: str, queues: Sequence[AnnounceQueue], unpark: bool, now: int | str = ""
    ) -> int:
        """Say that a worker of `pool` serves `queues`; returns how many parked jobs came back."""
        arguments: list[Any] = [now, pool, int(unpark), len(queues)]
        arguments.extend(chain.from_iterable(queues))
        return await self._caller.script("announce", arguments)

    async def sweep(self, queues: Sequence[SweepQueue], *, limit: int, now: int | str = "") -> int:
        """Remove finished jobs past their retention, at most `limit` for each queue and state."""
        arguments: list[Any] = [now, limit, len(queues)]
        arguments.extend(chain.from_iterable(queues))
        return await self._caller.script("sweep", arguments)

    async def note(self, notes: Sequence[NoteRow], *, deadline: float | None = None) -> list[str]:
        """Record progress; returns the ids whose lease is lost."""
        return await self._caller.script("note", [len(notes), *chain.from_iterable(notes)], deadline=deadline)

    async def look(
        self, emitter: str, ids: Sequence[str], *, join: bool, deadline: float | None = None
    ) -> list[Outcome]:
        """Look jobs up in the order asked; open ones are joined as a waiter if `join`.

        A job without a record has the state `unknown`.
        """
        found: dict[str, Outcome] = {}
        left = list(ids)
        while left:
            arguments: list[Any] = [emitter, _LOOK_BYTES, len(left)]
            arguments.extend(chain.from_iterable((each, int(join)) for each in left))
            flat = await self._caller.script("look", arguments, deadline=deadline)
            later: list[str] = []
            for i, job in enumerate(left):
                state, text = flat[2 * i], flat[2 * i + 1]
                if state == "later":
                    later.append(job)
                else:
                    found[job] = Outcome(job, state, text)
            left = later
        return [found[each] for each in ids]

    async def rearm(self, pool: str, queues: Sequence[str]) -> None:
        """Put wakes back that this worker cannot use now."""
        pairs = chain.from_iterable((0, queue) for queue in queues)
        await self._caller.command("ZADD", self.keys.wake(pool), *pairs)
        await self._caller.command("EXPIRE", self.keys.wake(pool), 120)

    async def poke(self, worker: str, message: str) -> None:
        """Wake one worker's blocked read with a message."""
        await self._caller.command("ZADD", self.keys.control(worker), 0, message)
        await self._caller.command("EXPIRE", self.keys.control(worker), 120)

    async def add_group(self, queue: str, group: str, *, deadline: float | None = None) -> None:
        """Make a group exist before its first worker starts."""
        await self._caller.command("SADD", self.keys.of("groups", queue), group, deadline=deadline)


class WakeReader:
    """The blocked read of one worker: its pool's wakes and its own control messages."""

    def __init__(self, channel: Channel, *, wake: str, control: str) -> None:
        self._channel = channel
        self._wake = wake
        self._control = control

    async def wait(self, seconds: float) -> tuple[str, str] | None:
        """Wait at most `seconds` (4 at most); returns `("wake", queue)`, `("control", message)` or None.

        One try; never to be cancelled in flight, for a cancelled pop may have eaten its marker.
        """
        # Redis 6 takes less than 2 ms for no time at all, which is for ever.
        block = max(0.01, min(seconds, _BLOCK))
        reply = await self._channel.call("BZPOPMIN", self._control, self._wake, block)
        if reply is None:
            return None
        return ("control" if reply[0] == self._control else "wake"), reply[1]

    async def aclose(self) -> None:
        """Close the connection. Idempotent."""
        await self._channel.aclose()


class LeaseStore:
    """What the lease thread needs, blocking. One connection, opened again after a loss."""

    def __init__(self, connector: Connector, keys: Keys, *, name: str, timeout: float) -> None:
        self._connector = connector
        self._root = keys.root
        self._name = name
        self._timeout = timeout
        self._connection: Any = None

    def renew(self, lease_ms: int, leases: Sequence[LeaseRow]) -> list[str]:
        """Renew leases; returns the ids that are lost. One try, which may be repeated."""
        packed = pack(["", lease_ms, len(leases), *chain.from_iterable(leases)])
        script = load_script("renew")
        try:
            return self._call("EVALSHA", script.digest, 1, self._root, packed)
        except StoreRefused as error:
            if error.code != "NOSCRIPT":
                raise
        return self._call("EVAL", script.source, 1, self._root, packed)

    def close(self) -> None:
        """Close the connection; the next call opens one. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _call(self, *command: Any) -> Any:
        if self._connection is None:
            self._connection = self._connector.open_blocking(name=self._name, timeout=self._timeout)
        try:
            self._connection.send_command(*command)
            return self._connection.read_response()
        except Exception as error:
            ours = translate(error, address=self._connector.address, sent=True)
            if not isinstance(ours, StoreRefused):
                self.close()  # what it answers next may belong to this call
            raise ours from error


def _parse_info(text: str) -> dict[str, str]:
    lines = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {name: value.strip() for name, _, value in lines}
