"""The children of a flow: jobs that the activation of its root adds, and whose ends it learns.

    child recorded (entry `child`) -> added -> ended -> its end recorded -> what follows begins

A child is the root of another flow, or a job in the steps queue of this one. Its id follows from the flow,
the run and the place, so that adding it again adds nothing. Its failure stops nothing by itself
(`up="ignore"`): the flow decides.

While other work goes on here, ends are found by asking. When only children are left, the root waits for them
in the server, without a slot (`suspend`). Whoever claims it next asks once (`find_ended`), before anything
else happens.

What must always hold: the end of a child counts only once it is recorded; a child that was recorded and is
not there is added again; what this worker adds, it adds under its lease. Nobody asks for the end of a child
before it is added: the answer would be `unknown`, as if it never was there.

Crash windows: `recorded-not-added` (its state is `unknown`, so it is added), `added-not-answered` (the repeat
adds nothing), `ended-before-wait` (the wait ends at once), `ended-while-nobody-ran` (the next activation
finds it), `stopped-while-it-runs` (the mark of the tree reaches it, and its end is read before the rollbacks
begin).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from eventbus.lowlevel import FINAL_STATES, Member, Outcome, Settle, clock, give_back
from workflows.distributed.activation import Activation
from workflows.distributed.worker_runtime import WorkerRuntime
from workflows.execution.surroundings import FlowStops, LeaseLost

_SOON, _EVERY = 0.005, 0.5
"""Seconds until the first question after the ends of children, and the most between two of them, while other
work goes on here. Each question without news doubles them."""

_SHARE = 5
"""The least pause after a question, in parts of the time that it took."""

_GATHER = 0.005
"""Seconds in which children gather that are added in one call. A wait that begins meanwhile brings them
along.
"""


class ChildJobs:
    """The children of one activation. `suspend` or `close` ends it."""

    def __init__(self, runtime: WorkerRuntime, activation: Activation) -> None:
        self._runtime = runtime
        self._activation = activation
        self.quiet: Callable[[], None] | None = None
        """Called after each question that found no new end for as long as `_EVERY`."""
        self._pending: list[Member] = []
        self._has_more = asyncio.Event()
        self._ends: dict[str, asyncio.Future[Outcome]] = {}
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._wait = _SOON
        self._is_adding = False
        self._is_closing = False

    async def find_ended(self, ids: Sequence[str]) -> dict[str, Outcome]:
        """Return the outcomes of those that have ended, by id; and of those that are not there (`unknown`).
        Raises ServerAway.
        """
        found = await self._runtime.ask(self._runtime.jobs.outcomes(ids)) if ids else []
        return {each.job: each for each in found if each.state in (*FINAL_STATES, "unknown")}

    def add_member(self, member: Member) -> asyncio.Future[Outcome]:
        """Add a child, in one call with others of this moment. The entry about it must be recorded. Return as
        `end_of` does.
        """
        self._pending.append(member)
        self._has_more.set()
        return self.end_of(member.id)

    def end_of(self, child: str) -> asyncio.Future[Outcome]:
        """Return the future of the outcome of a child.

        It may also raise FlowStops or LeaseLost, if the child was not added, and ServerAway.
        """
        end = self._ends.get(child)
        if end is None:
            end = self._ends[child] = asyncio.get_running_loop().create_future()
            if self._error is not None:
                _refuse(end, self._error)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve())
        return end

    def drop(self, child: str) -> bool:
        """Forget a child that is not added yet, as if it never was there; return False if it is, or is being
        added.
        """
        if self._is_adding or all(member.id != child for member in self._pending):
            return False
        self._pending = [member for member in self._pending if member.id != child]
        end = self._ends.get(child)
        if end is not None and not end.done():
            end.set_result(Outcome(child, "unknown", ""))
        return True

    @property
    def is_adding(self) -> bool:
        """Whether children are being added."""
        return self._is_adding

    async def suspend(
        self,
        awaited: Collection[str],
        *,
        until_ms: int | None = None,
        listens: bool = False,
        first: bool = True,
    ) -> Settle | None:
        """Let the root wait until one of `awaited` has ended (without `first`: all), or a time comes, or with
        `listens` a signal.

        With `listens` this activation must have looked at all signals. Return what is to be settled: nothing,
        if the root waits or has lost its lease. Raises ServerAway.
        """
        await self.close()
        activation = self._activation
        word = await self._runtime.ask(
            self._runtime.jobs.spawn(
                activation.job,
                self._pending,
                tree=activation.job.id,
                awaited=list(awaited),
                delay_ms=None if until_ms is None else max(0, until_ms - activation.clock.now_ms),
                heard=activation.job.heard if listens else None,
                first=first,
            )
        )
        return give_back() if word == "stopping" else None

    async def close(self) -> None:
        """Ask no more. What is being added is added; what waits to be added stays so, for `suspend`."""
        self._is_closing = True
        task, self._task = self._task, None
        if task is not None:
            if not self._is_adding:
                task.cancel()
            await asyncio.wait({task})
        self._ends.clear()
        self.quiet = None  # it refers to the run, and that to this: both would wait for the collector

    async def _serve(self) -> None:
        try:
            while not self._is_closing:
                if self._pending:
                    await asyncio.sleep(_GATHER)
                    await self._add()
                elif not await self._is_interrupted():
                    await self._ask()
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001  (whoever awaits an end must get it)
            self._error = error
            for end in self._ends.values():
                if not end.done():
                    _refuse(end, error)

    async def _is_interrupted(self) -> bool:
        """Wait before the next question; return True if a child came meanwhile."""
        self._has_more.clear()
        try:
            await asyncio.wait_for(self._has_more.wait(), self._wait)
        except TimeoutError:
            return bool(self._pending)  # it may come when the time is up already
        return True

    async def _add(self) -> None:
        members, activation = list(self._pending), self._activation
        self._is_adding = True
        try:
            word = await self._runtime.ask(
                self._runtime.jobs.spawn(activation.job, members, tree=activation.job.id, waits=False)
            )
        finally:
            self._is_adding = False
        if word == "stopping":
            raise FlowStops
        if word == "lost":
            raise LeaseLost
        self._wait = _SOON
        del self._pending[: len(members)]

    async def _ask(self) -> None:
        open_ones = [child for child, end in self._ends.items() if not end.done()]
        begun = clock.monotonic()
        found = await self.find_ended(open_ones)
        least = _SHARE * (
            clock.monotonic() - begun
        )  # a question about thousands of children is work for the server
        for child, outcome in found.items():
            end = self._ends.get(child)
            if end is not None and not end.done():
                end.set_result(outcome)
        if found:
            self._wait = max(_SOON, least)
        elif self._wait < _EVERY:
            self._wait = max(min(2 * self._wait, _EVERY), least)
        elif self.quiet is not None:
            self.quiet()


def _refuse(end: asyncio.Future[Outcome], error: BaseException) -> None:
    """Let whoever awaits an end get an error, and asyncio log nothing if nobody does."""
    end.set_exception(error)
    end.exception()
