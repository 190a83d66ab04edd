"""The small roles of a worker, on a fake store whose answers the test chooses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from types import SimpleNamespace
from typing import Any

import pytest
from drivers.records import change_record

from eventbus import EventContext, EventProvider, HandlerError, Retry, StoreRefused
from eventbus.engine import presence, rescuer, sweeper
from eventbus.engine.consumer import Retention
from eventbus.engine.executor import MAX_ABANDONED
from eventbus.store.bounds import CALL_ROWS
from eventbus.store.scripting.packing import TurnRequest
from eventbus.store.scripting.script_rows import StallRow
from eventbus.store.store import Store

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
Logs = list[MutableMapping[str, Any]]


class Answers:
    """A store: each call gives, or raises, the next answer; after the last one it never returns."""

    name = "shop"

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.calls: list[dict[str, Any]] = []
        self.is_over = asyncio.Event()

    async def _next(self, *rows: Any, **call: Any) -> Any:
        self.calls.append({"rows": rows, **call})
        if not self._answers:
            self.is_over.set()
            await asyncio.Event().wait()
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    rescue = sweep = announce = _next

    async def check_saving(self) -> None:
        """A server that can save its data."""


class Pauses:
    """Stands for asyncio in a role's module: its sleeps take no time and are noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
        self.taken: list[float] = []
        monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=self._sleep))

    async def _sleep(self, seconds: float) -> None:
        self.taken.append(seconds)
        await asyncio.sleep(0)


async def _run(role: Any, store: Answers) -> None:
    task = asyncio.create_task(role.run())
    await asyncio.wait_for(store.is_over.wait(), 240)
    task.cancel()
    await asyncio.wait([task])


def _stall(job: str, verdict: str = "rescued") -> StallRow:
    return StallRow(job, verdict, "w", 10_000, 0)


async def test_the_rescuer_looks_when_the_next_lease_ends_and_at_once_while_there_is_more(
    monkeypatch: pytest.MonkeyPatch, logs: Logs
) -> None:
    pauses = Pauses(monkeypatch, rescuer)
    many = [_stall(f"j{n}") for n in range(CALL_ROWS)]
    store: Any = Answers(
        (-1, []), (1500, [_stall("a"), _stall("b", "failed")]), (60_000, []), (0, many), StoreRefused("no")
    )
    role = rescuer.Rescuer(store, lease_ms=10_000, max_stalls=3, key_ttl_ms=5)
    await _run(role, store)
    for taken, least in zip(pauses.taken, [4, 1.5, 4, 0, 10], strict=True):
        assert least <= taken <= least + 0.5
    assert [each["job_id"] for each in logs if each["event"] == "job stalled, given back"][:1] == ["a"]
    assert [each["job_id"] for each in logs if "failed" in each["event"]] == ["b"]
    assert [each for each in logs if each["event"] == "rescue refused"]


async def test_what_was_rescued_is_logged_though_the_rescuer_ends_while_it_asks_for_more(logs: Logs) -> None:
    asked = asyncio.Event()

    async def job(job_id: str, **_: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    store: Any = Answers((-1, [_stall("a", "failed"), _stall("b")]))
    store.inspection = SimpleNamespace(job=job)
    role = rescuer.Rescuer(store, lease_ms=10_000, max_stalls=3, key_ttl_ms=5, consumers=_consumers(1))
    task = asyncio.create_task(role.run())
    await asyncio.wait_for(asked.wait(), 240)
    task.cancel()
    await asyncio.wait([task])
    assert [(each["event"], each["job_id"]) for each in logs] == [
        ("job stalled too often, failed", "a"),
        ("job stalled, given back", "b"),
    ]


def _consumers(count: int) -> dict[str, Any]:
    kept = Retention(1, 2, 3, 4, 5)
    return {f"q{n}": SimpleNamespace(queue=f"q{n}", base="q", group="", retention=kept) for n in range(count)}


async def test_the_sweeper_goes_through_all_queues_in_bounded_calls_and_again_while_there_is_more(
    monkeypatch: pytest.MonkeyPatch, logs: Logs
) -> None:
    pauses = Pauses(monkeypatch, sweeper)
    store: Any = Answers(100, 20, 0, 0, StoreRefused("no"))
    await _run(sweeper.Sweeper(store, _consumers(60)), store)
    assert [len(each["rows"][0]) for each in store.calls] == [50, 10, 50, 10, 50, 50]
    assert [taken for taken in pauses.taken if taken < 1] == [0.1]
    assert all(30 <= taken <= 60 for taken in pauses.taken if taken > 1)
    assert [each["event"] for each in logs] == ["sweep refused"]


async def test_the_announcer_announces_and_takes_parked_jobs_back_each_time(
    monkeypatch: pytest.MonkeyPatch, logs: Logs
) -> None:
    Pauses(monkeypatch, presence)
    store: Any = Answers((0, 5, False), StoreRefused("no"), (0, 5, True), (7, 5, True), (0, 5, True))
    await _run(presence.Presence(store, _consumers(2), worker="w"), store)
    assert all(each["unpark"] for each in store.calls)
    assert [each["since"] for each in store.calls] == ["", *[5] * (len(store.calls) - 1)]
    assert all(each["facts"][:2] == ["name", "shop"] for each in store.calls), "it says what it is each time"
    assert [each["event"] for each in logs] == ["announcement refused", "parked jobs taken back"]


async def test_what_is_declared_is_told_again_until_a_server_that_forgot_the_worker_has_taken_it(
    monkeypatch: pytest.MonkeyPatch, logs: Logs
) -> None:
    Pauses(monkeypatch, presence)
    refusals, told = [StoreRefused("full")], list[int]()

    async def declare() -> None:
        if refusals:
            raise refusals.pop()
        told.append(len(store.calls))

    store: Any = Answers((0, 5, False), (0, 5, True), (0, 5, False), (0, 5, True), (0, 5, True))
    await _run(presence.Presence(store, _consumers(2), worker="w", declare=declare), store)
    assert told == [4], (
        "the first announcement is of a new worker; the third was forgotten, and its telling refused"
    )
    again = "the server had forgotten this worker, declaring all again"
    assert [each["event"] for each in logs] == [again, "announcement refused", again]


async def test_a_pool_is_named_by_its_queues_in_whatever_order() -> None:
    one, other = _consumers(3), dict(reversed(_consumers(3).items()))
    assert presence.pool_of(one) == presence.pool_of(other) != presence.pool_of(_consumers(2))


async def test_a_stop_at_once_skips_the_grace(make_provider: MakeProvider, until: Until) -> None:
    provider, other = make_provider(grace=60), make_provider()
    began: list[int] = []

    @provider.on("ask")
    async def hang(n: int) -> None:
        began.append(n)
        await asyncio.Event().wait()

    other.on("ask")(lambda n: n)
    async with other, provider.worker() as worker:
        emission = other.emit("ask", 1)
        await until(lambda: began, "the handler runs")
        worker.request_stop()
        waiting = asyncio.create_task(worker.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        worker.request_stop(at_once=True)
        await asyncio.wait_for(waiting, 240)
        async with other.worker():
            assert await emission == 1


async def test_a_worker_whose_handlers_ignore_their_cancellation_ends(
    make_provider: MakeProvider, logs: Logs
) -> None:
    provider = make_provider(retry=Retry(attempts=1), concurrency=20, grace=0.1)
    end = asyncio.Event()

    @provider.on("ask", timeout="10ms")
    async def ignores(_: Any) -> None:
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue

    async with provider.worker() as worker:
        worker._worker.claimer.executor._patience = 0.01  # pyright: ignore[reportPrivateUsage]
        for each in provider.emit_many("ask", range(MAX_ABANDONED)):
            with pytest.raises(HandlerError):
                await each
        await asyncio.wait_for(worker.wait(), 240)
        end.set()
    assert [each for each in logs if each["log_level"] == "critical"]


async def test_what_could_not_be_settled_at_the_stop_is_left_to_rescue_with_a_word(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch, logs: Logs
) -> None:
    provider, other = make_provider(grace=0, lease=0.5), make_provider(lease=0.5)
    other.on("ask")(lambda n: n)
    began = asyncio.Event()
    turn = Store.turn

    async def refuses_settles(self: Store, request: TurnRequest) -> Any:
        if request.settles:
            raise StoreRefused("no")
        return await turn(self, request)

    @provider.on("ask")
    async def ask(_: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    async with other:
        emission = other.emit("ask", 1)
        with monkeypatch.context() as patch:
            patch.setattr(Store, "turn", refuses_settles)
            async with provider.worker():
                await began.wait()
        assert "rescue will see to it" in str([each["event"] for each in logs])
        async with other.worker():
            assert await emission == 1


@pytest.mark.parametrize(
    ("body", "runs"), [("no json", 0), ('{"p":', 0), ('{"p":1,"r":{"attempts":"x"}}', 2)]
)
async def test_a_message_that_cannot_be_read_fails_alone_and_a_bad_rule_is_no_rule(
    make_provider: MakeProvider, admin: Callable[..., Any], prefix: str, body: str, runs: int
) -> None:
    provider = make_provider(retry=Retry(attempts=2, delay=0))
    ran: list[int] = []

    @provider.on("ask")
    async def ask(n: int, ctx: EventContext) -> int:
        if ctx.job_id == spoilt.job_id:
            ran.append(n)
            raise ValueError
        return n

    async with provider:
        spoilt, sound = provider.emit("ask", 1), provider.emit("ask", 2)
        await sound.enqueued()
        admin(*change_record(f"{prefix}:2:{{0}}:job:{spoilt.job_id}", body=body))
        async with provider.worker():
            assert await sound == 2
            with pytest.raises(HandlerError) as caught:
                await spoilt
    assert caught.value.type_name == ("ValueError" if runs else "StoreCorrupt")
    assert len(ran) == runs
