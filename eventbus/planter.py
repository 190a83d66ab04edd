"""The planter: trees on their way to the server; what the outbox is for emissions.

Trees that are added in one tick of the loop travel together as far as they fit one call; one
that is larger goes in chunks of its own, one after the other, and is opened by the last.

What must hold: whoever adds a tree hears that it is there, or why not; a chunk is sent again with the
same ids only, so a repeat changes nothing.

Crash windows: `graph-not-answered` (the same chunk again, until the deadline; past it `enqueued` is
None where the answer to the last chunk is owed, else False), `adder-dies` (before the last chunk: nothing
of the tree runs, and it is removed after a minute; after it: the tree runs, and its outcome is found by id).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from eventbus.completion import CompletionTracker
from eventbus.emission import Emission
from eventbus.errors import EmitError, ProviderStopped, StoreError
from eventbus.logs import get_logger
from eventbus.store.store import Store
from eventbus.store.trees import Chunk, TreeVerdict

__all__ = ["Planter"]

_log = get_logger("eventbus.emission")

_ROWS = 100


class _Planting(msgspec.Struct, gc=False):
    """One tree to add."""

    emission: Emission[Any]
    chunks: Sequence[Chunk]
    deadline: float


class Planter:
    """The trees that one emitter adds."""

    def __init__(self, store: Store, tracker: CompletionTracker, emitter: str) -> None:
        self._store = store
        self._tracker = tracker
        self._emitter = emitter
        self._waiting: list[_Planting] = []
        self._calls: set[asyncio.Task[None]] = set()
        self._is_ended = False

    def put(self, emission: Emission[Any], chunks: Sequence[Chunk], *, patience: float) -> None:
        """Add a tree within `patience` seconds; its emission hears how that went, and the outcome."""
        if self._is_ended:
            raise ProviderStopped(f"cannot add {emission.event}: the provider is stopping")
        planting = _Planting(emission, chunks, time.monotonic() + patience)
        if chunks[0].head.key:
            self._tracker.expect_answers(1)
        self._tracker.register(emission, delay=0.0)
        if len(chunks) > 1:
            self._start(self._send_chunks(planting))
            return
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        self._waiting.append(planting)

    async def aclose(self, patience: float) -> None:
        """Wait at most `patience` seconds for what is on its way, then give it up. Nothing is taken from here on."""
        self._is_ended = True
        self._flush()
        if self._calls:
            await asyncio.wait(self._calls, timeout=patience)
        for call in list(self._calls):
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls)

    def _start(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(call, name="eventbus-planter")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        batch: list[_Planting] = []
        count = 0
        for each in waiting:
            size = each.chunks[0].head.rows
            if batch and count + size > _ROWS:
                self._start(self._send(batch))
                batch, count = [], 0
            batch.append(each)
            count += size
        if batch:
            self._start(self._send(batch))

    async def _send(self, batch: list[_Planting]) -> None:
        """Whole trees in one call, which ends at the earliest of their deadlines."""
        chunks = [each.chunks[0] for each in batch]
        deadline = min(each.deadline for each in batch)
        try:
            verdicts = await self._store.trees.add(self._emitter, chunks, deadline=deadline)
        except BaseException as error:
            for each in batch:
                self._fail(each, error, is_last=True)
            if not isinstance(error, Exception):
                raise
            return
        for each, verdict in zip(batch, verdicts, strict=True):
            self._deliver(each, verdict)

    async def _send_chunks(self, planting: _Planting) -> None:
        """A large tree; what its key met ends it with the first chunk."""
        verdict: TreeVerdict | None = None
        chunk = planting.chunks[0]
        try:
            for chunk in planting.chunks:
                (verdict,) = await self._store.trees.add(self._emitter, [chunk], deadline=planting.deadline)
                if verdict.word != "new":
                    break
        except BaseException as error:
            self._fail(planting, error, is_last=chunk is planting.chunks[-1])
            if not isinstance(error, Exception):
                raise
            return
        if verdict is not None:
            self._deliver(planting, verdict)

    def _deliver(self, planting: _Planting, verdict: TreeVerdict) -> None:
        emission = planting.emission
        if verdict.word == "new":
            emission.mark_enqueued()
        elif verdict.word == "gone":
            why = EmitError(
                f"{emission.event} was not added whole: it took longer than a minute, or was cancelled meanwhile",
                event=emission.event,
                job_id=emission.job_id,
            )
            self._tracker.forget(emission, why)
        else:
            if verdict.word == "other":
                _log.warning(
                    "idempotency key met another payload, the first one wins",
                    event_name=emission.event,
                    job_id=verdict.job,
                )
            self._tracker.join(emission, verdict.job, verdict.state, verdict.text)
        self._end(planting)

    def _fail(self, planting: _Planting, error: BaseException, *, is_last: bool) -> None:
        emission = planting.emission
        if not isinstance(error, (StoreError, asyncio.CancelledError)):
            _log.error("adding a tree failed unexpectedly", exc_info=error)
        is_unknown = is_last and not (isinstance(error, StoreError) and not error.sent)
        why = "the provider stopped" if isinstance(error, asyncio.CancelledError) else error
        lost = EmitError(
            f"it is unknown whether {emission.event} was enqueued: {why}; its id {emission.job_id!r} tells"
            if is_unknown
            else f"{emission.event} was not enqueued: {why}",
            event=emission.event,
            job_id=emission.job_id,
            enqueued=None if is_unknown else False,
        )
        lost.__cause__ = error
        self._tracker.forget(emission, lost)
        self._end(planting)

    def _end(self, planting: _Planting) -> None:
        if planting.chunks[0].head.key:
            self._tracker.expect_answers(-1)
