"""The store: every operation on the server, words in and words out.

Each call here is one script call on the keys of one shard, or a plain command that may
be repeated. No bytes and no exception of the client library leaves this package.

Deadlines are monotonic seconds; None repeats for ever. Every method raises
StoreUnavailable past its deadline and StoreRefused for what repeating cannot mend.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from itertools import chain
from typing import Any, cast

from eventbus.errors import StoreCorrupt, StoreRefused
from eventbus.store.caller import Caller
from eventbus.store.channel import Channel
from eventbus.store.connection import Connector, translate
from eventbus.store.inspection import InspectionStore
from eventbus.store.keys import Keys
from eventbus.store.replication import ReplicatedChannel, warn_without_replica
from eventbus.store.rows import (
    AddQueue,
    AddRow,
    AddVerdict,
    AnnounceQueue,
    CancelRow,
    ClaimRow,
    LeaseRow,
    NoteRow,
    Outcome,
    PlainRow,
    SettleRow,
    StallRow,
    SweepQueue,
    TurnAnswer,
    TurnQueue,
)
from eventbus.store.scripts import load_script, pack
from eventbus.store.trees import TreeStore

__all__ = ["OLDEST", "SHARD", "LeaseStore", "Store", "WakeReader", "parse_info"]

SHARD = "0"
"""The one shard there is by default."""

_BLOCK = 4.0
_BLOCK_PATIENCE = 2.0  # a blocked read given up for nothing costs a look, so it is shorter than that of calls
_ANSWER_TIMEOUT = 5.0
_LOOK_BYTES = 4 << 20
OLDEST = (6, 2)
_NOTHING = ("", "", "", "", 0, 0)
"""What a plain row has from `key` to `lifo`."""


class Store:
    """One shard of one server, over one connection that all callers share."""

    def __init__(
        self, connector: Connector, *, prefix: str, name: str, prelude: str = "", replicated: bool = False
    ) -> None:
        """`replicated` lets an add count only once a replica has it."""
        self.connector = connector
        self.keys = Keys(prefix, SHARD)
        self.name = name
        self._channel = Channel(connector, name=name, answer_timeout=_ANSWER_TIMEOUT)
        self._caller = Caller(self._channel, root=self.keys.root, prelude=prelude)
        self._replicated: ReplicatedChannel | None = None
        self._adder: Caller | None = None
        if replicated:
            self._replicated = ReplicatedChannel(self._channel, touch=self.keys.shard_key("touch"))
            self._adder = Caller(self._replicated, root=self.keys.root, prelude=prelude)
        self.inspection = InspectionStore(self._caller, self.keys)
        self.trees = TreeStore(self._caller, self._adder or self._caller, self.keys)

    @property
    def address(self) -> str:
        """Where the server is, without a password."""
        return self.connector.address

    @property
    def is_connected(self) -> bool:
        """Whether the connection that all callers share is open now."""
        return self._channel.is_connected

    async def start(self, *, deadline: float | None, allow_eviction: bool = False) -> None:
        """Connect and check that the server can keep what it is given.

        Raises StoreRefused for a server that is too old, a replica, or one that may evict keys.
        """
        await self.connector.start()
        facts = parse_info(await self._caller.command("INFO", deadline=deadline))
        version = facts.get("redis_version", "0")
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
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
        if self._replicated is not None:
            await self._replicated.check_rights(deadline=deadline)
            warn_without_replica(facts, self.address)

    async def aclose(self) -> None:
        """Close the connection and leave the embedded server. Idempotent."""
        await self._channel.aclose()
        await self.connector.aclose()

    def open_wakes(self, *, pool: str, worker: str) -> WakeReader:
        """A reader for one worker's wakes, on a connection of its own."""
        channel = Channel(self.connector, name=f"{self.name}-wake", answer_timeout=_BLOCK + _BLOCK_PATIENCE)
        return WakeReader(channel, wake=self.keys.wake(pool), control=self.keys.control(worker))

    def open_leases(self, *, timeout: float) -> LeaseStore:
        """A store for the lease thread, on a blocking connection of its own."""
        return LeaseStore(self.connector, self.keys, name=f"{self.name}-lease", timeout=timeout)

    def add(
        self,
        emitter: str,
        queues: Sequence[AddQueue],
        rows: Sequence[AddRow],
        *,
        deadline: float,
        now: int | str = "",
    ) -> Awaitable[list[AddVerdict]]:
        """Add emissions, sent at once if it can be; verdicts for those that are not simply new jobs."""
        plain = _plain_rows(rows)
        arguments: list[Any] = [now, emitter, len(queues), len(plain), 0 if plain else len(rows)]
        arguments.extend(chain.from_iterable(queues))
        arguments.extend(chain.from_iterable(plain or rows))
        caller = self._adder or self._caller
        return caller.start("add", arguments, deadline=deadline, read=_verdicts)

    async def turn(
        self,
        *,
        worker: str,
        call: int,
        lease_ms: int,
        pool: str,
        want: int,
        suspects: bool,
        max_bytes: int,
        queues: Sequence[TurnQueue],
        settles: Sequence[SettleRow],
        deadline: float | None = None,
        now: int | str = "",
    ) -> TurnAnswer:
        """Settle, promote and claim in one call. `call` must rise by one from turn to turn.

        `suspects` says whether a job that stalled twice may be claimed, which then comes alone.
        """
        head = (now, worker, call, lease_ms, pool, want, int(suspects), max_bytes, len(queues), len(settles))
        arguments: list[Any] = [*head]
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
                flat[i + 7],
            )
            for i in range(0, len(flat), 8)
        ]
        return TurnAnswer(*answer[:5], token=f"{worker}:{call}", claims=claims)

    async def rescue(
        self, *, lease_ms: int, limit: int, max_stalls: int, key_ttl_ms: int, now: int | str = ""
    ) -> tuple[int, list[StallRow]]:
        """End leases that ran out; returns the ms until the next one ends (-1: nothing active),
        and what became of each job.
        """
        answer = await self._caller.script("rescue", [now, lease_ms, limit, max_stalls, key_ttl_ms])
        return answer[0], [StallRow(*answer[i : i + 5]) for i in range(1, len(answer), 5)]

    async def cancel(
        self,
        rows: Sequence[CancelRow],
        *,
        key_ttl_ms: int,
        deadline: float | None = None,
        now: int | str = "",
    ) -> list[str]:
        """Cancel jobs with those of their groups; returns for each `ended`, `asked` (it runs, and its
        worker was told), `over` (it had ended) or `unknown`, the first that is true of one of them.
        """
        arguments: list[Any] = [now, key_ttl_ms, len(rows), *chain.from_iterable(rows)]
        return await self._caller.script("cancel", arguments, deadline=deadline)

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
        self,
        emitter: str,
        ids: Sequence[str],
        *,
        join: bool,
        max_bytes: int | None = None,
        deadline: float | None = None,
    ) -> list[Outcome]:
        """Look jobs up in the order asked; open ones are joined as a waiter if `join`.

        A job without a record has the state `unknown`. With `max_bytes` those past so many bytes of
        outcomes, but never the first, are not read: their state is `later`.
        """
        found: dict[str, Outcome] = {}
        left = list(ids)
        while left:
            arguments: list[Any] = [emitter, max_bytes or _LOOK_BYTES, len(left)]
            arguments.extend(chain.from_iterable((each, int(join)) for each in left))
            flat = await self._caller.script("look", arguments, deadline=deadline)
            later: list[str] = []
            for i, job in enumerate(left):
                state, text = flat[2 * i], flat[2 * i + 1]
                if state == "later" and max_bytes is None:
                    later.append(job)
                else:
                    found[job] = Outcome(job, state, text)
            left = later
        return [found[each] for each in ids]

    async def rearm(self, pool: str, queues: Sequence[str]) -> None:
        """Put wakes back that this worker cannot use now."""
        await self._caller.script("post", ["wake", pool, len(queues), *queues])

    async def poke(self, worker: str, message: str) -> None:
        """Wake one worker's blocked read with a message."""
        await self._caller.script("post", ["control", worker, 1, message])

    async def add_group(self, queue: str, group: str, *, deadline: float | None = None) -> None:
        """Make a group exist before its first worker starts."""
        await self._caller.script("group", [queue, group], deadline=deadline)


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

    async def poll(self) -> tuple[str, str] | None:
        """As `wait`, without waiting and for a control message only."""
        reply = await self._channel.call("ZPOPMIN", self._control)
        return ("control", reply[0]) if reply else None

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

    def renew(
        self, leases: Sequence[LeaseRow], *, worker: str, lease_ms: int, lag_ms: int
    ) -> tuple[list[str], list[str]]:
        """Renew leases; returns the ids that are lost, and those that were cancelled. One try, which
        may be repeated. `lag_ms` is how far behind the worker's event loop is.
        """
        packed = pack(["", worker, lag_ms, lease_ms, len(leases), *chain.from_iterable(leases)])
        script = load_script("renew")
        try:
            answer = self._call("EVALSHA", script.digest, 1, self._root, packed)
        except StoreRefused as error:
            if error.code != "NOSCRIPT":
                raise
            answer = self._call("EVAL", script.source, 1, self._root, packed)
        if not isinstance(answer, list) or len(both := cast("list[list[str]]", answer)) != 2:
            self.close()
            raise StoreCorrupt(f"the server at {self._connector.address} answered a renewal with {answer!r}")
        return both[0], both[1]

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


def _verdicts(flat: list[Any]) -> list[AddVerdict]:
    return [AddVerdict(*flat[i : i + 5]) for i in range(1, len(flat), 5)]


def _plain_rows(rows: Sequence[AddRow]) -> list[PlainRow]:
    """The rows in their short form if all of them ask for nothing but perhaps a reply, else none."""
    plain: list[PlainRow] = []
    for row in rows:
        if row[3:9] != _NOTHING:
            return []
        plain.append(PlainRow(row[0], row[1], row[2], row[9]))
    return plain


def parse_info(text: str) -> dict[str, str]:
    """The facts of an INFO, by their names."""
    lines = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {name: value.strip() for name, _, value in lines}
