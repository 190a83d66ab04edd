"""The schedules of a provider: `provider.schedules` makes them, finds them and changes them.

Declared schedules (`every`, `cron`) are kept in the server by the workers of the program: a worker that
starts makes them what the program says. A schedule that is added at run time (`add`) stays until it is
removed. Who fires: `schedules.runner`.

What must always hold: a schedule that could not fire is refused before anything is stored; a change that
meets another one looks again, so each decides by what it saw.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Mapping
from datetime import datetime
from typing import Any, TypeVar, Unpack

import msgspec

from eventbus.emit.route import Route, Routes
from eventbus.errors import DefinitionError, ProviderStopped, StoreError, UsageError
from eventbus.lifecycle import Lifecycle
from eventbus.model import chance, clock
from eventbus.model.codec import Codec
from eventbus.model.durations import Duration, milliseconds
from eventbus.model.event import Event
from eventbus.model.message import NOT_HIDDEN
from eventbus.model.names import check_event_name, shown
from eventbus.model.old_name import warn_of_old_name
from eventbus.schedules.options import (
    ScheduleKeywords,
    ScheduleReport,
    make_plan,
    make_report,
    place,
    preview,
    read_plan,
)
from eventbus.schedules.plan import Plan, ScheduledRoot, check_id, slot_digest
from eventbus.schedules.timetable import COUNTED
from eventbus.settings.settings import Settings
from eventbus.store.calls.schedule_store import Word
from eventbus.store.keys import payload_digest
from eventbus.store.scripting.packing import AddRows
from eventbus.store.scripting.script_rows import REUSE, AddQueue, AddRow, ScheduleRow, TimeoutRow
from eventbus.store.store import Store
from eventbus.telemetry.logging import get_logger
from eventbus.telemetry.propagation import current
from eventbus.telemetry.spans import baggage_around, trace_around

P = TypeVar("P")

_log = get_logger("eventbus.schedules")
_CHUNK = 100


class Schedule:
    """One schedule in the server, from `provider.schedules`.

    Each method raises UsageError if there is no such schedule any more, StoreError, and ProviderStopped.
    """

    def __init__(self, client: ScheduleClient, schedule: str) -> None:
        self._client = client
        self.id: str = schedule

    async def report(self) -> ScheduleReport:
        """Return where it stands."""
        return make_report((await self._client.find_row(self.id))[1], await self._client.read_serving())

    async def pause(self, reason: str = "") -> None:
        """Fire no more until `resume`. Slots in between are not missed. `reason` is kept and shown."""
        await self._client.change("pause", self.id, reason=reason or "paused by hand")

    async def resume(self) -> None:
        """Fire again, from the next slot on. Does nothing if it is not paused."""
        await self._client.change("resume", self.id)

    async def remove(self) -> None:
        """Remove it. Jobs that it has made stay."""
        await self._client.change("remove", self.id)

    async def run_now(self) -> str:
        """Make a job now, whatever the slots are; return its id. It counts for no overlap and no limit."""
        now, row, plan = await self._client.find(self.id)
        job = plan.job(self.id, row.gen, now, chance.token(6))
        await self._client.add_jobs(
            plan,
            [AddRow(job, 1, plan.body(self.id, now, job), "", "", "", "", 0, 0, 0, 0, "", plan.limit_key)],
        )
        return job

    def trigger(self) -> Coroutine[Any, Any, str]:
        """Do what `run_now` does; the old name, for one release."""
        warn_of_old_name("schedule.trigger", "schedule.run_now")
        return self.run_now()

    async def backfill(self, since: datetime, until: datetime) -> list[str]:
        """Make a job for each slot from `since` to `until` that has none, also if it was missed; return the
        slots' jobs.

        At most 1,000 slots; more are refused with DefinitionError, before any job is made, and so is a
        `since` after `until`.
        """
        first, last = clock.to_unix_ms(since), clock.to_unix_ms(until)
        if last < first:
            raise DefinitionError(
                f"expected the begin of a backfill before its end, got: {since} and {until}"
            )
        _, row, plan = await self._client.find(self.id)
        slots: list[int] = []
        slot = plan.table.next_after(first - 1)
        while slot is not None and slot <= last:
            slots.append(slot)
            if len(slots) > COUNTED:
                raise DefinitionError(
                    f"expected at most {COUNTED} slots to backfill, got more: from {since} to {until}"
                )
            slot = plan.table.next_after(slot)
        digest = payload_digest(bytes(plan.payload))
        jobs = [(slot, plan.job(self.id, row.gen, slot)) for slot in slots]
        rows = [
            AddRow(
                job, 1, plan.body(self.id, slot, job), slot_digest(self.id, slot), digest, "", "", 0, 0, 0,
                REUSE, "", plan.limit_key,
            )
            for slot, job in jobs
        ]  # fmt: skip
        known: dict[str, str] = {}
        for begin in range(0, len(rows), _CHUNK):
            known |= await self._client.add_jobs(plan, rows[begin : begin + _CHUNK])
        return [known.get(each.id, each.id) for each in rows]

    async def next(self, count: int = 5) -> list[datetime]:
        """Return the next slots, in the time zone of the schedule, as if it were not paused."""
        now, _, plan = await self._client.find(self.id)
        return preview(plan.table, now, count)


class ScheduleClient:
    """Makes, finds and changes schedules.

        provider.schedules.cron("0 9 * * mon-fri", DailyReport, id="daily", tz="America/New_York")  # declared
        await provider.schedules.add(DailyReport, id="daily:acme", cron="0 9 * * *", payload=Report("acme"))

    Each awaited method raises StoreError when the server does not answer in time, and ProviderStopped.
    """

    def __init__(self, life: Lifecycle, settings: Settings, routes: Routes) -> None:
        self.version: int = 0
        """Raise this with each release that changes what it declares: workers of an older release then leave
        it.
        """
        self._life = life
        self._settings = settings
        self._routes = routes
        self._declared: dict[str, tuple[Plan, bool]] = {}
        life.on_worker, life.on_serving = self.declare_all, self.warn_unserved

    def cron(
        self,
        cron: str,
        event: Event[P, Any] | str | ScheduledRoot,
        *,
        id: str,  # noqa: A002
        payload: Any = None,
        **options: Unpack[ScheduleKeywords],
    ) -> None:
        """Declare a schedule that emits an event at the times of a cron expression.

        The workers that start from now on make the schedule of this `id` what is declared. Raises
        DefinitionError for an expression that cannot be read or never fires, an unknown zone or option, and
        PayloadError.
        """
        self._declare(event, id, payload, {"cron": cron}, options)

    def every(
        self,
        every: Duration,
        event: Event[P, Any] | str | ScheduledRoot,
        *,
        id: str,  # noqa: A002
        payload: Any = None,
        **options: Unpack[ScheduleKeywords],
    ) -> None:
        """Declare a schedule that emits an event each `every`, at least 0.1 s, counted from `start` or its
        first worker.

        As `cron`.
        """
        self._declare(event, id, payload, {"every": milliseconds(every, setting="every")}, options)

    async def add(
        self,
        event: Event[P, Any] | str | ScheduledRoot,
        *,
        id: str,  # noqa: A002
        cron: str = "",
        every: Duration | None = None,
        payload: Any = None,
        **options: Unpack[ScheduleKeywords],
    ) -> Schedule:
        """Make a schedule, or change the one of this `id`; return it. Exactly one of `cron` and `every` is
        given.

        The same again changes nothing. A change of the times begins anew from now; a change of anything else
        keeps the next slot. A declared one stays declared: the next worker of its program makes it what that
        says. Each job has the correlation id and the trace of the call that made the schedule or changed it
        last, and its meta, with that of `provider.context`. Another correlation id or trace alone is no
        change. Raises as the method `cron`.
        """
        table = {"cron": cron, "every": 0 if every is None else milliseconds(every, setting="every")}
        plan = self._plan(event, payload, table, options)
        await self._put(check_id(id), plan, immediately=bool(options.get("immediately")))
        return Schedule(self, id)

    async def remove(self, id: str) -> bool:  # noqa: A002
        """Remove a schedule; return whether there was one."""
        return await self.change("remove", check_id(id), is_lenient=True)

    def get(self, id: str) -> Schedule:  # noqa: A002
        """Return a schedule by its id. Whether there is one is asked by its methods."""
        return Schedule(self, check_id(id))

    async def list(self) -> list[ScheduleReport]:
        """Return all schedules, the next one first; those that are paused or at their end come last."""
        serving = await self.read_serving()
        return [make_report(row, serving) async for row in self._rows()]

    def __aiter__(self) -> AsyncIterator[Schedule]:
        return (Schedule(self, row.id) async for row in self._rows())

    # For workers and for `Schedule`.

    async def declare_all(self) -> None:
        """Make the declared schedules what they are in this program; a worker that starts calls this.

        One that this program declared before and does not any more is removed, if `version` is newer. Raises
        UsageError if there is a version, but the provider has no name.
        """
        if self.version and not self._settings.is_named:
            raise UsageError(
                f"schedules.version is {self.version}, but the provider has no name, so that no release "
                "knows what an earlier "
                'one declared; give it one: EventProvider(name="billing"), or EVENTBUS_NAME'
            )
        for schedule, (plan, immediately) in self._declared.items():
            if not await self._put(schedule, plan, owner=self._settings.name, immediately=immediately):
                _log.warning(
                    "schedule left as a newer release declares it", schedule=schedule, version=self.version
                )
        if not self._declared and not self.version:
            return
        async for row in self._rows():
            is_ours = row.owner == self._settings.name and row.id not in self._declared
            if is_ours and int(row.version) < self.version:
                await self.change("remove", row.id, is_lenient=True, is_declaring=True)

    async def warn_unserved(self) -> None:
        """Log the declared schedules that nobody handles; a worker calls this once it serves. Does not raise.

        Another program may be about to start that does. So it is a warning, and nothing else changes.
        """
        if not self._declared:
            return
        try:
            serving = await self.read_serving()
        except (StoreError, ProviderStopped):
            return
        for schedule, (plan, _) in self._declared.items():
            if not serving.get(plan.queue, 0):
                _log.warning("schedule that nobody handles", schedule=schedule, queue=plan.queue)

    async def read_serving(self) -> Mapping[str, int]:
        """Return how many live workers serve each queue, or one of its groups."""
        return await self._store.inspection.roster.serving(deadline=self._settings.deadline())

    async def find(self, schedule: str) -> tuple[int, ScheduleRow, Plan]:
        """Return the server's time, ms, and a schedule. Raises UsageError if there is none, or it cannot be
        read.
        """
        now, row = await self.find_row(schedule)
        return now, row, read_plan(row)

    async def find_row(self, schedule: str) -> tuple[int, ScheduleRow]:
        """Return the server's time, ms, and a schedule as it is kept. Raises UsageError if there is none."""
        page = await self._store.schedules.look(schedule, deadline=self._settings.deadline())
        if not page.rows:
            raise UsageError(f"there is no schedule {schedule!r}")
        return page.now, page.rows[0]

    async def change(
        self,
        word: Word,
        schedule: str,
        *,
        reason: str = "",
        is_lenient: bool = False,
        is_declaring: bool = False,
    ) -> bool:
        """Pause, resume or remove a schedule; return whether there was one. Unless `is_lenient`, UsageError
        if not.

        `is_declaring`: this program's declarations want it, so a newer release may refuse.
        """
        while True:
            try:
                now, row = await self.find_row(schedule)
            except UsageError:
                if is_lenient:
                    return False
                raise
            plan = read_plan(row) if word == "resume" else None
            slot = plan.table.next_after(now) if plan else None
            answer, _ = await self._store.schedules.change(
                word,
                schedule,
                seen=row.gen,
                seen_slot=row.slot,
                slot="" if slot is None else slot,
                due="" if slot is None or not plan else plan.table.due(slot, schedule),
                owner=self._settings.name if is_declaring else "",
                version=self.version if is_declaring else 0,
                reason=reason,
                queue=plan.queue if plan else "",
                deadline=self._settings.deadline(),
            )
            if (
                answer == "unknown" and word == "remove"
            ):  # it was seen: a call whose answer was lost removed it
                return True
            if answer not in ("stale", "unknown"):
                return True

    async def add_jobs(self, plan: Plan, rows: list[AddRow]) -> dict[str, str]:
        """Add jobs of slots; return for those that were not made, because the slot has a job, that job."""
        known: dict[str, str] = {}
        while rows:
            queue = AddQueue(plan.queue, int(plan.has_default), "", int(plan.root is not None))
            packed = AddRows(rows)
            if plan.root and plan.root.timeout:
                packed.timeouts += [TimeoutRow(place, plan.root.timeout) for place in range(len(rows))]
            answer = await self._store.add("", [queue], packed, deadline=self._settings.deadline())
            later: list[AddRow] = []
            for verdict in answer.verdicts:
                row = rows[verdict.place]
                if verdict.word == "later":
                    later.append(row)
                elif verdict.word == "foreign":
                    raise StoreError(f"the queue {plan.queue} cannot be written: {verdict.text}")
                else:
                    known[row.id] = verdict.job
            rows = later
        return known

    @property
    def _store(self) -> Store:
        self._life.running("use schedules")
        assert self._life.store is not None  # noqa: S101  (started)
        return self._life.store

    async def _rows(self) -> AsyncIterator[ScheduleRow]:
        # Those that fire meanwhile move behind the others, so some may be seen twice, and others not at the
        # first time.
        seen, first, is_new = set[str](), 0, False
        while True:
            page = await self._store.schedules.look(first=first, deadline=self._settings.deadline())
            for row in page.rows:
                if row.id not in seen:
                    seen.add(row.id)
                    is_new = True
                    yield row
            first += len(page.rows)
            if page.rows and first < page.total:
                continue
            if len(seen) >= page.total or not is_new:
                return
            first, is_new = 0, False

    def _declare(
        self,
        event: Event[Any, Any] | str | ScheduledRoot,
        schedule: str,
        payload: Any,
        table: dict[str, Any],
        options: ScheduleKeywords,
    ) -> None:
        if check_id(schedule) in self._declared:
            raise DefinitionError(f"schedule {schedule!r} is declared twice; give each an id of its own")
        plan = self._plan(event, payload, table, options)
        self._declared[schedule] = (plan, bool(options.get("immediately")))

    def _plan(
        self,
        event: Event[Any, Any] | str | ScheduledRoot,
        payload: Any,
        table: dict[str, Any],
        options: ScheduleKeywords,
    ) -> Plan:
        if isinstance(event, ScheduledRoot):
            plan = make_plan(event.name, event.queue, event.body, table, options, has_default=True)
            return self._around(msgspec.structs.replace(plan, root=event.form), options)
        route: Route = self._routes.find(event)
        check_event_name(route.name)
        encoded, has_default = route.encode_payload(payload), route.event.default
        plan = make_plan(route.name, route.queue, encoded, table, options, has_default=has_default)
        hidden = msgspec.Raw(route.hidden) if route.hidden else NOT_HIDDEN
        plan = msgspec.structs.replace(plan, limit_key=route.limit_key(payload), hidden=hidden)
        return self._around(plan, options)

    def _around(self, plan: Plan, options: ScheduleKeywords) -> Plan:
        """Give a plan the meta, the correlation id and the trace of the call that makes it. Raises as an
        emission does.
        """
        given: Any = options.get("meta")
        if not isinstance(given, (dict, type(None))):
            raise DefinitionError(f"expected meta of a schedule to be a dict, got: {shown(given)}")
        ambient = current()
        meta: dict[str, Any] = {**(ambient.meta or {}), **(given or {})}
        if meta:
            limit = int(self._settings.max_payload)
            checked = Codec(dict[str, Any], role="meta", owner="a schedule", max_bytes=limit).encode(meta)
            meta = msgspec.json.decode(checked)  # as the server keeps it, so that the digest can be compared
        traceparent, tracestate = trace_around(ambient)
        return msgspec.structs.replace(
            plan,
            meta=meta or None,
            correlation_id=ambient.correlation_id,
            traceparent=traceparent,
            tracestate=tracestate,
            baggage=baggage_around(),
        )

    async def _put(self, schedule: str, given: Plan, *, owner: str = "", immediately: bool = False) -> bool:
        """Make a schedule what is given. Return whether it is; False if a newer release of `owner` has
        declared it.
        """
        while True:
            page = await self._store.schedules.look(schedule, deadline=self._settings.deadline())
            row = page.rows[0] if page.rows else None
            plan, slot = place(given, row, page.now, immediately=immediately, is_declared=bool(owner))
            answer, _ = await self._store.schedules.change(
                "put",
                schedule,
                seen=row.gen if row else "",
                seen_slot=row.slot if row else "",
                slot="" if slot is None else slot,
                due="" if slot is None else plan.table.due(slot, schedule),
                plan=plan.encode(),
                digest=given.digest(),
                owner=owner,
                version=self.version if owner else 0,
                limit=plan.limit,
                queue=plan.queue,
                deadline=self._settings.deadline(),
            )
            if answer != "stale":
                return answer != "older"
