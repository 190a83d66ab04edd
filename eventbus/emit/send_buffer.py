"""The send buffer: holds the emissions that are not sent yet, and sends them to the server in batches.

Trees without members are sent as emissions are.

The emissions of one tick of the event loop leave together, in the loop's next step. While calls are
under way, the next batch fills. A single emission still costs one round trip. A few calls may be under
way at once, because the server answers the calls of one connection in order.

    queued -> sent -> answered (new | joined | refused)
                   -> later (groups made the call too large for it): sent again, in its order
                   -> pending (a tree, whose key stands for one that is not whole yet):
                      goes to the tree sender
                   -> given up at its deadline: EmitError(enqueued=False, or None if a try
                      may have arrived)

Not here: the repeats of one call after a lost connection (`store.connection.retrying`), and the wait
for the outcome (`completion`).

What must always hold:
- each emission is answered or given up, never dropped;
- a batch is sent again only with the same ids, so that a repeat changes nothing;
- batches reach the server in the order in which they began, also when their calls are repeated;
- an emission is given up when its time is over and not before, whether its batch is under way or waits;
- what an outage costs does not grow with its length: four calls at most are packed, only the first of them
  asks the server, and errors keep nothing of the calls;
- an emission that was given up with `enqueued=False` is never sent afterwards.

Crash windows:
    `add-not-sent`      the server is away: the batch is sent again until the deadline
    `add-not-answered`  the same batch is sent again; past the deadline `enqueued` is None
    `emitter-dies`      before the call, the emission is lost with its process; after the call, the
                        job runs, and its result is found by the job's id
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from operator import itemgetter
from typing import Any

from eventbus.emit.batches import (
    IN_FLIGHT,
    REFUSALS,
    describe_lost,
    end_calls,
    join,
    late_behind,
    may_have_arrived,
    note_unexpected,
    refusal_of,
)
from eventbus.emit.completion import CompletionTracker
from eventbus.emit.emission import PendingEmission
from eventbus.emit.job_tree import Tree, chunks_of, row_of
from eventbus.emit.route import Route
from eventbus.emit.tree_sender import TreeSender
from eventbus.errors import EmitError, ProviderStopped, StoreError, StoreRefused
from eventbus.model import clock
from eventbus.runtime.clean_up import call_unless_ending, run_to_end
from eventbus.runtime.own_context import own_context
from eventbus.store.bounds import CALL_BYTES, CALL_ROWS
from eventbus.store.connection.translation import TRANSIENT
from eventbus.store.scripting.packing import AddRows
from eventbus.store.scripting.script_rows import NEEDS_WORKER, ROOTS, AddAnswer, AddQueue, AddRow, AddVerdict
from eventbus.store.store import Store
from eventbus.telemetry.logging import get_logger
from eventbus.telemetry.send_meter import SendMeter

_log = get_logger("eventbus.emission")

# Bounds of the memory that unsent emissions take while the server is away or slow.
MAX_UNSENT = 10_000
MAX_UNSENT_BYTES = 64 << 20
_GRAIN = 0.02
"""Seconds. An emission is given up so long after its deadline, at most, and those around it with it."""


class _Batch:
    """The emissions of one call and its repeats, their rows, and the queues to which the rows refer
    by place.
    """

    __slots__ = (
        "called", "deadline", "deadlines", "emissions", "keys",
        "maybe_sent", "number", "places", "queues", "roots", "rows",
        "said", "sent", "since", "size",
    )  # fmt: skip

    def __init__(self) -> None:
        self.emissions: list[PendingEmission[Any]] = []
        self.deadlines: list[float] = []
        """When to give up each emission, in monotonic seconds."""
        self.rows = AddRows()
        self.size = 0
        self.queues: list[AddQueue] = []
        self.places: dict[str | AddQueue, int] = {}
        self.keys: dict[str, str] = {}
        """Job -> its key's digest, for the emissions that have a key."""
        self.roots: dict[str, Tree] = {}
        """Job -> its tree, for the emissions that stand for one."""
        self.maybe_sent: set[str] = set()
        """The jobs of which an earlier try may have reached the server."""
        self.since = 0.0
        """When its first call was sent, in monotonic seconds, if it has keys."""
        self.called = 0.0
        """When its last call was sent, in monotonic seconds."""
        self.deadline = 0.0
        self.number = 0
        """Its number among the calls of the attendance, which may be repeated until it ends."""
        self.said = ""
        """The name that the call under way says."""
        self.sent = 0
        """How many of the emissions, from the first on, are part of the call under way."""

    def place(self, name: str | AddQueue, queue: AddQueue) -> int:
        """Return the place of a queue in this batch; its `name` here is the queue itself, unless it is as its
        event says.
        """
        try:
            return self.places[name]
        except KeyError:
            self.queues.append(queue)
            place = self.places[name] = len(self.queues)
            return place

    def take_overdue(self, now: float) -> list[tuple[float, PendingEmission[Any]]]:
        """Take out the emissions whose deadline has come, with it. Only while the batch is not sent."""
        places = [place for place, deadline in enumerate(self.deadlines) if deadline > now]
        if len(places) == len(self.emissions):
            return []
        overdue = [
            (deadline, emission)
            for deadline, emission in zip(self.deadlines, self.emissions, strict=True)
            if deadline <= now
        ]
        for _, emission in overdue:
            self.keys.pop(emission.job_id, None)
            self.roots.pop(emission.job_id, None)
        self.keep(places)
        self.size = sum(map(len, self.rows.bodies()))
        return overdue

    def keep(self, places: list[int]) -> None:
        """Go on with the emissions at these places alone."""
        self.emissions = [self.emissions[place] for place in places]
        self.deadlines = [self.deadlines[place] for place in places]
        self.rows = self.rows.pick(places)


class SendBuffer:
    """The emissions that one emitter has not sent yet, and its calls under way."""

    def __init__(self, store: Store, tracker: CompletionTracker, emitter: str, *, trees: TreeSender) -> None:
        self._store = store
        self._tracker = tracker
        self._trees = trees
        self._attendance = tracker.attendance
        self._emitter = emitter
        self._full: deque[_Batch] = deque()
        self._filling = _Batch()
        self._full_count = 0
        self._full_bytes = 0
        self._in_flight: dict[asyncio.Future[AddAnswer], _Batch] = {}
        self._widths: dict[str, int] = {}
        """Queue -> how many jobs an emission makes there, for those with groups: as the server last said."""
        self._told_nobody: set[str] = set()
        """Queues whose emissions made no job when it was last known, which was logged."""
        self._meter = SendMeter(store.address)
        self._context = own_context()
        self._is_flush_due = False
        self._is_ended = False
        self._earliest = math.inf
        """The earliest deadline of what waits to be sent, or an earlier time."""
        self._expiry: asyncio.TimerHandle | None = None
        """The timer at which emissions end that still wait to be sent."""
        self._expiry_at = 0.0
        """The deadline for which it is set."""
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def unsent(self) -> int:
        """How many emissions are not part of a call yet."""
        return self._full_count + len(self._filling.emissions)

    def check_room(self, event: str) -> None:
        """Raise EmitError if too many emissions, or too many bytes, already wait to be sent."""
        count = self._full_count + len(self._filling.emissions)
        size = self._full_bytes + self._filling.size
        if count >= MAX_UNSENT or size >= MAX_UNSENT_BYTES:
            raise EmitError(
                f"cannot emit {event}: {count} emissions ({size} bytes) wait to be sent; "
                "await some of them before emitting more, or use emit_many",
                event=event,
            )

    def put_plain(
        self, emission: PendingEmission[Any], route: Route, body: str, *, reply: int, deadline: float
    ) -> None:
        """Take an emission without options, to be given up at `deadline` (monotonic seconds)."""
        batch = self._filling
        batch.rows.put_plain(emission.job_id, batch.place(route.queue, route.row), body, reply)
        self._take(batch, emission, len(body), deadline)

    def put(
        self,
        emission: PendingEmission[Any],
        route: Route,
        row: AddRow,
        require_worker: bool | None,
        *,
        deadline: float,
    ) -> None:
        """Take an emission with any options. `row` as if its queue were the only one of the call."""
        batch, queue = self._filling, route.row_for(require_worker)
        name = route.queue if queue is route.row else queue
        batch.rows.put(row._replace(queue=batch.place(name, queue)))
        if row.key:
            batch.keys[emission.job_id] = row.key
        self._take(batch, emission, len(row.body), deadline)

    def put_root(self, emission: PendingEmission[Any], tree: Tree, *, deadline: float) -> None:
        """Take a tree that is a lone root (`Tree.is_lone`), to be given up at `deadline`."""
        batch = self._filling
        queue = AddQueue(tree.queue, 1, "", ROOTS + (NEEDS_WORKER if tree.require_worker else 0))
        batch.rows.put_root(row_of(tree)._replace(queue=batch.place(queue, queue)), tree.timeout_ms)
        batch.roots[emission.job_id] = tree
        if tree.key:
            batch.keys[emission.job_id] = tree.key
        self._take(batch, emission, len(tree.body), deadline)

    def _take(self, batch: _Batch, emission: PendingEmission[Any], size: int, deadline: float) -> None:
        batch.emissions.append(emission)
        batch.deadlines.append(deadline)
        batch.size += size
        if deadline < self._earliest:  # noqa: PLR1730  (each emission pays for it, and `min` is a call)
            self._earliest = deadline
        if len(batch.emissions) >= CALL_ROWS or batch.size >= CALL_BYTES:
            self._full.append(batch)
            self._full_count += len(batch.emissions)
            self._full_bytes += batch.size
            self._filling = _Batch()
        if not self._is_flush_due:
            self._is_flush_due = True
            self._empty.clear()
            # Not at once: the other emissions of this tick go in the same batch.
            asyncio.get_running_loop().call_soon(self._flush, context=self._context)

    async def aclose(self) -> None:
        """Send nothing more, and end the calls under way: each emission needs its end."""
        self._is_ended = True
        await run_to_end(end_calls(self._in_flight), "send buffer")

    async def flush(self) -> None:
        """Wait until each emission in the buffer is answered or given up."""
        while self.unsent or self._in_flight:
            await self._empty.wait()

    def abandon(self) -> None:
        """Fail the emissions that were not sent, with ProviderStopped."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        while self.unsent:
            for emission in self._next_batch().emissions:
                message = "the provider stopped before the emission was sent"
                self._tracker.waits.forget(emission, ProviderStopped(message, job_id=emission.job_id))

    def _flush(self) -> None:
        """Send the waiting batches while fewer than `IN_FLIGHT` calls are under way."""
        self._is_flush_due = False
        while self.unsent and len(self._in_flight) < IN_FLIGHT and not self._is_ended:
            batch = self._next_batch()
            if batch.keys:
                # Before the call: an outcome may overtake the answer, and is held back from here on.
                self._tracker.waits.expect_answers(len(batch.keys))
                batch.since = clock.monotonic()
            batch.number = self._attendance.begin_call()
            self._send(batch)
        if self.unsent or self._expiry is not None:
            self._watch_unsent()
        else:
            self._earliest = math.inf

    def _watch_unsent(self) -> None:
        """Set the timer for the earliest deadline of what waits to be sent; stop it if nothing does."""
        if not self.unsent:
            self._earliest = math.inf
        if self._expiry is not None:
            if self._expiry_at <= self._earliest < math.inf:
                return
            self._expiry.cancel()
            self._expiry = None
        if self._earliest < math.inf:
            self._expiry_at = self._earliest
            left = max(self._earliest - clock.monotonic(), 0.0) + _GRAIN
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(left, self._end_overdue, context=self._context)

    def _end_overdue(self) -> None:
        """Fail those that still wait and whose time is over, in the order of their deadlines."""
        self._expiry = None
        now, overdue = clock.monotonic(), list[tuple[float, PendingEmission[Any]]]()
        waiting = [*self._full, self._filling]
        for batch in waiting:
            overdue += batch.take_overdue(now)
        self._full = deque(batch for batch in self._full if batch.emissions)
        self._full_count = sum(len(batch.emissions) for batch in self._full)
        self._full_bytes = sum(batch.size for batch in self._full)
        self._earliest = min((min(batch.deadlines) for batch in waiting if batch.deadlines), default=math.inf)
        self._watch_unsent()
        why = late_behind(self._store.address)
        for _, emission in sorted(overdue, key=itemgetter(0)):
            self._tracker.waits.forget(emission, describe_lost(emission, why, maybe_sent=False, hint=""))
        self._meter.note([emission for _, emission in overdue], now)

    def _next_batch(self) -> _Batch:
        """Take the oldest batch, which is the one that is filling if none is full."""
        if not self._full:
            batch, self._filling = self._filling, _Batch()
            return batch
        batch = self._full.popleft()
        self._full_count -= len(batch.emissions)
        self._full_bytes -= batch.size
        return batch

    def _send(self, batch: _Batch) -> None:
        """Send a batch in one call, which ends a moment behind the earliest deadline of the batch.

        Deadlines differ by microseconds: those that come in that moment fail with the first, in one go.
        """
        answer: asyncio.Future[AddAnswer]
        batch.called = clock.monotonic()
        batch.sent = self._count_fitting(batch) if self._widths else len(batch.emissions)
        try:
            batch.deadline = max(min(batch.deadlines), batch.called) + _GRAIN
            is_all = batch.sent == len(batch.emissions)
            rows = batch.rows if is_all else batch.rows.pick(range(batch.sent))
            said = batch.said = self._attendance.say()
            answer = asyncio.ensure_future(
                self._store.add(
                    self._emitter,
                    batch.queues,
                    rows,
                    deadline=batch.deadline,
                    attendance=said,
                    number=batch.number,
                )
            )
        except Exception as error:  # noqa: BLE001  (a failed call, so that the waiters get the error)
            answer = asyncio.get_running_loop().create_future()
            answer.set_exception(error)
        self._in_flight[answer] = batch
        answer.add_done_callback(self._on_answer)

    def _count_fitting(self, batch: _Batch) -> int:
        """Return how many emissions of the batch one call takes, as far as the groups of its queues are
        known.
        """
        widths = [self._widths.get(queue.queue, 1) for queue in batch.queues]
        jobs = 0
        for count, place in enumerate(batch.rows.queues()):
            jobs += widths[place - 1]
            if jobs > CALL_ROWS and count:
                return count
        return len(batch.emissions)

    def _note_widths(self, batch: _Batch, widths: list[int]) -> None:
        for queue, width in zip(batch.queues, widths, strict=True):
            if width:
                self._told_nobody.discard(queue.queue)
            if width > 1:
                self._widths[queue.queue] = width
            else:
                self._widths.pop(queue.queue, None)

    def _on_answer(self, answer: asyncio.Future[AddAnswer]) -> None:
        """Settle a batch whose call ended, and send the emissions again that have time left."""
        batch = self._in_flight.pop(answer)
        error = asyncio.CancelledError() if answer.cancelled() else answer.exception()
        if error is None:
            self._attendance.confirm(batch.said)
            again = self._deliver(batch, answer.result())
        elif isinstance(error, StoreError):
            again = self._after_failure(batch, error)
        else:
            again = self._give_up(batch, error)
        self._meter.note(batch.emissions, batch.called, left=again)
        if again:
            batch.keep(again)
            self._send(batch)  # the answers for its keys are still owed
            return
        self._attendance.end_call(batch.number)
        if batch.keys:
            self._tracker.waits.expect_answers(-len(batch.keys))
        if self.unsent and answer.cancelled():
            call_unless_ending(self._flush)
        elif self.unsent:
            self._flush()
        elif not self._in_flight:
            self._empty.set()

    def _give_up(self, batch: _Batch, error: BaseException) -> list[int]:
        note_unexpected("sending emissions failed unexpectedly", error)
        for place, emission in enumerate(batch.emissions):
            maybe_sent = place < batch.sent or emission.job_id in batch.maybe_sent  # the call was under way
            self._tracker.waits.forget(emission, _given_up(batch, emission, error, maybe_sent=maybe_sent))
        return []

    def _after_failure(self, batch: _Batch, error: StoreError) -> list[int]:
        """Fail the emissions whose time is over or whose refusal is final, and return the places of the
        others.

        An emission with the deadline of the call cannot be answered in time any more.
        """
        again: list[int] = []
        over = max(batch.deadline, clock.monotonic())
        # A refusal that will not pass is final: the server decided, and wrote nothing.
        is_final = isinstance(error, StoreRefused) and error.code not in TRANSIENT
        if may_have_arrived(error):
            batch.maybe_sent.update([emission.job_id for emission in batch.emissions[: batch.sent]])
        for place, emission in enumerate(batch.emissions):
            if batch.deadlines[place] > over and not is_final:
                again.append(place)
            else:
                maybe_sent = emission.job_id in batch.maybe_sent
                self._tracker.waits.forget(emission, _given_up(batch, emission, error, maybe_sent=maybe_sent))
        return again

    def _deliver(self, batch: _Batch, answer: AddAnswer) -> list[int]:
        """Notify the emissions of an answered call, and return the places of those that are still to send.

        An emission without a verdict became a new job.
        """
        unusual = {verdict.place: verdict for verdict in answer.verdicts}
        later: list[int] = []
        widths = answer.widths
        for place, (emission, queue) in enumerate(
            zip(batch.emissions[: batch.sent], batch.rows.queues(), strict=False)
        ):
            verdict = unusual.get(place) if unusual else None
            if verdict is None:
                width = emission.groups = widths[queue - 1]
                if width == 0:
                    self._tell_nobody(emission, batch.queues[queue - 1].queue)
                emission.mark_enqueued()
            elif verdict.word == "later":
                later.append(place)
            else:
                self._deliver_unusual(place, verdict, batch)
        self._note_widths(batch, answer.widths)
        later.extend(range(batch.sent, len(batch.emissions)))
        return later

    def _tell_nobody(self, emission: PendingEmission[Any], queue: str) -> None:
        """Log, once until there is a group, that the server made no job: the event has no default handler."""
        if queue not in self._told_nobody:
            self._told_nobody.add(queue)
            _log.warning(
                "emitted to nobody: the event has no default handler and no group", event_name=emission.event
            )

    def _deliver_unusual(self, place: int, verdict: AddVerdict, batch: _Batch) -> None:
        emission = batch.emissions[place]
        if verdict.word == "pending":
            self._pass_on(emission, batch.roots[emission.job_id], batch.deadlines[place])
            return
        if verdict.word in REFUSALS:
            queue = batch.queues[batch.rows.queue(place) - 1]
            self._tracker.waits.forget(emission, refusal_of(emission, verdict, queue.max_waiting))
            return
        join(self._tracker, emission, verdict, since=batch.since, key=batch.keys.get(emission.job_id, ""))

    def _pass_on(self, emission: PendingEmission[Any], tree: Tree, deadline: float) -> None:
        """Let the tree sender ask until it is known what becomes of the tree that has the key."""
        try:
            self._trees.put(emission, chunks_of(tree, reply=True), patience=deadline - clock.monotonic())
        except ProviderStopped as error:
            self._tracker.waits.forget(emission, error)


def _given_up(
    batch: _Batch, emission: PendingEmission[Any], error: BaseException, *, maybe_sent: bool
) -> EmitError:
    """Return the error of an emission that is given up because of `error`."""
    is_root = emission.job_id in batch.roots
    hint = f"its id {emission.job_id!r}" if is_root else f"provider.result({emission.job_id!r})"
    return describe_lost(emission, error, maybe_sent=maybe_sent, hint=hint)
