"""The gathering of a batch handler: when calls begin, with whom, and who stays in them. The test moves the
loop's clock.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from eventbus.engine.job import Job
from eventbus.handlers.batches.call import Item
from eventbus.handlers.batches.gathering import Gathering
from eventbus.model.batch import Batch
from eventbus.model.message import EventMessage


class Hall:
    """A gathering with jobs of numbers, and a handler that ends when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, size: int, wait: float, concurrency: int = 1) -> None:
        self.now = 100.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)
        self.begun: list[list[int]] = []
        self.clocks: list[int] = []
        self.ends: list[asyncio.Future[Any]] = []
        self.is_stubborn = False
        self.roomy = 0
        self.gathering = Gathering(
            Batch(size=size, wait=wait), concurrency, self._run, on_begin=self._begin, on_room=self._note_room
        )
        self.gathering.context = contextvars.copy_context()
        self.tasks: list[asyncio.Task[Any]] = []
        self.jobs: list[Job] = []

    def _begin(self, item: Item) -> None:
        self.clocks.append(item.payload)

    def _note_room(self) -> None:
        self.roomy += 1

    async def _run(self, items: Sequence[Item]) -> Sequence[Any]:
        self.begun.append([item.payload for item in items])
        end: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.ends.append(end)
        while True:
            try:
                return await asyncio.shield(end) or [2 * item.payload for item in items]
            except asyncio.CancelledError:
                if not self.is_stubborn:
                    raise

    async def come(self, *numbers: int, stalls: int = 0) -> None:
        for number in numbers:
            job = Job(f"j{number}", "t", "q", "{}", 0, stalls, 0, 0, 0)
            self.jobs.append(job)
            put = self.gathering.put(job, EventMessage(payload=b"null"), number)  # type: ignore[arg-type]
            self.tasks.append(asyncio.create_task(put))
        await self.settle()

    async def settle(self) -> None:
        """Let everything happen that needs no time."""
        for _ in range(10):
            await asyncio.sleep(0)

    async def move(self, seconds: float) -> None:
        self.now += seconds
        await self.settle()

    async def strike(self, *places: int, cause: Any = "cancel") -> None:
        """Cancel the tasks of these jobs, as the executor does."""
        for place in places:
            self.jobs[place].ending = self.jobs[place].ending or cause
            self.tasks[place].cancel()
        await self.settle()

    def states(self) -> list[Any]:
        """Return for each job its outcome: a result, the name of an error, or None while it waits."""
        return [_state(task) for task in self.tasks]

    async def close(self) -> None:
        self.is_stubborn = False
        for task in self.tasks:
            task.cancel()
        for end in self.ends:
            end.cancel()
        await self.settle()


def _state(task: asyncio.Task[Any]) -> Any:
    if not task.done():
        return None
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return task.result() if error is None else type(error).__name__


@pytest.fixture
def hall(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Hall]:
    return lambda size, wait=0.0, concurrency=1: Hall(monkeypatch, size, wait, concurrency)


async def test_the_oldest_job_waits_no_longer_than_that(hall: Callable[..., Hall]) -> None:
    room = hall(10, 1.0)
    await room.come(1)
    await room.move(0.6)
    await room.come(2)
    await room.move(0.39)
    assert room.begun == []
    await room.move(0.02)
    assert room.begun == [[1, 2]], "the second one does not begin a wait of its own"
    assert room.clocks == [1, 2], "now their timeouts count"
    await room.close()


async def test_a_full_call_begins_at_once_and_the_rest_waits(hall: Callable[..., Hall]) -> None:
    room = hall(3, 1.0, 5)
    await room.come(1, 2)
    await room.move(0.5)
    await room.come(3, 4)
    assert room.begun == [[1, 2, 3]]
    await room.move(0.9)
    assert len(room.begun) == 1, "the rest waits from its own arrival on"
    await room.move(0.11)
    assert room.begun == [[1, 2, 3], [4]]
    await room.close()


async def test_no_more_calls_run_than_there_are_places(hall: Callable[..., Hall]) -> None:
    room = hall(2, 0.0, 2)
    await room.come(1, 2, 3, 4, 5, 6, 7)
    assert room.begun == [[1, 2], [3, 4]]
    assert (room.gathering.room, room.gathering.in_calls) == (0, 4)
    room.ends[0].set_result(None)
    await room.settle()
    assert room.begun[2:] == [[5, 6]]
    assert room.states()[:3] == [2, 4, None]
    assert room.roomy == 1
    room.ends[1].set_result(None)
    await room.settle()
    assert room.begun[3:] == [[7]]
    await room.close()


async def test_what_is_not_full_does_not_hold_back_a_call_that_is_due(hall: Callable[..., Hall]) -> None:
    room = hall(5, 1.0)
    await room.come(1)
    await room.move(1.01)
    await room.come(2, 3)
    await room.move(5)
    assert room.begun == [[1]], "the place is taken"
    room.ends[0].set_result(None)
    await room.settle()
    assert room.begun == [[1], [2, 3]], "their wait was over long ago"
    await room.close()


async def test_a_job_with_a_stall_does_not_wait_for_others(hall: Callable[..., Hall]) -> None:
    room = hall(10, 60.0)
    await room.come(1)
    assert room.begun == []
    await room.come(2, stalls=3)
    assert room.begun == [[1, 2]]
    await room.close()


async def test_nothing_waits_after_a_hurry(hall: Callable[..., Hall]) -> None:
    room = hall(10, 60.0)
    await room.come(1, 2)
    room.gathering.hurry()
    await room.settle()
    assert room.begun == [[1, 2]]
    room.ends[0].set_result(None)
    await room.come(3)
    assert room.begun == [[1, 2], [3]]
    await room.close()


async def test_each_gets_its_own_outcome(hall: Callable[..., Hall]) -> None:
    room = hall(4)
    await room.come(1, 2, 3, 4)
    room.ends[0].set_result([10, ValueError("b"), None, KeyError("d")])
    await room.settle()
    assert room.states() == [10, "ValueError", None, "KeyError"]
    assert room.tasks[2].done()


async def test_what_a_call_raises_reaches_each(hall: Callable[..., Hall]) -> None:
    room = hall(2)
    await room.come(1, 2)
    room.ends[0].set_exception(ConnectionError("away"))
    await room.settle()
    assert room.states() == ["ConnectionError", "ConnectionError"]


async def test_a_handler_that_cancels_itself_ends_its_jobs(hall: Callable[..., Hall]) -> None:
    room = hall(2)
    await room.come(1, 2)
    room.ends[0].cancel()
    await room.settle()
    assert room.states() == ["cancelled", "cancelled"]
    assert [job.ending for job in room.jobs] == ["", ""], "the executor makes an error of it"


@pytest.mark.parametrize("cause", ["cancel", "timeout", "lease"])
async def test_who_leaves_touches_no_other(hall: Callable[..., Hall], cause: str) -> None:
    room = hall(3)
    await room.come(1, 2, 3)
    await room.strike(0, cause=cause)
    assert room.states() == ["cancelled", None, None]
    assert (room.gathering.in_calls, room.gathering.slots_of(2)) == (2, 1)
    room.ends[0].set_result(None)
    await room.settle()
    assert room.states() == ["cancelled", 4, 6]


async def test_a_call_without_jobs_is_cancelled_and_they_wait_for_its_end(hall: Callable[..., Hall]) -> None:
    room = hall(2)
    room.is_stubborn = True
    await room.come(1, 2)
    await room.strike(0, 1, cause="timeout")
    assert room.states() == [None, None], "the handler has not ended"
    room.ends[0].set_result(None)
    await room.settle()
    assert room.states() == [2, 4], "the executor decides what that is worth"


async def test_one_job_waits_on_for_a_call_that_ignores_its_cancellation(hall: Callable[..., Hall]) -> None:
    room = hall(3)
    room.is_stubborn = True
    await room.come(1, 2, 3)
    await room.strike(0, 1, 2, cause="timeout")
    await room.strike(0, 1, 2)
    assert room.states() == [None, "cancelled", "cancelled"]
    assert room.gathering.slots_of(1) == 1
    room.ends[0].set_result(None)
    await room.settle()
    assert (room.states()[0], room.gathering.slots_of(0)) == (2, 0)


async def test_the_second_cancellation_reaches_the_call(hall: Callable[..., Hall]) -> None:
    room = hall(2)
    room.is_stubborn = True
    await room.come(1, 2)
    await room.strike(0, 1, cause="timeout")
    room.is_stubborn = False
    await room.strike(0, 1)
    assert room.states() == ["cancelled", "cancelled"]
    assert room.gathering.slots_of(0) == 0


async def test_one_that_is_given_back_waits_with_the_others(hall: Callable[..., Hall]) -> None:
    room = hall(2)
    await room.come(1, 2)
    await room.strike(0, cause="shutdown")
    assert room.states() == [None, None]
    room.ends[0].set_result(None)
    await room.settle()
    assert room.states() == [2, 4]


async def test_one_that_is_given_back_goes_after_its_second_cancellation(hall: Callable[..., Hall]) -> None:
    room = hall(2)
    await room.come(1, 2)
    await room.strike(0, cause="shutdown")
    await room.strike(0)
    assert room.states() == ["cancelled", None], "the call goes on for the other one"
    room.ends[0].set_result(None)
    await room.settle()
    assert room.states() == ["cancelled", 4]


async def test_a_cancelled_job_that_waits_is_forgotten(hall: Callable[..., Hall]) -> None:
    room = hall(2, 5.0)
    await room.come(1)
    await room.strike(0)
    await room.come(2, 3)
    assert room.begun == [[2, 3]]
    await room.close()


async def test_jobs_that_leave_while_their_call_begins_are_not_in_it(hall: Callable[..., Hall]) -> None:
    room = hall(2, 5.0)
    await room.come(1)
    room.tasks[0].cancel()
    room.gathering.hurry()
    await room.settle()
    assert (room.begun, room.states()) == ([], ["cancelled"])


async def test_slots_and_room(hall: Callable[..., Hall]) -> None:
    room = hall(10, 60.0, 3)
    gathering = room.gathering
    assert (gathering.slots_of(0), gathering.slots_of(1), gathering.slots_of(10), gathering.slots_of(11)) == (
        0,
        1,
        1,
        2,
    )
    assert [gathering.room_for(jobs, 0) for jobs in (0, 1, 9, 10, 11)] == [0, 9, 1, 0, 9]
    assert [gathering.room_for(jobs, 2) for jobs in (0, 1)] == [20, 29]
    await room.come(*range(14))
    assert (gathering.in_calls, gathering.room) == (10, 20)
    assert (gathering.slots_of(14), gathering.room_for(14, 0)) == (2, 6)
    await room.close()
