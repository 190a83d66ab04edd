"""The completion tracker: no outcome is lost or given to another emission, and nothing piles up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from drivers.counting import count_lines
from drivers.virtual import VirtualWorld

from eventbus import EventProvider, HandlerError, ProviderStopped, Retry
from eventbus.emit import stream_keeper
from eventbus.emit.emission import PendingEmission
from eventbus.emit.wait_list import EARLY_AGE, EARLY_LIMIT, WaitList
from eventbus.model import clock
from eventbus.model.event import Event
from eventbus.store.scripting.script_rows import Outcome

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


class HeldAdd:
    """A fault point: the server has done the add, its answer stays away until `release`."""

    def __init__(self, provider: EventProvider) -> None:
        self.store: Any = provider._life.store  # pyright: ignore[reportPrivateUsage]
        self.add = self.store.add
        self.is_done = asyncio.Event()
        self.release = asyncio.Event()
        self.store.add = self._held

    async def _held(self, *arguments: Any, **options: Any) -> Any:
        answer = await self.add(*arguments, **options)
        self.is_done.set()
        await self.release.wait()
        return answer


def _tracker(provider: EventProvider) -> Any:
    assert provider._life.emitter is not None  # pyright: ignore[reportPrivateUsage]
    return provider._life.emitter.tracker  # pyright: ignore[reportPrivateUsage]


def _early(provider: EventProvider) -> Any:
    return _tracker(provider).waits._early


@pytest.mark.parametrize("text", ["short", "x" * 20_000])
async def test_a_reply_that_overtakes_the_answer_to_its_own_add_is_delivered(
    make_provider: MakeProvider, until: Until, text: str
) -> None:
    first, second = make_provider(), make_provider()
    go = asyncio.Event()

    @first.on("ask")
    async def ask(_: Any) -> str:
        await go.wait()
        return text

    async with first.worker(), second:
        original = first.emit("ask", idempotency_key="k")
        await original.enqueued()
        held = HeldAdd(second)
        joined = second.emit("ask", idempotency_key="k", reply_timeout=None)
        await held.is_done.wait()
        go.set()
        assert await original == text
        await until(lambda: _early(second), "the reply is here before the answer")
        assert not joined.done()
        held.release.set()
        assert await asyncio.wait_for(joined, 240) == text
        assert joined.job_id == original.job_id
        assert not _early(second)


async def test_a_reply_that_overtakes_the_answer_of_a_new_job_is_delivered(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    provider.on("ask")(lambda n: n)
    async with provider.worker():
        held = HeldAdd(provider)
        emission = provider.emit("ask", 1)
        assert await asyncio.wait_for(emission, 240) == 1
        assert not held.release.is_set()
        held.release.set()
        await emission.enqueued()


async def test_an_emission_may_end_while_its_answer_is_away(make_provider: MakeProvider) -> None:
    provider = make_provider()
    async with provider:
        held = HeldAdd(provider)
        emission = provider.emit("ask", idempotency_key="k")
        await held.is_done.wait()
        _tracker(provider).waits.forget(emission, ProviderStopped("for this test"))
        held.release.set()
        with pytest.raises(ProviderStopped, match="for this test"):
            await emission
        await provider.emit("ask", idempotency_key="k", reply=False)
        assert _tracker(provider).waiting == 0


def _wait(waits: WaitList, job_id: str) -> PendingEmission[Any]:
    """Return an emission without a server, which waits for its own job."""
    route: Any = SimpleNamespace(name="ask", event=Event("ask"), decode_result=msgspec.json.decode)
    owner: Any = SimpleNamespace(loop=asyncio.get_running_loop())
    emission: PendingEmission[Any] = PendingEmission(route, owner, job_id, job_id, None, reply=True)
    waits.jobs[job_id] = [emission]
    return emission


async def test_the_early_buffer_is_bounded_in_number_and_age(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(clock, "monotonic", lambda: moved.now)
    waits: Any = WaitList()
    waits.expect_answers(1)
    for n in range(EARLY_LIMIT + 50):
        waits.settle(Outcome(f"j{n}", "completed", "1"))
    assert len(waits._early) == EARLY_LIMIT
    assert "j49" not in waits._early
    assert "j50" in waits._early
    moved.now += EARLY_AGE + 1
    waits.settle(Outcome("fresh", "completed", "1"))
    assert list(waits._early) == ["fresh"]
    waits.expect_answers(-1)
    assert not waits._early


async def test_outcomes_that_nobody_here_asked_for_leave_nothing() -> None:
    waits: Any = WaitList()
    waited = _wait(waits, "mine")
    for n in range(20_000):
        waits.settle(Outcome(f"foreign{n}", "completed", "1" if n % 2 else None))
    assert (waits._early, waits.unread, list(waits.jobs)) == ({}, [], ["mine"])
    assert not waited.done()
    # A job that is joined later does not get an outcome from before.
    waits.expect_answers(1)
    joined = _wait(waits, "other")
    waits.join(joined, "foreign7", "open", "", since=clock.monotonic())
    assert not joined.done()
    waits.settle(Outcome("mine", "completed", "7"))
    waits.settle(Outcome("mine", "failed", "{}"))  # the first settlement wins
    assert await waited == 7


async def test_all_who_wait_for_one_job_are_settled_by_it() -> None:
    waits: Any = WaitList()
    emissions = [_wait(waits, f"j{n}") for n in range(10)]
    for each in emissions[1:]:
        waits.join(each, "j0", "open", "", since=clock.monotonic())
    assert list(waits.jobs) == ["j0"]
    waits.settle(Outcome("j0", "completed", '"done"'))
    assert waits.unread == ["j0"]
    waits.settle_recorded(Outcome("j0", "completed", '"done"'), set(emissions))
    assert [await each for each in emissions] == ["done"] * 10
    assert not waits.jobs


async def test_an_outcome_that_overtakes_an_answer_is_kept_for_it_though_another_emission_heard_it() -> None:
    waits: Any = WaitList()
    first = _wait(waits, "j")
    waits.expect_answers(1)
    since = clock.monotonic()
    waits.settle(Outcome("j", "completed", "1"))
    joined = _wait(waits, "own")
    waits.join(joined, "j", "open", "", since=since)
    assert waits.unread == ["j"], "it may be of the run before"
    assert waits.told_of("j") == Outcome("j", "completed", "1"), "if the record is gone"
    waits.settle_recorded(Outcome("j", "completed", "1"), [joined])
    assert [await first, await joined] == [1, 1]
    assert (waits.jobs, waits._watched) == ({}, {})


async def test_an_outcome_from_before_the_add_was_sent_is_of_an_earlier_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job that failed and was retried by hand is open again; who joins it now waits for the new outcome."""
    moved = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(clock, "monotonic", lambda: moved.now)
    waits: Any = WaitList()
    waits.expect_answers(1)  # of some other add, for all of the test
    waits.settle(Outcome("j", "failed", "{}"))
    moved.now += 1
    joined = _wait(waits, "own")
    waits.join(joined, "j", "open", "", since=moved.now)
    assert (joined.done(), waits.unread) == (False, [])
    waits.settle(Outcome("j", "completed", "2"))
    assert (joined.done(), waits.unread) == (False, ["j"])
    waits.settle_recorded(Outcome("j", "completed", "2"), [joined])
    assert await joined == 2


@pytest.mark.parametrize("is_read", [True, False])
async def test_the_outcomes_of_the_runs_before_that_come_late_are_not_that_of_this_run(
    make_provider: MakeProvider, until: Until, *, is_read: bool
) -> None:
    """Neither those that were read from the record meanwhile, nor those that nobody waits for any more."""
    provider = make_provider()
    gates, runs = [asyncio.Event() for _ in range(3)], 0

    @provider.on("ask", retry=Retry(attempts=1))
    async def ask(_: Any) -> int:
        nonlocal runs
        runs += 1
        await gates[runs - 1].wait()
        if runs < 3:
            raise ValueError(f"not yet {runs}")
        return runs

    async with provider.worker():
        waits = _tracker(provider).waits
        late: list[Outcome] = []
        waits.settle = late.append  # what the stream brings
        job = provider.emit("ask", reply_timeout=None).job_id
        for run in (1, 2):
            waiting = asyncio.create_task(provider.result(job))
            await until(lambda: runs == run and job in waits.jobs, "the run is waited for")  # noqa: B023
            gates[run - 1].set()
            await until(lambda: len(late) == run, "the run has ended")  # noqa: B023
            if is_read:
                with pytest.raises(HandlerError, match=f"not yet {run}"):
                    await provider.result(job)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert await provider.inspector.jobs.retry(job)
        del waits.settle
        again = asyncio.create_task(provider.result(job))
        await until(lambda: runs == 3 and job in waits.jobs, "the last run is waited for")
        for outcome in late:
            waits.settle(outcome)
        await until(lambda: waits.looked == waits.announced, "the record was asked")
        assert not again.done()
        assert waits.told_of(job) is None, "the record is open, so none of them counts"
        gates[2].set()
        assert await again == 3


async def test_what_a_record_says_is_for_those_who_waited_before_it_was_asked() -> None:
    waits: Any = WaitList()
    first, later = _wait(waits, "j"), _wait(waits, "other")
    waits.discard(later)
    later.job_id = "j"
    waits.watch(later)
    waits.settle_recorded(Outcome("j", "completed", "1"), {first})
    assert (await first, later.done(), waits.jobs) == (1, False, {"j": [later]})
    waits.settle_recorded(Outcome("j", "completed", "2"), {later})
    assert await later == 2
    assert (waits.jobs, waits._watched) == ({}, {})


async def test_what_the_stream_told_of_a_run_before_is_not_told_when_the_record_is_gone() -> None:
    waits: Any = WaitList()
    joined = _wait(waits, "own")
    waits.join(joined, "j", "open", "", since=clock.monotonic())
    waits.settle(Outcome("j", "failed", "{}"))
    told = waits.told_of("j")
    waits.note_open("j", told)
    assert waits.told_of("j") is None
    waits.settle(Outcome("j", "completed", "2"))  # while a record that was open is on its way
    waits.note_open("j", told)
    assert waits.told_of("j") == Outcome("j", "completed", "2")
    assert not joined.done()


async def test_an_outcome_that_was_read_while_an_answer_is_owed_is_looked_up_for_it() -> None:
    """The stream may be lost with the outcome, and nothing else would say that the job has ended."""
    waits: Any = WaitList()
    first = _wait(waits, "j")
    waits.expect_answers(1)
    since = clock.monotonic()
    waits.settle_recorded(Outcome("j", "completed", "1"), {first})
    joined = _wait(waits, "own")
    waits.join(joined, "j", "open", "", since=since)
    assert waits.unread == ["j"]


async def test_who_gives_up_waiting_leaves_nothing() -> None:
    waits: Any = WaitList()
    joined = _wait(waits, "own")
    waits.join(joined, "j", "open", "", since=clock.monotonic())
    waits.settle(Outcome("j", "completed", "1"))
    waits.drop(joined)
    assert (waits.jobs, waits._watched) == ({}, {})


async def test_outcomes_come_within_seconds_after_the_reply_stream_was_lost(
    make_provider: MakeProvider, admin: Callable[..., Any], prefix: str, logs: list[MutableMapping[str, Any]]
) -> None:
    """It expires when the server's clock is set forward by more than its life."""
    provider = make_provider()
    go = asyncio.Event()

    @provider.on("ask", concurrency=50)
    async def ask(n: int) -> int:
        await go.wait()
        return n

    async with provider.worker():
        emissions = provider.emit_many("ask", range(20), reply_timeout=None)
        await emissions[-1].enqueued()
        (stream,) = admin("KEYS", f"{prefix}:*:replies:*")
        admin("DEL", stream)  # as its expiry does
        go.set()
        assert [await asyncio.wait_for(each, 240) for each in emissions] == list(range(20))
        assert [each["event"] for each in logs].count("the reply stream was gone, looking outcomes up") == 1
        later = provider.emit("ask", 99, reply_timeout=None)
        assert await asyncio.wait_for(later, 240) == 99


async def test_a_busy_stream_is_kept_alive(
    make_provider: MakeProvider, admin: Callable[..., Any], prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_keeper, "_EACH", 0.01)
    provider = make_provider()

    @provider.on("ask")
    async def ask(n: int) -> int:
        return n

    async with provider.worker():
        assert await provider.emit("ask", 0) == 0
        (stream,) = admin("KEYS", f"{prefix}:*:replies:*")
        admin("EXPIRE", stream, 100)
        for n in range(1000):  # each answer ends a read, so that no read is empty
            assert await provider.emit("ask", n) == n
            if admin("TTL", stream) > 500:
                return
    pytest.fail("its life was not renewed")


async def test_a_foreign_entry_in_the_reply_stream_stops_nobody(
    make_provider: MakeProvider, admin: Callable[..., Any], prefix: str
) -> None:
    provider = make_provider()
    provider.on("ask")(lambda n: n)
    async with provider.worker():
        assert await provider.emit("ask", 1) == 1
        (stream,) = admin("KEYS", f"{prefix}:*:replies:*")
        for fields in (
            ("d", "\xc1 no msgpack"),
            ("d", msgspec.msgpack.encode(["j", "completed"])),
            ("x", "y"),
        ):
            admin("XADD", stream, "*", *fields)
        assert await asyncio.wait_for(provider.emit("ask", 2, reply_timeout=None), 240) == 2


@pytest.mark.slow
async def test_a_connection_that_is_cut_is_made_again_and_everything_goes_on(
    make_provider: MakeProvider, virtual: VirtualWorld, until: Until
) -> None:
    worker, emitter = make_provider(), make_provider()
    done: list[int] = []

    @worker.on("ask", concurrency=20)
    async def ask(n: int) -> int:
        done.append(n)
        return n

    async with worker.worker(), emitter:
        emissions = emitter.emit_many("ask", range(2000), reply_timeout=None)
        for cuts in range(1, 4):
            await until(lambda cuts=cuts: len(done) > cuts * 500, "some are done")
            virtual.network.lose_connections()
        assert [await asyncio.wait_for(each, 240) for each in emissions] == list(range(2000))
    assert len(done) == len(set(done)) == 2000


@pytest.mark.real
async def test_what_it_costs_to_settle_grows_with_the_number_in_flight_and_no_faster(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider(concurrency=200, max_concurrency=200)

    @provider.on("ask")
    async def ask(n: int) -> int:
        return n

    async def cost(count: int) -> float:
        with count_lines() as lines:
            emissions = provider.emit_many("ask", range(count))
            for n, each in enumerate(emissions):
                assert await each == n
        return lines.count / count

    async with provider.worker():
        await cost(10)
        few, many = await cost(500), await cost(5000)
    assert many < 2 * few, (few, many)  # 10 times if each looked at all others


async def test_a_reply_stream_that_cannot_be_read_is_told_once(
    make_provider: MakeProvider, admin: Callable[..., Any], prefix: str, until: Until, logs: list[Any]
) -> None:
    provider = make_provider()
    async with provider:
        (stream,) = admin("KEYS", f"{prefix}:*:replies:*")
        admin("DEL", stream)
        admin("SET", stream, "it is mine", "EX", 600)
        looks = _tracker(provider)._uplink.store._caller
        await until(lambda: _told(logs), "it is told")
        sent, command = [0], looks.command

        async def count(*words: Any, **options: Any) -> Any:
            sent[0] += words[0] == "EXPIRE"
            return await command(*words, **options)

        looks.command = count
        await until(lambda: sent[0] >= 5, "it goes on trying")
        assert _told(logs) == ["warning"]


def _told(logs: list[Any]) -> list[str]:
    return [
        each["log_level"]
        for each in logs
        if each["event"] == "reply stream interrupted" and each["log_level"] != "debug"
    ]
