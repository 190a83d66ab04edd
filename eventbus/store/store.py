"""The store: every operation on the server, with text and numbers in and out.

Each method calls a script on the keys of one shard, or a plain command; both may be repeated.
No bytes and no exception of the client library leave this package.

Deadlines are monotonic seconds; with None a call is repeated for ever. Every method raises
StoreUnavailable past its deadline, and StoreRefused for a refusal that repeating cannot change.
`now` is the time in ms that a test passes; with `''` a script takes the server's time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from eventbus.errors import StoreError, StoreRefused
from eventbus.store.bounds import PAGE_BYTES
from eventbus.store.calls.control_store import ControlStore
from eventbus.store.calls.group_store import GroupStore
from eventbus.store.calls.history_store import HistoryStore
from eventbus.store.calls.journal_store import JournalStore
from eventbus.store.calls.lease_store import LeaseStore
from eventbus.store.calls.presence_store import PresenceStore
from eventbus.store.calls.queries import QueryStore
from eventbus.store.calls.schedule_store import ScheduleStore
from eventbus.store.calls.tree_store import TreeStore
from eventbus.store.connection.add_gatherer import AddGatherer, AddPart
from eventbus.store.connection.availability import Availability
from eventbus.store.connection.channel import Channel
from eventbus.store.connection.channel_share import ChannelShare
from eventbus.store.connection.connector import Connector
from eventbus.store.connection.functions import Functions, Scripting
from eventbus.store.connection.known_scripts import KnownScripts
from eventbus.store.connection.replication import ReplicatedChannel, warn_without_replica
from eventbus.store.connection.retrying import RetryingCaller, watch_saving
from eventbus.store.connection.wake_reader import WakeReader
from eventbus.store.keys import Keys
from eventbus.store.scripting.packing import AddRows, TurnRequest, join_arguments, read_added, read_turn
from eventbus.store.scripting.script_rows import (
    AddAnswer,
    AddQueue,
    AnnounceQueue,
    CancelRow,
    LineRow,
    NoteRow,
    Outcome,
    StallRow,
    SweepQueue,
    TurnAnswer,
)
from eventbus.store.server_info import failed_saves, parse_info
from eventbus.telemetry.logging import get_logger

SHARD = "0"
"""The name of the only shard."""

_log = get_logger("eventbus.store")

_ANSWER_TIMEOUT = 5.0
OLDEST = (6, 2)  # SMISMEMBER and XTRIM MINID came with it


@dataclass(frozen=True, slots=True)
class _Connection:
    """What the stores over one connection share."""

    channel: Channel
    functions: Functions
    gatherer: AddGatherer
    availability: Availability
    known: KnownScripts
    saving: Availability


class Store:
    """One shard of one server, over one connection that all callers share; also with other stores
    (`share`).
    """

    def __init__(
        self,
        connector: Connector,
        *,
        prefix: str,
        name: str,
        prelude: str = "",
        replicated: bool = False,
        shared: _Connection | None = None,
        scripting: Scripting = "auto",
    ) -> None:
        """With `replicated`, an add counts only once a replica has it. `shared`: see `share`. Tests give a
        `prelude` of scripts.
        """
        self.connector = connector
        self.keys: Keys = Keys(prefix, SHARD)
        self.name = name
        self.scripting: Scripting = scripting
        self._made_with: dict[str, Any] = {
            "prefix": prefix, "name": name, "prelude": prelude, "scripting": scripting,
        }  # fmt: skip
        self._share: ChannelShare | None = None
        if shared is None:
            channel = Channel(connector, name=name, answer_timeout=_ANSWER_TIMEOUT)
            functions, availability = Functions(channel, scripting), Availability(connector.address)
            shared = _Connection(
                channel, functions, AddGatherer(channel, self.keys, functions=functions, prelude=prelude),
                availability, KnownScripts(availability), watch_saving(connector.address),
            )  # fmt: skip
        else:
            self._share = ChannelShare(shared.channel)
            shared.gatherer.stores += 1
        self._connection, self._gatherer, self._saving = shared, shared.gatherer, shared.saving
        self._channel: Channel = self._share or shared.channel
        self.availability: Availability = shared.availability
        options: dict[str, Any] = {
            "prelude": prelude, "functions": shared.functions, "availability": shared.availability,
            "known": shared.known, "saving": shared.saving,
        }  # fmt: skip
        self._caller = RetryingCaller(self._channel, keys=self.keys, **options)
        self._replicated: ReplicatedChannel | None = None
        self._adder: RetryingCaller | None = None
        if replicated:
            self._replicated = ReplicatedChannel(self._channel, touch=self.keys.shard_key("touch"))
            self._adder = RetryingCaller(self._replicated, keys=self.keys, **options)
        self.inspection: QueryStore = QueryStore(self._caller, self.keys)
        self.presence: PresenceStore = PresenceStore(self._caller, self.keys)
        self.groups: GroupStore = GroupStore(self._caller, self.keys)
        self.schedules: ScheduleStore = ScheduleStore(self._caller)
        self.controls: ControlStore = ControlStore(self._caller, self.keys)
        self.history: HistoryStore = HistoryStore(self._caller)
        writer = self._adder or self._caller
        self.trees: TreeStore = TreeStore(self._caller, writer, self.keys)
        self.journals: JournalStore = JournalStore(self._caller, writer, self.keys)

    def share(self, *, replicated: bool = False) -> Store:
        """Return a store over this one's connection; its `aclose` ends its own calls alone. Close it before
        this one.
        """
        return Store(self.connector, **self._made_with, replicated=replicated, shared=self._connection)

    @property
    def address(self) -> str:
        """The server's address, without a password."""
        return self.connector.address

    @property
    def caller(self) -> RetryingCaller:
        """What repeats the calls of this store, for its streams."""
        return self._caller

    @property
    def is_connected(self) -> bool:
        """Whether the connection that all callers share is open now."""
        return self._channel.is_connected

    async def start(
        self, *, deadline: float | None, allow_eviction: bool = False, reads_only: bool = False
    ) -> None:
        """Connect, and check that the server does not lose the jobs that it is given. With `reads_only` write
        nothing.

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
        self._note_saving(facts)
        if self._replicated is not None:
            await self._replicated.check_rights(deadline=deadline)
            warn_without_replica(facts, self.address)
        if not reads_only and await self._caller.open_shard(deadline=deadline):
            _log.warning(
                "the server has keys of the first edition of the store under this prefix, "
                "which this version does not read",
                keys=f"{self.keys.first_edition}:*",
                remedy="let workers of the older version finish its jobs, then delete these keys",
            )

    async def check_saving(self) -> None:
        """Ask whether the server can save its data; what changed is logged. Raises StoreError."""
        self._note_saving(parse_info(await self._caller.command("INFO", "persistence")))

    def _note_saving(self, facts: Mapping[str, str]) -> None:
        failed = failed_saves(facts)
        if failed:
            self._saving.note_failure(StoreError(f"{', '.join(failed)}; its disk may be full or read-only"))
        elif self._saving.is_lost:
            self._saving.note_answer()

    async def aclose(self) -> None:
        """Close the connection, and leave the embedded server if the URL names one. Idempotent.

        A share leaves both to the store that it shares.
        """
        if self._share is not None and not self._share.is_closed:
            self._gatherer.stores -= 1
        await self._channel.aclose()
        if self._share is None:
            await self.connector.aclose()

    def open_wakes(self, *, pool: str, worker: str) -> WakeReader:
        """Return a reader of one worker's wakes and messages, with its own connection."""
        return WakeReader(
            self.connector,
            self._channel,
            name=f"{self.name}-wake",
            wake=self.keys.wake(pool),
            control=self.keys.control(worker),
            due=self.keys.shard_key("due"),
            held=self.keys.of("held", worker),
        )

    def open_leases(self, *, timeout: float) -> LeaseStore:
        """Return a store for the lease thread, with its own blocking connection."""
        return LeaseStore(
            self.connector, self.keys, name=f"{self.name}-lease", timeout=timeout, scripting=self.scripting
        )

    def add(
        self,
        emitter: str,
        queues: Sequence[AddQueue],
        rows: AddRows,
        *,
        deadline: float,
        attendance: str = "",
        number: int = 0,
        now: int | str = "",
    ) -> Awaitable[AddAnswer]:
        """Add emissions. The answer has a verdict for each row that did not simply become a new job.

        Calls with a `number` are sent in its order, also when they are repeated. `attendance`: under which
        the emitter awaits what it adds, `''` if it has said that lately (`emit.attendance`).

        If a connection is open, the call is written before this returns, without a task; among several
        shares, in the next step of the loop, with what the others add. A call that waits for a replica needs
        a task.
        """
        counts = (len(rows), 0) if rows.is_plain else (0, len(rows))
        head = (now, emitter, attendance, len(queues), len(rows.timeouts), *counts)
        make = partial(join_arguments, head, queues, rows)
        options: dict[str, Any] = {
            "deadline": deadline, "read": partial(read_added, len(queues)), "number": number,
        }  # fmt: skip
        if self._adder is not None:
            return self._adder.start("add", make(), **options)
        is_alone = now != "" or (number > 0 and not self._caller.line.is_empty)
        if self._share is None or not self._gatherer.is_needed or is_alone or self._share.is_closed:
            return self._caller.start("add", make(), **options)
        call = self._caller.join("add", make, **options)
        part = AddPart(self, emitter, queues, rows, call=call, sink=self._share.own(call))
        part.attendance = attendance
        self._gatherer.put(part)
        return call.result

    async def turn(
        self, request: TurnRequest, *, deadline: float | None = None, now: int | str = ""
    ) -> TurnAnswer:
        """Settle, promote and claim in one call. A repeated turn is recognized by its number, and answered as
        before.
        """
        answer = await self._caller.script("turn", request.flatten(now), deadline=deadline)
        return read_turn(answer, token=f"{request.lane}:{request.call}")

    def settle_one(
        self,
        *,
        worker: str,
        job: str,
        text: str,
        pool: str,
        keep: int,
        age: int,
        deadline: float,
        now: int | str = "",
    ) -> asyncio.Future[str]:
        """Settle a job that was handed over and completed. Return `done`, `lost`, or `long`: a turn must
        settle it.

        `pool` is not empty if the worker is idle now. `keep` and `age` (ms) are those of completed jobs of
        its queue. If a connection is open, the call is written before this returns, without a task.
        """
        arguments: list[Any] = [now, worker, job, text, pool, keep, age]
        return self._caller.start("settle_one", arguments, deadline=deadline, read=str)

    async def rescue(
        self, *, lease_ms: int, limit: int, max_stalls: int, key_ttl_ms: int, now: int | str = ""
    ) -> tuple[int, list[StallRow]]:
        """End leases that ran out, at most `limit`. Return the ms until the leases of the next worker end, -1
        if there is none, and a row for each job whose lease ended.
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
        """Cancel jobs, each with the jobs of its groups, and return one word for each row.

        The word is the first that is true of one of these jobs: `ended` (cancelled now), `asked` (its worker
        was told), `over` (it had ended before), `other` (it is open, and not in the state that the row names)
        or `unknown`.
        """
        arguments: list[Any] = [now, key_ttl_ms, len(rows), *chain.from_iterable(rows)]
        return await self._caller.script("cancel", arguments, deadline=deadline)

    async def announce(
        self,
        *,
        pool: str,
        worker: str,
        queues: Sequence[AnnounceQueue],
        unpark: bool,
        former: str = "",
        left: Sequence[str] = (),
        since: int | str = "",
        facts: Sequence[Any] = (),
        now: int | str = "",
    ) -> tuple[int, int, bool]:
        """Announce that `worker` of `pool` serves `queues`.

        Return how many parked jobs were re-queued, since when it is there, and whether it was known before.

        Only `unpark` re-queues any. `former` is the pool that the worker leaves by this call, or `''`, and
        `left` its queues. `since` is what the first call returned, `''` in that one: limits that an older
        worker declares do not overwrite those of a newer one. `facts` is what the worker says of itself,
        field and value in turn.
        """
        arguments: list[Any] = [now, pool, worker, former, int(unpark), since, facts, len(queues), len(left)]
        arguments.extend(chain(chain.from_iterable(queues), left))
        taken, first, was_known = await self._caller.script("announce", arguments)
        return taken, first, was_known == 1

    async def sweep(self, queues: Sequence[SweepQueue], *, limit: int, now: int | str = "") -> int:
        """Remove jobs past their retention, at most `limit` for each queue and state. Return how many."""
        arguments: list[Any] = [now, limit, len(queues)]
        arguments.extend(chain.from_iterable(queues))
        return await self._caller.script("sweep", arguments)

    async def note(
        self, notes: Sequence[NoteRow], lines: Sequence[LineRow] = (), *, now: int | str = ""
    ) -> list[str]:
        """Record progress, and lines that jobs keep. Return the ids of the jobs whose lease is lost."""
        rows = chain.from_iterable((*notes, *lines))
        return await self._caller.script("note", [now, len(notes), len(lines), *rows])

    async def look(
        self,
        emitter: str,
        ids: Sequence[str],
        *,
        join: bool,
        max_bytes: int | None = None,
        attendance: str = "",
        deadline: float | None = None,
        now: int | str = "",
    ) -> list[Outcome]:
        """Look jobs up, and return their outcomes in the order of `ids`.

        With `join`, `emitter` becomes a waiter of each job that is open, and awaits it as `attendance`. A job
        without a record has the state `unknown`. Once `max_bytes` of outcomes are read, the state of the
        remaining jobs is `later`; the first job is always read.
        """
        found: dict[str, Outcome] = {}
        left = list(ids)
        while left:
            arguments: list[Any] = [now, emitter, attendance, max_bytes or PAGE_BYTES, len(left)]
            arguments.extend(chain.from_iterable((job_id, int(join)) for job_id in left))
            flat = await self._caller.script("look", arguments, deadline=deadline)
            later: list[str] = []
            for i, job in enumerate(left):
                state, text = flat[2 * i], flat[2 * i + 1]
                if state == "later" and max_bytes is None:  # past our own bound: the next call reads it
                    later.append(job)
                else:
                    found[job] = Outcome(job, state, text)
            left = later
        return [found[job_id] for job_id in ids]

    async def rearm(self, pool: str, queues: Sequence[str]) -> None:
        """Put back wakes that this worker cannot use now, for the other workers of `pool`."""
        await self._caller.script("post", ["wake", pool, len(queues), *queues])

    async def poke(self, worker: str, message: str) -> None:
        """Send a control message to one worker, which ends its blocked read."""
        await self._caller.script("post", ["control", worker, 1, message])
