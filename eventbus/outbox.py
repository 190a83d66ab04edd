"""The outbox: emissions on their way to the server, in batches.

What is emitted in one tick travels together, written by the loop's next step; while calls are
under way the next batch gathers; one emission alone still costs one round trip. A few calls
may be under way at once, since the server answers one connection in order.

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
from collections.abc import Callable
from typing import Any, cast

import anyio
import msgspec

from eventbus.completion import CompletionTracker
from eventbus.emission import Emission
from eventbus.errors import EmitError, ProviderStopped, QueueFull, StoreError, StoreRefused
from eventbus.logs import get_logger
from eventbus.route import Route
from eventbus.store.connection import TRANSIENT
from eventbus.store.rows import AddQueue, AddRow, AddVerdict
from eventbus.store.store import Store

__all__ = ["MAX_UNSENT", "MAX_UNSENT_BYTES", "Letter", "Outbox"]

_log = get_logger("eventbus.emission")

MAX_UNSENT = 10_000
MAX_UNSENT_BYTES = 64 << 20
_BATCH = 200
_BATCH_BYTES = 1 << 20
_IN_FLIGHT = 4
_new = cast("Callable[[type[AddRow], tuple[Any, ...]], AddRow]", cast("Any", tuple).__new__)


class Letter(msgspec.Struct, gc=False):
    """One emission to send."""

    emission: Emission[Any]
    route: Route
    body: str
    key: str
    print: str
    rest: tuple[int | str, int | str, int, int, int, int]
    """The fields of its row that follow: delay, due, priority, lifo, reply, meeting."""
    deadline: float
    """When to give up, monotonic seconds."""
    maybe_sent: bool = False


class _Batch:
    """The letters of one call, and of its repeats."""

    __slots__ = ("deadline", "keyed", "letters")

    def __init__(self, letters: list[Letter]) -> None:
        self.letters = letters
        self.keyed = sum([1 for letter in letters if letter.key])
        self.deadline = 0.0


class Outbox:
    """What one emitter has not sent yet."""

    def __init__(self, store: Store, tracker: CompletionTracker, emitter: str) -> None:
        self._store = store
        self._tracker = tracker
        self._emitter = emitter
        self._letters: deque[Letter] = deque()
        self._bytes = 0
        self._in_flight: dict[asyncio.Future[list[AddVerdict]], _Batch] = {}
        self._is_flush_due = False
        self._is_ended = False
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
        if not self._is_flush_due:
            self._is_flush_due = True
            self._empty.clear()
            asyncio.get_running_loop().call_soon(self._flush)

    async def run(self) -> None:
        """Let it send until this is cancelled, then end the calls under way; the provider owns this."""
        try:
            await anyio.sleep_forever()
        finally:
            self._is_ended = True
            for answer in list(self._in_flight):
                answer.cancel()
            with anyio.CancelScope(shield=True):
                while self._in_flight:
                    await asyncio.wait(list(self._in_flight))
                    await asyncio.sleep(0)  # for what they call when done

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

    def _flush(self) -> None:
        """Send what waits, as far as calls may be under way."""
        self._is_flush_due = False
        while self._letters and len(self._in_flight) < _IN_FLIGHT and not self._is_ended:
            batch = _Batch(self._next_batch())
            if batch.keyed:
                self._tracker.expect_answers(batch.keyed)
            self._send(batch)

    def _next_batch(self) -> list[Letter]:
        batch: list[Letter] = []
        size = 0
        while self._letters and len(batch) < _BATCH and size < _BATCH_BYTES:
            letter = self._letters.popleft()
            size += len(letter.body)
            batch.append(letter)
        self._bytes -= size
        return batch

    def _send(self, batch: _Batch) -> None:
        """One call; it ends at the earliest deadline of the batch."""
        answer: asyncio.Future[list[AddVerdict]]
        try:
            queues, adds = _rows(batch.letters)
            batch.deadline = min([letter.deadline for letter in batch.letters])
            answer = asyncio.ensure_future(
                self._store.add(self._emitter, queues, adds, deadline=batch.deadline)
            )
        except Exception as error:  # noqa: BLE001  (those who wait must hear of it)
            answer = asyncio.get_running_loop().create_future()
            answer.set_exception(error)
        self._in_flight[answer] = batch
        answer.add_done_callback(self._on_answer)

    def _on_answer(self, answer: asyncio.Future[list[AddVerdict]]) -> None:
        batch = self._in_flight.pop(answer)
        error = asyncio.CancelledError() if answer.cancelled() else answer.exception()
        if error is None:
            self._deliver(batch.letters, answer.result())
            batch.letters = []
        elif isinstance(error, StoreError):
            batch.letters = self._after_failure(batch.letters, error, batch.deadline)
        else:
            self._give_up(batch, error)
        if batch.letters:
            self._send(batch)
            return
        if batch.keyed:
            self._tracker.expect_answers(-batch.keyed)
        if self._letters:
            self._flush()
        elif not self._in_flight:
            self._empty.set()

    def _give_up(self, batch: _Batch, error: BaseException) -> None:
        if not isinstance(error, asyncio.CancelledError):
            _log.error("sending emissions failed unexpectedly", exc_info=error)
        for letter in batch.letters:
            letter.maybe_sent = True  # the call was under way
            self._fail(letter, _given_up(letter, error))
        batch.letters = []

    def _after_failure(self, batch: list[Letter], error: StoreError, deadline: float) -> list[Letter]:
        """`deadline` was the call's: no later try can be in time for letters that end with it."""
        again: list[Letter] = []
        # A refusal that will not pass is final: the server looked and wrote nothing.
        is_final = isinstance(error, StoreRefused) and error.code not in TRANSIENT
        for letter in batch:
            letter.maybe_sent = letter.maybe_sent or error.sent
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


def _rows(letters: list[Letter]) -> tuple[list[AddQueue], list[AddRow]]:
    places: dict[str, int] = {}
    queues: list[AddQueue] = []
    adds: list[AddRow] = []
    for letter in letters:
        queue = letter.route.queue
        place = places.get(queue)
        if place is None:
            queues.append(letter.route.row)
            place = places[queue] = len(queues)
        # Rows without their constructor, which costs more than the rest of this.
        row = (letter.emission.job_id, place, letter.body, letter.key, letter.print, *letter.rest)
        adds.append(_new(AddRow, row))
    return queues, adds


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
