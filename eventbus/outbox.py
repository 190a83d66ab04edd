"""The outbox: emissions on their way to the server, in batches.

What is emitted in one tick travels together; while calls are under way the next batch
gathers; one emission alone still costs one round trip. A few calls may be under way at
once, since the server answers one connection in order.

    queued -> sent -> answered (new | joined | full)
                   -> given up at its deadline: EmitError(enqueued=False, or None if a try
                      may have arrived)

What must hold: an emission is answered or given up, never dropped; a batch is sent again
with the same ids only, so a repeat changes nothing; what was given up as `False` is
never sent afterwards.

Crash windows: `add-not-sent` (server away: tried again until the deadline),
`add-not-answered` (the same batch again; past the deadline `enqueued` is None),
`emitter-dies` (before the call: lost with its process; after: the job runs, and its
result is found by id).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import anyio
import msgspec
import structlog

from eventbus.completion import CompletionTracker
from eventbus.emission import Emission
from eventbus.errors import EmitError, ProviderStopped, QueueFull, StoreError, StoreRefused
from eventbus.route import Route
from eventbus.store.connection import TRANSIENT
from eventbus.store.rows import AddQueue, AddRow, AddVerdict
from eventbus.store.store import Store

__all__ = ["MAX_UNSENT", "MAX_UNSENT_BYTES", "Letter", "Outbox"]

_log = structlog.get_logger("eventbus.emission")

MAX_UNSENT = 10_000
MAX_UNSENT_BYTES = 64 << 20
_BATCH = 200
_BATCH_BYTES = 1 << 20
_IN_FLIGHT = 4


class Letter(msgspec.Struct, gc=False):
    """One emission to send; times in ms, `''` for absent."""

    emission: Emission[Any]
    route: Route
    body: str
    key: str
    print: str
    delay: int | str
    due: int | str
    priority: int
    lifo: int
    reuse: int
    deadline: float
    """When to give up, monotonic seconds."""
    maybe_sent: bool = False


class Outbox:
    """What one emitter has not sent yet."""

    def __init__(self, store: Store, tracker: CompletionTracker, emitter: str) -> None:
        self._store = store
        self._tracker = tracker
        self._emitter = emitter
        self._letters: deque[Letter] = deque()
        self._bytes = 0
        self._in_flight: set[asyncio.Task[None]] = set()
        self._wanted = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def unsent(self) -> int:
        """Emissions that no call has taken yet."""
        return len(self._letters)

    def check_room(self, event: str) -> None:
        """Raises EmitError when too much waits to be sent already."""
        if len(self._letters) >= MAX_UNSENT or self._bytes >= MAX_UNSENT_BYTES:
            raise EmitError(
                f"cannot emit {event}: {len(self._letters)} emissions ({self._bytes} bytes) wait to be sent; "
                "await some of them before emitting more, or use emit_many",
                event=event,
            )

    def put(self, letter: Letter) -> None:
        """Take one emission; it leaves with the next batch."""
        self._letters.append(letter)
        self._bytes += len(letter.body)
        self._empty.clear()
        self._wanted.set()

    async def run(self) -> None:
        """Send until cancelled; the provider owns this."""
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                while self._letters:
                    if len(self._in_flight) >= _IN_FLIGHT:
                        await asyncio.wait(self._in_flight, return_when=asyncio.FIRST_COMPLETED)
                        continue
                    task = asyncio.create_task(self._send(self._next_batch()), name="eventbus-add")
                    self._in_flight.add(task)
                    task.add_done_callback(self._on_sent)
        finally:
            for task in self._in_flight:
                task.cancel()
            with anyio.CancelScope(shield=True):
                while self._in_flight:
                    await asyncio.wait(self._in_flight)

    async def flush(self) -> None:
        """Wait until everything taken so far was answered or given up."""
        while self._letters or self._in_flight:
            await self._empty.wait()

    def abandon(self) -> None:
        """The provider stops: what was not sent is told so."""
        while self._letters:
            letter = self._letters.popleft()
            message = "the provider stopped before the emission was sent"
            self._fail(letter, ProviderStopped(message, job_id=letter.emission.job_id))

    def _on_sent(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("sending emissions failed unexpectedly", exc_info=task.exception())
        if not self._letters and not self._in_flight:
            self._empty.set()

    def _next_batch(self) -> list[Letter]:
        batch: list[Letter] = []
        size = 0
        while self._letters and len(batch) < _BATCH and size < _BATCH_BYTES:
            letter = self._letters.popleft()
            size += len(letter.body)
            batch.append(letter)
        self._bytes -= size
        return batch

    async def _send(self, batch: list[Letter]) -> None:
        keyed = sum(1 for letter in batch if letter.key)
        if keyed:
            self._tracker.expect_answers(keyed)
        try:
            while batch:
                batch = await self._try(batch)
        except BaseException as error:
            for letter in batch:
                letter.maybe_sent = True  # the call was under way
                self._fail(letter, _given_up(letter, error))
            raise
        finally:
            if keyed:
                self._tracker.expect_answers(-keyed)

    async def _try(self, batch: list[Letter]) -> list[Letter]:
        """One call; returns the letters to send again. Ends at the earliest deadline of the batch."""
        queues: dict[str, int] = {}
        rows: list[AddQueue] = []
        for letter in batch:
            if letter.route.queue not in queues:
                rows.append(letter.route.row)
                queues[letter.route.queue] = len(rows)
        adds = [_row(letter, queues[letter.route.queue]) for letter in batch]
        earliest = min(letter.deadline for letter in batch)
        try:
            verdicts = await self._store.add(self._emitter, rows, adds, deadline=earliest)
        except StoreError as error:
            return self._after_failure(batch, error, earliest)
        self._deliver(batch, verdicts)
        return []

    def _after_failure(self, batch: list[Letter], error: StoreError, deadline: float) -> list[Letter]:
        """`deadline` was the call's: no later try can be in time for letters that end with it."""
        again: list[Letter] = []
        # A refusal that will not pass is final: the server looked and wrote nothing.
        is_final = isinstance(error, StoreRefused) and error.code not in TRANSIENT
        for letter in batch:
            letter.maybe_sent = letter.maybe_sent or getattr(error, "sent", False)
            if letter.deadline > deadline and not is_final:
                again.append(letter)
            else:
                self._fail(letter, _given_up(letter, error))
        return again

    def _deliver(self, batch: list[Letter], verdicts: list[AddVerdict]) -> None:
        unusual = {verdict.place: verdict for verdict in verdicts}
        for index, letter in enumerate(batch):
            if not unusual or index not in unusual:
                letter.emission.mark_enqueued()
            else:
                self._deliver_unusual(letter, unusual[index])

    def _deliver_unusual(self, letter: Letter, verdict: AddVerdict) -> None:
        emission = letter.emission
        if verdict.word == "full":
            message = (
                f"queue {letter.route.queue!r} holds its max_waiting of {letter.route.row.max_waiting} jobs; "
                "emit again later, or start more workers"
            )
            error = QueueFull(
                message, event=letter.route.name, job_id=emission.job_id, queue=letter.route.queue
            )
            self._fail(letter, error)
            return
        if verdict.word == "other":
            _log.warning(
                "idempotency key met another payload, the first one wins",
                event_name=letter.route.name,
                key=letter.key,
                job_id=verdict.job,
            )
        self._tracker.join(emission, verdict.job, verdict.state, verdict.text)

    def _fail(self, letter: Letter, error: Exception) -> None:
        self._tracker.forget(letter.emission, error)


def _row(letter: Letter, queue: int) -> AddRow:
    emission = letter.emission
    return AddRow(
        emission.job_id,
        queue,
        letter.body,
        letter.key,
        letter.print,
        letter.delay,
        letter.due,
        letter.priority,
        letter.lifo,
        1 if emission.reply else 0,
        letter.reuse,
    )


def _given_up(letter: Letter, error: BaseException) -> EmitError:
    emission = letter.emission
    why = "the provider stopped" if isinstance(error, asyncio.CancelledError) else error
    if letter.maybe_sent:
        message = (
            f"it is unknown whether {letter.route.name} was enqueued: {why}; "
            f"provider.result({emission.job_id!r}) tells"
        )
        lost = EmitError(message, event=letter.route.name, job_id=emission.job_id, enqueued=None)
    else:
        message = f"{letter.route.name} was not enqueued: {why}"
        lost = EmitError(message, event=letter.route.name, job_id=emission.job_id, enqueued=False)
    lost.__cause__ = error
    return lost
