"""The gathering of one batch handler: claimed jobs wait for others, and one call of the handler takes them.

    a job:   claimed -> waits -> in a call -> has its outcome: settled on its own
                              -> leaves, while it waits or in the call: cancelled, timed out, lease lost,
                                 worker stops
    a call:  begun (full, or the oldest job has waited long enough, and a place is free) -> ended
                                                       -> every job leaves: cancelled -> ended

Each job of a batch stays a job: it has its own task in the executor, lease, fence, clock, attempts and
settle, and goes through the middleware by itself. What is shared is the call of the handler alone. So nothing
of the store and little of the engine knows of batches: limits, priorities, pauses, rescues and the blame for
a dead worker count jobs, as ever.

What must always hold:
- a job is in one call at most, and each outcome reaches the job whose payload stands in its place;
- at most `concurrency` calls run; one call takes one slot of the worker (`slots_of`), however many
  jobs it has;
- a job that leaves touches no other: the call goes on for those that stay, and what it returns for
  that job is dropped;
- a call is cancelled when nobody stays. Then its jobs wait for its end, because their slot is not
  free before; after a second cancellation only one of them still does (`keeper`), so a handler that
  ignores it is given up on once, and its place is free then (`give_up`), as that of any handler is;
- no job waits for others longer than `wait`, nor while the worker stops, nor if a worker died with it before.

Crash windows:
- `dies-gathering`, `dies-in-batch`: the worker dies while jobs wait, or in the call. Their leases
  run out, and each is rescued with a stall of its own, and later runs alone or in another batch.
  One that kills its workers becomes a suspect after three blames, as its neighbours may; the engine
  then takes suspects apart until it has the killer alone. A suspect does not wait for others: it
  has stalled, so its call begins at once, while the engine still watches it;
- `dies-in-settles`: some jobs of a call are settled, the others are not: those run again;
- a lost answer of a turn is asked for again, as for any settle and claim.

Weighed:
- one settle for the whole batch, or one lease: a cancel, a lost lease or a poison would then be
  everybody's, and the store would need a second kind of job;
- to gather in the server: a job would need a place that is neither waiting nor active, and each
  wait a timer there;
- a timeout of the batch as the shortest of its jobs': one emission could so end the work of all others. Each
  job has its own clock, which starts with the call, and the handler's timeout ends all of them at once;
- jobs of a call that raised run apart in their next attempt: that hides which error was whose. A
  handler that knows returns the error in the place of its job.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias

import anyio

from eventbus.engine.job import Job
from eventbus.handlers.batches.call import BatchCall, Item
from eventbus.model.batch import Batch
from eventbus.model.message import EventMessage

Run: TypeAlias = Callable[[Sequence[Item]], Coroutine[Any, Any, Sequence[Any]]]
"""Calls the handler, and returns as many outcomes as there are items; one that is an exception is an
error.
"""


class Gathering:
    """Gathers the jobs of one batch handler in one worker, in the order in which they come."""

    def __init__(
        self,
        batch: Batch,
        concurrency: int,
        run: Run,
        *,
        on_begin: Callable[[Item], None],
        on_room: Callable[[], None],
    ) -> None:
        """At most `concurrency` calls run. `on_begin` is called for each job whose call begins, `on_room`
        after the end of a call.
        """
        self.context: contextvars.Context | None = None
        """The context of each call; the consumer sets it before the first job comes."""
        self._size = batch.size
        self._wait = batch.seconds
        self._concurrency = concurrency
        self._run = run
        self._on_begin = on_begin
        self._on_room = on_room
        self._waiting: deque[Item] = deque()
        self._calls: set[BatchCall] = set()
        self._look: asyncio.Handle | None = None
        """Looks for calls to begin, soon or when the oldest job has waited long enough."""
        self._is_soon = False
        self._is_hurried = False

    @property
    def room(self) -> int:
        """How many jobs calls that have not begun may take, those that wait among them."""
        return max(0, self._concurrency - len(self._calls)) * self._size

    @property
    def in_calls(self) -> int:
        """How many jobs are in calls, and have not left them."""
        return sum(call.present for call in self._calls)

    def slots_of(self, jobs: int) -> int:
        """Return how many slots of the worker that many jobs take: one for each call, running or to come."""
        return len(self._calls) - (self.in_calls - jobs) // self._size

    def room_for(self, jobs: int, slots: int) -> int:
        """Return how many more jobs than these fit into the calls to which they come, and into `slots`
        further calls.
        """
        return (self.in_calls - jobs) % self._size + max(0, slots) * self._size

    async def put(self, job: Job, message: EventMessage, payload: Any) -> Any:
        """Wait for the call that takes the job, and return the outcome for it or raise its error.

        Raises CancelledError if the job leaves: at once while it waits or while others stay, otherwise after
        the call.
        """
        item = Item(job, message, payload, since=asyncio.get_running_loop().time())
        self._waiting.append(item)
        if self._look is None or len(self._waiting) >= self._size or job.stalls:
            self._look_soon()
        try:
            return await item.outcome
        except asyncio.CancelledError:
            if item.call is not None:
                with anyio.CancelScope(shield=True):  # the repeats of anyio are no second cancellation
                    return await item.call.leave(item)
            if item in self._waiting:
                self._waiting.remove(item)
            raise

    def hurry(self) -> None:
        """Let nothing wait for others from now on, because the worker stops or takes no more jobs of the
        handler.
        """
        self._is_hurried = True
        if self._waiting:
            self._look_soon()

    def give_up(self, job: Job) -> None:
        """Forget the call whose keeper is this job, because the engine no longer waits for its end."""
        for call in list(self._calls):
            if call.keeper is not None and call.keeper.job is job:
                self._on_end(call)

    def _look_soon(self) -> None:
        """Look for a call to begin; not at once, because the other jobs of the same claim have not
        come yet.
        """
        if self._is_soon:
            return
        if self._look is not None:
            self._look.cancel()
        self._is_soon = True
        self._look = asyncio.get_running_loop().call_soon(self._begin_calls)

    def _begin_calls(self) -> None:
        """Begin the calls that are due and have a place, and set the timer of the next one."""
        self._look, self._is_soon = None, False
        while self._waiting and len(self._calls) < self._concurrency:
            left = self._time_left()
            if left > 0:
                self._look = asyncio.get_running_loop().call_later(left, self._begin_calls)
                return
            taken = [self._waiting.popleft() for _ in range(min(self._size, len(self._waiting)))]
            if items := [item for item in taken if not item.outcome.done()]:  # the others are about to leave
                self._begin(items)

    def _time_left(self) -> float:
        """Return for how many seconds what waits may still wait for others."""
        is_due = self._is_hurried or len(self._waiting) >= self._size
        if is_due or any(item.job.stalls for item in self._waiting):
            return 0.0
        return self._waiting[0].since + self._wait - asyncio.get_running_loop().time()

    def _begin(self, items: list[Item]) -> None:
        call = BatchCall(items, self._on_end)
        self._calls.add(call)
        call.begin(self._run(items), (self.context or contextvars.Context()).copy())
        for item in items:
            self._on_begin(item)

    def _on_end(self, call: BatchCall) -> None:
        self._calls.discard(call)
        if self._waiting:
            self._look_soon()
        self._on_room()
