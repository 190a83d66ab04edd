"""The tree sender: sends trees of jobs to the server, as the send buffer sends emissions.

Trees that are added in one tick of the event loop travel together, if they fit in one call. While four calls
are under way, the next one fills. A larger tree goes in chunks of its own, one after the other, and the last
chunk opens it.

Not here: how a tree becomes chunks (`job_tree`), and the repeats of a call (`store.connection.retrying`).

What must always hold:
- the emission of each tree is notified that the tree is in the server, or fails with the reason;
- a chunk is sent again only with the same ids, so that a repeat changes nothing;
- what an outage costs does not grow with its length: four calls of whole trees at most are packed, beside a
  chunk of each larger tree, and only the first call asks the server (`store.connection.repeat_line`);
- a tree that waits is given up when its time is over.

Crash windows:
    `graph-not-answered`  the same chunk is sent again until the deadline; past it `enqueued` is None if
                          the answer to the last chunk is missing, and False otherwise
    `adder-dies`          before the last chunk, nothing of the tree runs, and it is removed after a
                          minute; after it, the tree runs, and its outcome is found by the root's id
    `key-not-whole`       the key stands for a tree whose last chunk is not there yet: the same chunk is sent
                          again until that tree is whole and is joined, or its adder has died and this tree
                          takes the key
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import msgspec

from eventbus.emit.batches import (
    IN_FLIGHT,
    describe_lost,
    end_calls,
    join,
    late_behind,
    may_have_arrived,
    note_unexpected,
)
from eventbus.emit.completion import CompletionTracker
from eventbus.emit.emission import PendingEmission
from eventbus.errors import EmitError, ProviderStopped
from eventbus.model import clock
from eventbus.runtime.clean_up import call_unless_ending
from eventbus.runtime.own_context import own_context
from eventbus.store.bounds import HEAVY_ROWS
from eventbus.store.calls.tree_store import Chunk, TreeVerdict
from eventbus.store.store import Store
from eventbus.telemetry.send_meter import SendMeter

# Seconds by which the deadlines of trees in one call may differ, because the earliest one ends the call.
_NEAR = 0.1
_PAUSE = 0.1  # seconds until a tree whose key stands for another one that is not whole is sent again


class _PendingTree(msgspec.Struct, gc=False):
    """One tree to add; `since` (when it came here) and `deadline` are in monotonic seconds."""

    emission: PendingEmission[Any]
    chunks: Sequence[Chunk]
    since: float
    deadline: float
    number: int
    """Its number among the calls of the attendance, which may be repeated until it ends."""


class TreeSender:
    """The trees that one emitter is adding."""

    def __init__(self, store: Store, tracker: CompletionTracker, emitter: str) -> None:
        self._store = store
        self._tracker = tracker
        self._emitter = emitter
        self._context = own_context()
        self._waiting: deque[_PendingTree] = deque()
        self._calls: set[asyncio.Task[None]] = set()
        self._under_way = 0
        """How many calls of whole trees are under way."""
        self._expiry: asyncio.TimerHandle | None = None
        """The timer at which trees end that still wait."""
        self._expiry_at = math.inf
        """The deadline for which it is set."""
        self._is_ended = False
        self._meter = SendMeter(store.address)

    def put(self, emission: PendingEmission[Any], chunks: Sequence[Chunk], *, patience: float) -> None:
        """Add a tree within `patience` seconds. The emission is notified of the answer and of the outcome.

        Raises ProviderStopped after `aclose`.
        """
        if self._is_ended:
            raise ProviderStopped(f"cannot add {emission.event}: the provider is stopping")
        now = clock.monotonic()
        pending = _PendingTree(emission, chunks, now, now + patience, self._tracker.attendance.begin_call())
        if chunks[0].head.key:
            self._tracker.waits.expect_answers(1)
        # Before the call, so that no outcome finds its emission missing.
        self._tracker.register(emission, delay=0.0)
        if len(chunks) > 1:
            self._start(self._send_chunks(pending))
            return
        if not self._waiting:
            # Not at once: the other trees of this tick go along.
            asyncio.get_running_loop().call_soon(self._flush, context=self._context)
        self._waiting.append(pending)
        if pending.deadline < self._expiry_at < math.inf:
            self._watch_waiting()

    async def aclose(self, patience: float) -> None:
        """Refuse new trees, wait at most `patience` seconds for the calls of the others, then cancel them."""
        self._is_ended = True
        end = clock.monotonic() + patience
        self._flush()
        while self._calls and (left := end - clock.monotonic()) > 0:
            await asyncio.wait(self._calls, timeout=left)  # the end of a call may begin the next one
        waiting, self._waiting = self._waiting, deque()
        self._watch_waiting()
        await end_calls(self._calls)
        for pending in waiting:
            self._fail(pending, asyncio.CancelledError(), is_last=False)

    def _start(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(
            call, name="eventbus-tree-sender", context=self._context.copy()
        )
        self._calls.add(task)
        task.add_done_callback(self._calls.discard, context=self._context)

    def _flush(self) -> None:
        """Send the waiting trees while fewer than `IN_FLIGHT` calls are under way."""
        while self._waiting and self._under_way < IN_FLIGHT:
            self._under_way += 1
            self._start(self._send(self._next_batch()))
        self._watch_waiting()

    def _next_batch(self) -> list[_PendingTree]:
        """Take the oldest trees, several if they fit in one call and their deadlines are near each other."""
        batch = [self._waiting.popleft()]
        count = batch[0].chunks[0].head.rows
        while self._waiting:
            after = self._waiting[0]
            count += after.chunks[0].head.rows
            if count > HEAVY_ROWS or abs(after.deadline - batch[0].deadline) > _NEAR:
                break
            batch.append(self._waiting.popleft())
        return batch

    def _watch_waiting(self) -> None:
        """Set the timer for the earliest deadline of the trees that wait; stop it if none does."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self._expiry_at = min((each.deadline for each in self._waiting), default=math.inf)
        if self._waiting:
            left = max(self._expiry_at - clock.monotonic(), 0.0)
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(left, self._end_overdue, context=self._context)

    def _end_overdue(self) -> None:
        """Fail the trees that still wait and whose time is over."""
        now = clock.monotonic()
        overdue = [each for each in self._waiting if each.deadline <= now]
        self._waiting = deque(each for each in self._waiting if each.deadline > now)
        self._watch_waiting()
        for pending in sorted(overdue, key=lambda each: each.deadline):
            self._fail(pending, late_behind(self._store.address), is_last=False)

    async def _send(self, batch: list[_PendingTree]) -> None:
        """Send whole trees in one call, which ends at the earliest of their deadlines."""
        chunks = [pending.chunks[0] for pending in batch]
        deadline = min(pending.deadline for pending in batch)
        go_on: Callable[[], object] = self._flush
        try:
            verdicts = await self._add(chunks, deadline, number=batch[0].number)
        except BaseException as error:  # a cancellation too: the emissions must get their end
            for pending in batch:
                self._fail(pending, error, is_last=True)
            if isinstance(error, Exception):
                return
            go_on = partial(call_unless_ending, self._flush)
            raise
        finally:
            self._under_way -= 1
            go_on()
        for pending, verdict in zip(batch, verdicts, strict=True):
            if verdict.word == "pending":
                self._start(self._send_chunks(pending))
            else:
                self._deliver(pending, verdict)

    async def _send_chunks(self, pending: _PendingTree) -> None:
        """Send a large tree chunk by chunk.

        A tree that gave way to another one with its key while it was sent begins again, once: then it meets
        that one.
        """
        sent: list[Chunk] = []
        try:
            verdict = await self._send_in_turn(pending, sent)
            if verdict.word == "gone" and pending.chunks[0].head.key:
                verdict = await self._send_in_turn(pending, sent)
        except BaseException as error:
            # Without its last chunk a tree never opens, so it counts as not sent.
            self._fail(pending, error, is_last=sent[-1] is pending.chunks[-1])
            if not isinstance(error, Exception):
                raise
            return
        self._deliver(pending, verdict)

    async def _send_in_turn(self, pending: _PendingTree, sent: list[Chunk]) -> TreeVerdict:
        """Send the chunks one after the other, only the first one if the key already stands for a tree."""
        verdict = TreeVerdict("new", "", "", "")
        for chunk in pending.chunks:
            sent.append(chunk)
            verdict = await self._send_chunk(chunk, pending)
            if verdict.word != "new":
                break
        return verdict

    async def _send_chunk(self, chunk: Chunk, pending: _PendingTree) -> TreeVerdict:
        """Send a chunk until the server knows what becomes of it."""
        while True:
            (verdict,) = await self._add([chunk], pending.deadline, number=pending.number)
            if verdict.word != "pending":
                return verdict
            await asyncio.sleep(_PAUSE)

    async def _add(self, chunks: Sequence[Chunk], deadline: float, *, number: int) -> list[TreeVerdict]:
        said = self._tracker.attendance.say_always()
        return await self._store.trees.add(
            self._emitter, chunks, deadline=deadline, attendance=said, number=number
        )

    def _deliver(self, pending: _PendingTree, verdict: TreeVerdict) -> None:
        """Notify the emission of a tree of the server's answer."""
        emission = pending.emission
        if verdict.word == "new":
            emission.mark_enqueued()
        elif verdict.word == "gone":
            why = EmitError(
                f"{emission.event} was not added whole: it took longer than a minute, or was cancelled "
                "meanwhile",
                event=emission.event,
                job_id=emission.job_id,
            )
            self._tracker.waits.forget(emission, why)
        else:
            join(self._tracker, emission, verdict, since=pending.since)
        self._end(pending)

    def _fail(self, pending: _PendingTree, error: BaseException, *, is_last: bool) -> None:
        """End the emission of a tree whose call failed. `is_last`: the call carried the last chunk."""
        emission = pending.emission
        note_unexpected("adding a tree failed unexpectedly", error)
        maybe_sent = is_last and may_have_arrived(error)
        hint = f"its id {emission.job_id!r}"
        self._tracker.waits.forget(emission, describe_lost(emission, error, maybe_sent=maybe_sent, hint=hint))
        self._end(pending)

    def _end(self, pending: _PendingTree) -> None:
        """Note that no answer for this tree is owed any more."""
        self._meter.note([pending.emission], pending.since)
        self._tracker.attendance.end_call(pending.number)
        if pending.chunks[0].head.key:
            self._tracker.waits.expect_answers(-1)
