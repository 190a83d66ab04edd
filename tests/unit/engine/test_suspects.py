"""The gate of a worker: which of its calls may claim suspects, and when nothing may be claimed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from eventbus.engine.claiming.suspects import Ask, SuspectGate
from eventbus.model import clock
from eventbus.store.scripting.script_rows import ClaimRow, TurnAnswer, WatchRow

LEASE, BEAT = 10.0, 3.0


class _Worker:
    """A gate with the jobs that its worker runs, and a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.running: set[str] = set()
        self.rooms = 0
        self.gate = SuspectGate(self.running, lease=LEASE, on_room=self._note_room)

    def _note_room(self) -> None:
        self.rooms += 1

    def answer(
        self, ask: Ask, *watches: tuple[str, int, int], others: int = 0, lonely: tuple[int, ...] = ()
    ) -> set[str]:
        """The call of `ask` is answered: these suspects, with their caps and fatal ms, and other jobs were
        claimed.
        """
        names = [*(each[0] for each in watches), *(f"other{len(self.running) + n}" for n in range(others))]
        self.running.update(names)
        claims = [ClaimRow(name, 1, "", 0, 3, 0, 0, "") for name in names]
        rows = [WatchRow(*each) for each in watches]
        self.gate.answered(ask)
        answer = TurnAnswer(0, -1, [], [], [], "w:1", claims, [], rows, lonely)
        return self.gate.note(ask, answer, ["q", "p"])

    def end(self, job: str) -> None:
        self.running.discard(job)
        self.gate.ended(job)


@pytest.fixture
async def worker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[_Worker]:
    worker = _Worker()
    monkeypatch.setattr(clock, "monotonic", lambda: worker.now)
    yield worker
    worker.gate.close()


async def test_a_worker_without_suspects_may_take_any_and_is_never_closed(worker: _Worker) -> None:
    ask = worker.gate.ask(["q"])
    assert (ask.room > 100, ask.watched, ask.is_alone) == (True, 0, False)
    worker.answer(ask, others=50)
    assert worker.gate.is_open
    assert worker.gate.next_change() is None


async def test_as_many_may_be_taken_as_the_smallest_cap_leaves(worker: _Worker) -> None:
    worker.answer(worker.gate.ask(["q"]), ("a", 5, 1000), ("b", 4, 1000))
    assert worker.gate.is_open
    ask = worker.gate.ask(["q"])
    assert (ask.room, ask.watched) == (2, 2)
    worker.answer(ask, ("c", 3, 1000))
    assert worker.gate.ask(["q"]).room == 0


async def test_a_suspect_is_watched_until_it_outlived_its_last_end_by_a_beat(worker: _Worker) -> None:
    worker.answer(worker.gate.ask(["q"]), ("a", 2, 7000), ("b", 2, 1000))
    ask = worker.gate.ask(["q"])
    assert ask.room == 0
    worker.gate.answered(ask)
    assert worker.gate.next_change() == 1.0 + BEAT
    worker.now += 1.0 + BEAT + 0.01
    ask = worker.gate.ask(["q"])
    assert (ask.room, ask.watched) == (1, 1)
    worker.gate.answered(ask)
    worker.now += 6.0
    assert worker.gate.ask(["q"]).watched == 0


async def test_the_end_of_what_is_watched_makes_room_and_says_so_once(worker: _Worker) -> None:
    worker.answer(worker.gate.ask(["q"]), ("a", 1, 7000))
    assert not worker.gate.is_open
    worker.end("a")
    worker.end("a")
    worker.end("other")
    assert worker.gate.is_open
    assert worker.rooms == 1


async def test_a_job_that_ended_without_a_word_is_watched_no_more(worker: _Worker) -> None:
    worker.answer(worker.gate.ask(["q"]), ("a", 1, 7000))
    worker.running.discard("a")  # its lease was lost
    assert worker.gate.is_open


async def test_one_of_two_calls_may_take_suspects_and_the_queues_of_the_other_are_asked_again(
    worker: _Worker,
) -> None:
    first, second = worker.gate.ask(["q"]), worker.gate.ask(["p"])
    assert (first.room > 0, second.room) == (True, 0)
    assert worker.answer(second) == set()
    assert worker.answer(first) == {"p"}
    assert worker.gate.ask(["q"]).room > 0


async def test_a_call_that_only_settles_takes_no_right_away(worker: _Worker) -> None:
    assert worker.gate.ask([]) == Ask()
    assert worker.gate.ask(["q"]).room > 0


async def test_for_a_suspect_that_must_be_alone_nothing_is_claimed_for_a_beat(worker: _Worker) -> None:
    worker.answer(worker.gate.ask(["q"]), others=3, lonely=(2,))
    assert not worker.gate.is_open
    assert worker.gate.find_lonely() == []
    assert worker.gate.next_change() == BEAT
    worker.now += BEAT
    assert worker.gate.is_open
    assert worker.gate.find_lonely() == ["p"]
    ask = worker.gate.ask(["p"])
    assert (ask.is_alone, ask.watched) == (True, 0)
    assert not worker.gate.is_open, "the other lane starts nothing meanwhile"
    worker.answer(ask, ("a", 1, 2000))
    assert not worker.gate.is_open, "nothing starts beside it"
    worker.now += 2.0 + BEAT + 0.01
    assert worker.gate.is_open
    assert worker.gate.find_lonely() == []


async def test_a_worker_that_runs_nothing_makes_room_at_once(worker: _Worker) -> None:
    worker.answer(worker.gate.ask(["q"]), lonely=(1,))
    assert worker.gate.is_open
    assert worker.gate.find_lonely() == ["q"]


async def test_room_is_not_made_while_an_answer_may_bring_jobs(worker: _Worker) -> None:
    other = worker.gate.ask(["p"])
    worker.gate.answered(other)
    first, second = worker.gate.ask(["q"]), worker.gate.ask(["p"])
    worker.answer(first, lonely=(1,))
    assert not worker.gate.is_open
    worker.answer(second, others=1)
    assert not worker.gate.is_open
    worker.now += BEAT
    assert worker.gate.find_lonely() == ["q"]


async def test_while_one_waits_to_be_alone_no_other_suspect_is_taken_and_other_jobs_go_on(
    worker: _Worker,
) -> None:
    worker.answer(worker.gate.ask(["q"]), ("a", 9, 5000), lonely=(1,))
    assert worker.gate.is_open
    ask = worker.gate.ask(["q"])
    assert (ask.room, ask.watched) == (0, 1)
    worker.answer(ask, others=2)
    worker.end("a")
    assert not worker.gate.is_open
    worker.now += BEAT
    assert worker.gate.find_lonely() == ["q"]


async def test_what_was_not_there_any_more_is_waited_for_no_longer(worker: _Worker) -> None:
    worker.answer(worker.gate.ask(["q"]), lonely=(1,))
    ask = worker.gate.ask(worker.gate.find_lonely())
    worker.answer(ask, others=1)
    assert worker.gate.is_open
    assert worker.gate.ask(["q"]).room > 0


async def test_a_call_that_failed_is_made_again(worker: _Worker) -> None:
    """`alone-given-up`."""
    worker.answer(worker.gate.ask(["q"]), lonely=(1,))
    worker.gate.answered(worker.gate.ask(worker.gate.find_lonely()))
    assert worker.gate.is_open
    worker.answer(worker.gate.ask(["q"]), lonely=(1,))
    assert worker.gate.find_lonely() == ["q"]


async def test_after_a_lease_another_worker_may_make_room(worker: _Worker) -> None:
    worker.answer(worker.gate.ask(["q"]), ("a", 9, 60_000), lonely=(1,))
    worker.now += LEASE + 0.1
    assert worker.gate.ask(["q"]).room == 8
