"""One shard under test: rows with defaults, a clock that the test moves, and access to the stored keys."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from drivers.records import change_record

from eventbus.store.calls.queries import Cursor
from eventbus.store.keys import TIME_DIGITS
from eventbus.store.scripting.packing import AddRows, Append, TurnRequest
from eventbus.store.scripting.script_rows import (
    AddQueue,
    AddRow,
    AddVerdict,
    AnnounceQueue,
    CancelRow,
    ClaimRow,
    Idle,
    LeaseRow,
    NoteRow,
    QueueLook,
    SettleRow,
    StallRow,
    SweepQueue,
    TurnAnswer,
    TurnQueue,
)
from eventbus.store.store import Store

__all__ = ["CANCELLED", "LEASE", "QUEUE", "START", "Shard", "add_queue", "row", "settle", "turn_queue"]

QUEUE = "event.order.placed"
START = 1_800_000_000_000
LEASE = 10_000
CANCELLED = '{"type":"JobCancelled","message":"no longer"}'
_FAR = 10.0**12
_DAY = 86_400_000


def add_queue(name: str = QUEUE, *, has_default: int = 1, max_waiting: int | str = "") -> AddQueue:
    return AddQueue(name, has_default, max_waiting)


def row(job: str, **given: Any) -> AddRow:
    """Make an emission without options, except that it wants a reply."""
    plain = AddRow(job, 1, f'{{"d":"{job}"}}', "", "", "", "", 0, 0, 1, 0)
    return plain._replace(**given)


def turn_queue(name: str = QUEUE, quota: int = 1000, **given: Any) -> TurnQueue:
    return TurnQueue(name, quota, 10_000, 3_600_000, 10_000, 7 * _DAY, _DAY)._replace(**given)


def settle(claim: ClaimRow, token: str, state: str = "completed", text: str = "1", **given: Any) -> SettleRow:
    return SettleRow(claim.id, token, state, "", text, 0)._replace(**given)


class Shard:
    """The store, called with the test's own time."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now = START
        self.widths: list[int] = []
        """How many jobs an emission made in each queue of the last add."""
        self.stalls: list[StallRow] = []
        self.apart: list[str] = []
        """The stalled jobs of the last rescue."""
        self.cancelled: list[str] = []
        """The jobs that the last renewal reported as cancelled."""
        self.returned: list[str] = []
        """The jobs that the last renewal gave back."""
        self._calls: Counter[str] = Counter()

    # operations

    async def add(
        self,
        *rows: AddRow,
        queues: Sequence[AddQueue] = (add_queue(),),
        emitter: str = "em",
        attendance: str = "",
    ) -> list[AddVerdict]:
        answer = await self.store.add(
            emitter, queues, AddRows(rows), deadline=_FAR, attendance=attendance, now=self.now
        )
        self.widths = answer.widths
        return answer.verdicts

    async def turn(
        self,
        *settles: SettleRow,
        worker: str = "w",
        want: int = 1000,
        queues: Sequence[TurnQueue] = (turn_queue(),),
        max_bytes: int = 1 << 20,
        call: int | None = None,
        suspects: int = 1000,
        watched: int = 0,
        is_alone: bool = False,
        pool: str = "pool",
        idle: Idle = 0,
        appends: Sequence[Append] = (),
    ) -> TurnAnswer:
        """The worker's next turn, or its turn number `call`."""
        self._calls[worker] = self._calls[worker] + 1 if call is None else call
        request = TurnRequest(
            lane=worker,
            call=self._calls[worker],
            lease_ms=LEASE,
            pool=pool,
            idle=idle,
            want=want,
            suspects=suspects,
            watched=watched,
            is_alone=is_alone,
            max_bytes=max_bytes,
            queues=queues,
            settles=settles,
            appends=appends,
        )
        return await self.store.turn(request, now=self.now)

    async def append(
        self,
        claim: ClaimRow | str,
        token: str,
        place: int,
        *entries: str,
        live: Mapping[str, str] | None = None,
        taken: Sequence[str] = (),
        worker: str = "w",
    ) -> tuple[str, int]:
        """Append to a journal; return the word and the length of a refusal, `ok` and 0 otherwise."""
        job = claim if isinstance(claim, str) else claim.id
        rows = [Append(job, token, place, entries, live or {}, taken)]
        answer = await self.turn(want=0, worker=worker, appends=rows)
        return next(((each.word, each.length) for each in answer.refusals), ("ok", 0))

    async def signal(
        self, job: str, name: str = "go", payload: str = "1", *, signal: str | None = None
    ) -> str:
        """Send a new signal, or the one that `signal` names once more."""
        return await self.store.journals.signal(
            job,
            signal=signal or secrets.token_hex(4),
            name=name,
            payload=payload,
            deadline=_FAR,
            now=self.now,
        )

    async def settle_one(self, job: str, *, worker: str = "w", text: str = "1", pool: str = "pool") -> str:
        return await self.store.settle_one(
            worker=worker,
            job=job,
            text=text,
            pool=pool,
            keep=10_000,
            age=3_600_000,
            deadline=_FAR,
            now=self.now,
        )

    def calls(self, worker: str) -> int:
        """The number of the worker's last turn."""
        return self._calls[worker]

    async def run(self, *states: str, text: str = "1", worker: str = "w", **given: Any) -> list[ClaimRow]:
        """Claim the ready jobs and settle them to `states` in order; the last state is for all
        further jobs.
        """
        answer = await self.turn(worker=worker)
        ends = [*states, *[states[-1]] * len(answer.claims)]
        rows = [settle(each, answer.token, ends[i], text, **given) for i, each in enumerate(answer.claims)]
        await self.turn(*rows, worker=worker, want=0)
        return answer.claims

    async def rescue(
        self, *, limit: int = 100, max_stalls: int = 3, is_heard: bool = True
    ) -> tuple[int, list[str], list[str]]:
        """Rescue, as if workers had reached the server all the time, unless `is_heard` is False.

        Returns the ms until the next rescue, the re-queued ids and the ended ids; `stalls` has the details,
        and `apart` the ids of damaged jobs that were set apart.
        """
        if is_heard:
            await self.command("HSET", self.shard_key("clock"), "heard", self.now, "grace", 0)
        pause, self.stalls = await self.store.rescue(
            lease_ms=LEASE, limit=limit, max_stalls=max_stalls, key_ttl_ms=_DAY, now=self.now
        )
        back = [each.id for each in self.stalls if each.verdict == "rescued"]
        self.apart = [each.id for each in self.stalls if each.verdict == "apart"]
        ended = [each.id for each in self.stalls if each.verdict not in ("rescued", "apart")]
        return pause, back, ended

    async def cancel(
        self, *jobs: str, queue: str = "", text: str = CANCELLED, call: str | None = None, of: str = ""
    ) -> list[str]:
        """Send a new cancel request, or repeat the one that `call` names."""
        rows = [CancelRow(job, queue, call or secrets.token_hex(8), text, of) for job in jobs]
        return await self.store.cancel(rows, key_ttl_ms=_DAY, now=self.now)

    async def renew(
        self, *leases: tuple[str, str], worker: str = "w", lag: int = 0, calls: tuple[int, int] = (0, 0)
    ) -> list[str]:
        """Renew through the lease thread's script, at the test's time.

        `calls`: the turns, one for each lane, whose answers the worker knows.
        """
        flat: list[Any] = [self.now, worker, lag, LEASE, *calls, len(leases)]
        for lease in leases:
            flat.extend(LeaseRow(*lease))
        lost, self.cancelled, self.returned = await self.script("renew", flat)
        return lost

    async def note(self, job: str, token: str, progress: str) -> list[str]:
        return await self.store.note([NoteRow(job, token, progress)])

    async def announce(
        self,
        pool: str = "pool",
        queue: str = QUEUE,
        group: str = "",
        *,
        worker: str = "w",
        former: str = "",
        unpark: bool = False,
        limit: str = "",
        keeps: str = "",
        since: int | str = 0,
    ) -> int:
        name = f"{queue}@{group}" if group else queue
        taken, _, _ = await self.store.announce(
            pool=pool,
            worker=worker,
            former=former,
            left=[name] if former else [],
            queues=[AnnounceQueue(name, queue, group, limit, keeps)],
            unpark=unpark,
            since=since,
            now=self.now,
        )
        return taken

    async def leave(
        self, pool: str = "pool", *queues: str, worker: str = "w", jobs: Sequence[str] = ()
    ) -> int:
        return await self.store.presence.leave(worker, pool, queues or (QUEUE,), jobs=jobs, now=self.now)

    async def survey(self, *queues: str, asker: str = "") -> list[QueueLook]:
        return await self.store.presence.survey(queues or (QUEUE,), asker=asker, now=self.now)

    async def sweep(self, *queues: SweepQueue, limit: int = 100) -> int:
        return await self.store.sweep(queues, limit=limit, now=self.now)

    # what the server has

    async def command(self, *command: Any) -> Any:
        return await self.store._caller.command(*command)  # pyright: ignore[reportPrivateUsage]

    async def script(self, name: str, arguments: list[Any]) -> Any:
        return await self.store._caller.script(name, arguments)  # pyright: ignore[reportPrivateUsage]

    def key(self, kind: str, name: str) -> str:
        return self.store.keys.of(kind, name)

    def shard_key(self, kind: str) -> str:
        return self.store.keys.shard_key(kind)

    async def record(self, job: str) -> dict[str, str]:
        """Return the record, with the state `active` and the token of its holder if somebody holds
        the job.
        """
        look = await self.store.inspection.job(job)
        texts = {"body": look.body, "result": look.text}
        return look.fields | {name: text for name, text in texts.items() if text}

    async def change(self, job: str, **fields: Any) -> None:
        """Change fields of a record, as no call does."""
        await self.command(*change_record(self.key("job", job), **fields))

    async def cut(self, job: str, length: int) -> None:
        """Cut a record off behind `length` bytes."""
        script = "redis.call('SET', KEYS[1], string.sub(redis.call('GET', KEYS[1]), 1, ARGV[1]))"
        await self.command("EVAL", script, 1, self.key("job", job), length)

    async def state(self, job: str) -> str | None:
        return (await self.record(job)).get("state")

    async def held(self, worker: str = "w") -> list[str]:
        """Return the jobs that a worker holds."""
        return sorted(
            each for each in await self.command("HKEYS", self.key("held", worker)) if not each.startswith("#")
        )

    async def lease_end(self, worker: str = "w") -> int | None:
        """Return when the leases of a worker end."""
        return await self.score("workers", "", worker)

    async def members(self, kind: str, name: str = QUEUE) -> list[str]:
        """Return the members of a sorted set, or the jobs that completed, in order; `name` is empty for a set
        that each shard has once.
        """
        where = self.key(kind, name) if name else self.shard_key(kind)
        if kind == "completed":
            return [entry[TIME_DIGITS:] for entry in await self.command("LRANGE", where, 0, -1)]
        if kind == "ready":
            page = await self.store.inspection.jobs(name, "waiting", cursor=Cursor(), limit=10_000)
            return [each.id for each in page.jobs]
        return await self.command("ZRANGE", where, 0, -1)

    async def score(self, kind: str, name: str, member: str) -> int | None:
        where = self.key(kind, name) if name else self.shard_key(kind)
        if kind == "completed":
            entries = await self.command("LRANGE", where, 0, -1)
            return {each[TIME_DIGITS:]: int(each[:TIME_DIGITS]) for each in entries}.get(member)
        score = await self.command("ZSCORE", where, member)
        return None if score is None else int(float(score))

    async def ttl(self, kind: str, name: str) -> int:
        """Return the milliseconds until it expires; -1 without an expiry, -2 without the key."""
        return await self.command("PTTL", self.key(kind, name))

    async def open_replies(self, emitter: str = "em") -> None:
        await self.command("XADD", self.key("replies", emitter), "*", "open", "")
        await self.command("EXPIRE", self.key("replies", emitter), 600)

    async def replies(self, emitter: str = "em") -> list[list[tuple[str, str, int, str]]]:
        """Return the reply stream of an emitter: for each entry its rows of job, state, carried, text."""
        entries = await self.command("XRANGE", self.key("replies", emitter), "-", "+")
        told: list[list[tuple[str, str, int, str]]] = []
        for _, (field, packed) in entries:
            if field == "d":
                flat = msgspec.msgpack.decode(packed.encode("utf-8", "surrogateescape"), type=list[Any])
                told.append(
                    [(flat[i], flat[i + 1], flat[i + 2], flat[i + 3]) for i in range(0, len(flat), 4)]
                )
        return told
