"""The send buffer: holds the emissions that are not sent yet, and sends them to the server in batches.

The emissions of one tick of the event loop leave together, in the loop's next step. While calls are
under way, the next batch fills. A single emission still costs one round trip. A few calls may be under
way at once, because the server answers the calls of one connection in order.

    queued -> sent -> answered (new | joined | full)
                   -> later (groups made the call too large for it): sent again, in its order
                   -> given up at its deadline: EmitError(enqueued=False, or None if a try
                      may have arrived)

Not here: the repeats of one call after a lost connection (`store.connection.retrying`), and the wait
for the outcome (`completion`).

What must always hold:
- each emission is answered or given up, never dropped;
- a batch is sent again only with the same ids, so that a repeat changes nothing;
- an emission that was given up with `enqueued=False` is never sent afterwards.

Crash windows:
    `add-not-sent`      the server is away: the batch is sent again until the deadline
    `add-not-answered`  the same batch is sent again; past the deadline `enqueued` is None
    `emitter-dies`      before the call, the emission is lost with its process; after the call, the
                        job runs, and its result is found by the job's id
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import anyio
import msgspec

from eventbus.emit.batches import describe_lost, end_calls, join, may_have_arrived, note_unexpected
from eventbus.emit.completion import CompletionTracker
from eventbus.emit.emission import PendingEmission
from eventbus.emit.route import Route
from eventbus.errors import EmitError, ProviderStopped, QueueFull, StoreError, StoreRefused
from eventbus.model import clock
from eventbus.model.names import split_group
from eventbus.store.connection.connector import TRANSIENT
from eventbus.store.script_rows import AddAnswer, AddQueue, AddRow, AddVerdict
from eventbus.store.store import Store

__all__ = ["MAX_UNSENT", "MAX_UNSENT_BYTES", "QueuedEmission", "SendBuffer"]

# Bounds of the memory that unsent emissions take while the server is away or slow.
MAX_UNSENT = 10_000
MAX_UNSENT_BYTES = 64 << 20
# Bounds of one call: the server runs nothing else while it runs the call's script.
_BATCH = 200
_BATCH_BYTES = 1 << 20
_IN_FLIGHT = 4  # calls under way at most


class QueuedEmission(msgspec.Struct, gc=False):  # not tracked by the garbage collector, for speed
    """One emission to send."""

    emission: PendingEmission[Any]
    row: AddRow
    """Its `queue` is a place in the batch that it was made for, and in no other; see `SendBuffer.place`."""
    deadline: float
    """When to give up, in monotonic seconds."""
    maybe_sent: bool = False
    """Whether an earlier try may have reached the server."""


class _Batch:
    """The emissions of one call and its repeats, and the queues to which their rows refer by place."""

    __slots__ = (
        "deadline", "emissions", "keyed", "number", "places", "queues", "said", "sent", "since", "size",
    )  # fmt: skip

    def __init__(self) -> None:
        self.emissions: list[QueuedEmission] = []
        self.size = 0
        self.queues: list[AddQueue] = []
        self.places: dict[str, int] = {}
        self.keyed = 0
        self.since = 0.0
        """When its first call was sent, in monotonic seconds."""
        self.deadline = 0.0
        self.number = 0
        """Its number among the calls of the attendance, which may be repeated until it ends."""
        self.said = ""
        """The name that the call under way says."""
        self.sent = 0
        """How many of the emissions, from the first on, are part of the call under way."""


class SendBuffer:
    """The emissions that one emitter has not sent yet, and its calls under way."""

    def __init__(self, store: Store, tracker: CompletionTracker, emitter: str) -> None:
        self._store = store
        self._tracker = tracker
        self._attendance = tracker.attendance
        self._emitter = emitter
        self._full: deque[_Batch] = deque()
        self._filling = _Batch()
        self._full_count = 0
        self._full_bytes = 0
        self._in_flight: dict[asyncio.Future[AddAnswer], _Batch] = {}
        self._widths: dict[str, int] = {}
        """Queue -> how many jobs an emission makes there, for those with groups: as the server last said."""
        self._is_flush_due = False
        self._is_ended = False
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

    def place(self, route: Route) -> int:
        """Return the place of the route's queue in the batch that takes the next emission."""
        batch = self._filling
        try:
            return batch.places[route.queue]
        except KeyError:
            batch.queues.append(route.row)
            place = batch.places[route.queue] = len(batch.queues)
            return place

    def put(self, queued: QueuedEmission) -> None:
        """Take one emission. Its row must refer to the place that `place` returned since the last `put`."""
        batch = self._filling
        batch.emissions.append(queued)
        batch.size += len(queued.row.body)
        if len(batch.emissions) >= _BATCH or batch.size >= _BATCH_BYTES:
            self._full.append(batch)
            self._full_count += len(batch.emissions)
            self._full_bytes += batch.size
            self._filling = _Batch()
        if not self._is_flush_due:
            self._is_flush_due = True
            self._empty.clear()
            # Not at once: the other emissions of this tick go in the same batch.
            asyncio.get_running_loop().call_soon(self._flush)

    async def run(self) -> None:
        """Allow sending until this is cancelled, then end the calls under way. A role of the emitter."""
        try:
            await anyio.sleep_forever()
        finally:
            self._is_ended = True
            # Shielded, because this task is cancelled already, and each emission still needs its end.
            with anyio.CancelScope(shield=True):
                await end_calls(self._in_flight)

    async def flush(self) -> None:
        """Wait until each emission in the buffer is answered or given up."""
        while self.unsent or self._in_flight:
            await self._empty.wait()

    def abandon(self) -> None:
        """Fail the emissions that were not sent, with ProviderStopped."""
        while self.unsent:
            for queued in self._next_batch().emissions:
                message = "the provider stopped before the emission was sent"
                self._fail(queued, ProviderStopped(message, job_id=queued.emission.job_id))

    def _flush(self) -> None:
        """Send the waiting batches while fewer than `_IN_FLIGHT` calls are under way."""
        self._is_flush_due = False
        while self.unsent and len(self._in_flight) < _IN_FLIGHT and not self._is_ended:
            batch = self._next_batch()
            # A list, because it is faster than a generator.
            batch.keyed = sum([1 for queued in batch.emissions if queued.row.key])
            if batch.keyed:
                # Before the call: an outcome may overtake the answer, and is held back from here on.
                self._tracker.expect_answers(batch.keyed)
                batch.since = clock.monotonic()
            batch.number = self._attendance.begin_call()
            self._send(batch)

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
        """Send a batch in one call, which ends at the earliest deadline of the batch."""
        answer: asyncio.Future[AddAnswer]
        batch.sent = self._count_fitting(batch) if self._widths else len(batch.emissions)
        try:
            batch.deadline = min([queued.deadline for queued in batch.emissions])
            rows = [queued.row for queued in batch.emissions[: batch.sent]]
            said = batch.said = self._attendance.say()
            answer = asyncio.ensure_future(
                self._store.add(self._emitter, batch.queues, rows, deadline=batch.deadline, attendance=said)
            )
        except Exception as error:  # noqa: BLE001  (a failed call, so that the waiters get the error)
            answer = asyncio.get_running_loop().create_future()
            answer.set_exception(error)
        self._in_flight[answer] = batch
        answer.add_done_callback(self._on_answer)

    def _count_fitting(self, batch: _Batch) -> int:
        """Return how many emissions of the batch one call takes, as far as the groups of its queues are known."""
        widths = [self._widths.get(queue.queue, 1) for queue in batch.queues]
        jobs = 0
        for count, queued in enumerate(batch.emissions):
            jobs += widths[queued.row.queue - 1]
            if jobs > _BATCH and count:
                return count
        return len(batch.emissions)

    def _note_widths(self, batch: _Batch, widths: list[int]) -> None:
        for queue, width in zip(batch.queues, widths, strict=True):
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
            batch.emissions = self._deliver(batch, answer.result())
        elif isinstance(error, StoreError):
            batch.emissions = self._after_failure(batch, error)
        else:
            self._give_up(batch, error)
        if batch.emissions:
            self._send(batch)  # the answers for its keys are still owed
            return
        self._attendance.end_call(batch.number)
        if batch.keyed:
            self._tracker.expect_answers(-batch.keyed)
        if self.unsent:
            self._flush()
        elif not self._in_flight:
            self._empty.set()

    def _give_up(self, batch: _Batch, error: BaseException) -> None:
        note_unexpected("sending emissions failed unexpectedly", error)
        for place, queued in enumerate(batch.emissions):
            queued.maybe_sent = queued.maybe_sent or place < batch.sent  # the call was under way
            self._fail(queued, _given_up(queued, error))
        batch.emissions = []

    def _after_failure(self, batch: _Batch, error: StoreError) -> list[QueuedEmission]:
        """Fail the emissions whose time is over or whose refusal is final, and return the others.

        An emission with the deadline of the call cannot be answered in time any more.
        """
        again: list[QueuedEmission] = []
        # A refusal that will not pass is final: the server decided, and wrote nothing.
        is_final = isinstance(error, StoreRefused) and error.code not in TRANSIENT
        for place, queued in enumerate(batch.emissions):
            queued.maybe_sent = queued.maybe_sent or (place < batch.sent and may_have_arrived(error))
            if queued.deadline > batch.deadline and not is_final:
                again.append(queued)
            else:
                self._fail(queued, _given_up(queued, error))
        return again

    def _deliver(self, batch: _Batch, answer: AddAnswer) -> list[QueuedEmission]:
        """Notify the emissions of an answered call, and return those of the batch that are still to send.

        An emission without a verdict became a new job.
        """
        unusual = {verdict.place: verdict for verdict in answer.verdicts}
        later: list[QueuedEmission] = []
        for index in range(batch.sent):
            queued = batch.emissions[index]
            if not unusual or index not in unusual:
                queued.emission.mark_enqueued()
            elif unusual[index].word == "later":
                later.append(queued)
            else:
                self._deliver_unusual(queued, unusual[index], batch)
        self._note_widths(batch, answer.widths)
        return later + batch.emissions[batch.sent :]

    def _deliver_unusual(self, queued: QueuedEmission, verdict: AddVerdict, batch: _Batch) -> None:
        emission = queued.emission
        if verdict.word == "full":
            limit = batch.queues[queued.row.queue - 1].max_waiting
            message = _describe_full(emission.event, limit, verdict)
            error = QueueFull(message, event=emission.event, job_id=emission.job_id, queue=verdict.text)
            self._fail(queued, error)
            return
        if verdict.word == "foreign":
            message = (
                f"{emission.event} was not enqueued: another program's value stands in the key {verdict.text!r} of the "
                "server; look at it, and delete or rename it"
            )
            self._fail(
                queued, EmitError(message, event=emission.event, job_id=emission.job_id, enqueued=False)
            )
            return
        join(self._tracker, emission, verdict, since=batch.since, key=queued.row.key)

    def _fail(self, queued: QueuedEmission, error: Exception) -> None:
        self._tracker.forget(queued.emission, error)


def _describe_full(event: str, limit: int | str, verdict: AddVerdict) -> str:
    """Say which queue is full, whether a worker serves it, and what the caller can do."""
    _, group = split_group(verdict.text)
    what = f"queue {verdict.text!r} holds its max_waiting of {limit} jobs"
    if verdict.state == "served":
        way_out = "emit again later, or start more workers"
        return f"{what}; {way_out}{f' for group {group!r}' if group else ''}"
    if not group:
        return f"{what}, and no worker serves it; start one"
    return (
        f"{what}, and no worker serves group {group!r}; start one, or remove the group: "
        f"provider.remove_group({event!r}, {group!r})"
    )


def _given_up(queued: QueuedEmission, error: BaseException) -> EmitError:
    """Return the error of an emission that is given up because of `error`."""
    hint = f"provider.result({queued.emission.job_id!r})"
    return describe_lost(queued.emission, error, maybe_sent=queued.maybe_sent, hint=hint)
