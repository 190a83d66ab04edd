"""A user's app in virtual time: what waits a month passes at once, on the real engine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from eventbus import Event, EventContext, EventProvider, Limit, Retry
from eventbus.testing import TestBus, TimeStandsStill
from workflows import (
    END,
    FlowContext,
    FlowTimeout,
    MachineContext,
    StateMachine,
    StepContext,
    Workflow,
    WorkflowProvider,
    durable,
    task,
    transition,
)

provider = EventProvider("redis://production:6379", name="shop")
flows = WorkflowProvider(provider)
done: list[Any] = []

remind = Event("remind", payload=str, result=str)
pay = Event("pay", payload=int, result=str)
nightly = Event("nightly", payload=int)
search = Event("search", payload=str, key=lambda _: "one")
limited = Event("limited", payload=int, limit=Limit(rate="10/1m"))
long = Event("long", payload=float, result=str)
blocking = Event("blocking", payload=int, result=str)
asking = Event("asking", payload=float | None, result=str)


@provider.on(remind)
async def run_remind(name: str) -> str:
    done.append(("remind", name))
    return "reminded"


@provider.on(pay, retry=Retry(6, delay="10s", max_delay="1h"))
async def run_pay(paid_at: int, ctx: EventContext) -> str:
    if ctx.attempt < paid_at:
        raise ConnectionError("the bank is away")
    return f"paid at attempt {ctx.attempt}"


@provider.on(nightly)
async def run_nightly(_: int, ctx: EventContext) -> None:
    done.append(datetime.fromtimestamp(ctx.meta["slot"] / 1000, UTC).isoformat()[:16])


provider.schedules.cron("30 2 * * *", nightly, id="nightly", tz="Europe/Berlin", payload=0)


@provider.on(search)
async def run_search(text: str) -> None:
    done.append(text)


@provider.on(limited)
async def run_limited(number: int) -> None:
    done.append(number)


@provider.on(long)
async def run_long(duration: float, ctx: EventContext) -> str:
    done.append(("long", ctx.attempt))
    await asyncio.sleep(duration)
    return "slept"


@provider.on(blocking)
def run_blocking(_: int) -> str:
    time.sleep(0.01)
    return "from a thread"


@provider.on(asking)
def run_asking(patience: float | None) -> str:
    emission = provider.sync.emit(pay, 3, reply_timeout=0)
    try:
        return emission.result(patience)
    except TimeoutError:
        return "not in time"


@task()
async def note(text: str) -> str:
    done.append(text)
    return text


@durable("trial")
async def trial(ctx: FlowContext[str]) -> str:
    await ctx.step(note, "welcome")
    await ctx.sleep("3 days")
    await ctx.step(note, "how is it?")
    return "ended"


class Invoice(StateMachine[int], name="invoice", start="sent"):
    @transition("sent", to="overdue", delay="30 days")
    async def remind(self, _: MachineContext[int]) -> None:
        done.append("overdue")

    @transition("overdue", to=END)
    async def close(self, _: MachineContext[int]) -> None:
        done.append("closed")


slow = Workflow("slow", input=int, timeout="10 minutes")


@slow.step()
async def first(ctx: StepContext[int]) -> int:
    return ctx.input


@slow.step(after=first, retry=Retry(3, delay="1 second"))
async def hang(ctx: StepContext[int]) -> int:
    await asyncio.sleep(ctx.input)
    return 1


@first.rollback
async def undo(_: StepContext[int], __: int) -> None:
    done.append("undone")


for definition in (trial, Invoice, slow):
    flows.register(definition)


@pytest.fixture(autouse=True)
def nothing_is_done() -> Iterator[None]:
    done.clear()
    yield
    done.clear()


async def test_a_delay_of_an_hour_passes_at_once() -> None:
    async with TestBus(provider) as bus:
        await provider.emit(remind, "ada", delay="1 hour").enqueued()
        await bus.advance("59 minutes")
        assert done == []
        await bus.advance("1 minute")
        assert done == [("remind", "ada")]
        assert bus.emitted(remind) == ["ada"]


async def test_a_retry_waits_as_its_rule_says() -> None:
    async with TestBus(provider) as bus:
        began = bus.now
        assert await provider.emit(pay, 6, reply_timeout=0) == "paid at attempt 6"
        waited = [round((run.at - began).total_seconds()) for run in bus.ran]
    assert waited == [0, 10, 30, 70, 150, 310]
    assert [run.attempt for run in bus.ran] == [1, 2, 3, 4, 5, 6]


async def test_a_durable_function_sleeps_three_days() -> None:
    async with TestBus(provider) as bus:
        flow = await flows.execute(trial, "x")
        await bus.settle()
        assert done == ["welcome"]
        await bus.advance("3 days")
        assert done == ["welcome", "how is it?"]
        assert await flow.result() == "ended"


async def test_time_moves_by_itself_while_the_test_awaits_a_flow() -> None:
    async with TestBus(provider) as bus:
        began = bus.now
        flow = await flows.execute(trial, "x")
        assert await flow.result() == "ended"
        assert 3 * 86_400 <= (bus.now - began).total_seconds() < 3 * 86_400 + 10


async def test_a_machine_waits_thirty_days() -> None:
    async with TestBus(provider) as bus:
        flow = await flows.execute(Invoice, 1)
        await bus.advance("29 days")
        assert done == []
        await bus.advance("1 day")
        await flow.result()
        assert done == ["overdue", "closed"]


async def test_a_schedule_follows_the_change_to_summer_time() -> None:
    start = datetime(2026, 3, 27, 12, tzinfo=UTC)
    async with TestBus(provider, schedules=True, start=start) as bus:
        await bus.advance("4 days")
    assert done == ["2026-03-28T01:30", "2026-03-29T01:00", "2026-03-30T00:30", "2026-03-31T00:30"]


async def test_schedules_are_off_unless_they_are_asked_for() -> None:
    async with TestBus(provider) as bus:
        await bus.advance("4 days")
        assert bus.ran == []


async def test_of_a_debounced_event_the_last_emission_counts() -> None:
    async with TestBus(provider) as bus:
        for text in "abc":
            await provider.emit(search, text, debounce="5s", longest="1m", reply=False).enqueued()
            await bus.advance("3s")
        assert done == []
        await bus.advance("3s")
        assert done == ["c"]


async def test_a_rate_lets_ten_jobs_start_in_a_minute() -> None:
    async with TestBus(provider) as bus:
        provider.emit_many(limited, range(25), reply=False)
        await bus.settle()
        counts = [len(done)]
        for _ in range(3):
            await bus.advance("70 s")
            counts.append(len(done))
    assert counts == [10, 20, 25, 25]


async def test_a_flow_times_out_while_its_step_hangs() -> None:
    async with TestBus(provider) as bus:
        began = bus.now
        flow = await flows.execute(slow, 3600)
        with pytest.raises(FlowTimeout):
            await flow.result()
        assert done == ["undone"]
        assert 600 <= (bus.now - began).total_seconds() < 612


async def test_another_worker_takes_the_job_of_a_killed_one() -> None:
    async with TestBus(provider) as bus:
        began = bus.now
        emission = provider.emit(long, 5.0, reply_timeout=0)
        await bus.settle()
        bus.kill_worker()
        await bus.start_worker()
        assert await emission == "slept"
        assert 60 < (bus.now - began).total_seconds() < 130
    assert done == [("long", 1), ("long", 1)]  # a stall uses up no attempt


async def test_a_worker_that_stops_lets_its_handler_finish() -> None:
    async with TestBus(provider) as bus:
        emission = provider.emit(long, 5.0)
        await bus.settle()
        await bus.stop_worker()
        assert await emission == "slept"


async def test_time_stands_while_a_thread_works() -> None:
    async with TestBus(provider) as bus:
        began = bus.now
        assert await provider.emit(blocking, 0) == "from a thread"
        assert bus.now == began


async def test_time_passes_while_a_thread_waits_for_an_emission() -> None:
    async with TestBus(provider) as bus:
        began = bus.now
        assert await provider.emit(asking, None, reply_timeout=0) == "paid at attempt 3"
        assert (bus.now - began).total_seconds() > 10


async def test_the_patience_of_a_thread_is_one_in_virtual_time() -> None:
    async with TestBus(provider) as bus:
        began = bus.now
        assert await provider.emit(asking, 5.0, reply_timeout=0) == "not in time"
        assert (bus.now - began).total_seconds() == pytest.approx(5, abs=0.1)


async def test_a_key_is_forgotten_after_its_time() -> None:
    async with TestBus(provider) as bus:
        await provider.emit(remind, "ada", idempotency_key="k")
        await bus.advance("23 hours")
        assert await provider.emit(remind, "bob", idempotency_key="k") == "reminded"
        assert len(done) == 1
        await bus.advance("25 hours")
        await provider.emit(remind, "cy", idempotency_key="k")
        assert len(done) == 2


async def test_a_server_that_is_away_is_waited_for() -> None:
    async with TestBus(provider) as bus:
        emission = provider.emit(remind, "ada", reply_timeout="1m")
        await bus.server_away("5s")
        assert await emission == "reminded"
        bus.lose_connections()
        assert await provider.emit(remind, "bob") == "reminded"


async def test_the_provider_is_as_before_behind_the_bus() -> None:
    life = provider._life
    before = (list(life.middleware), life.on_worker, life.make_processes, dict(life.listeners._by_kind))
    for _ in range(2):
        async with TestBus(provider):
            assert await provider.emit(remind, "ada") == "reminded"
    assert before == (list(life.middleware), life.on_worker, life.make_processes, life.listeners._by_kind)
    assert (life.emitter, life.worker, flows._middleware) == (None, None, [])


async def test_one_seed_gives_one_history() -> None:
    ids: list[str] = []
    for seed in (1, 1, 2):
        async with TestBus(provider, seed=seed):
            emission = provider.emit(remind, "ada")
            await emission
            ids.append(emission.job_id)
    assert ids[0] == ids[1] != ids[2]


async def test_several_programs_run_on_one_server() -> None:
    shop, mail = EventProvider(name="shop"), EventProvider(name="mail")
    sent = list[str]()
    parcel = Event("parcel", payload=str, result=str)

    @mail.on(parcel)
    async def send(to: str) -> str:
        sent.append(to)
        return f"sent to {to}"

    async with TestBus(shop, mail) as bus:
        assert await shop.emit(parcel, "ada") == "sent to ada"
        bus.kill_worker(mail)
        emission = shop.emit(parcel, "bob", reply_timeout="1h")
        await bus.advance("1 minute")
        await bus.start_worker(mail)
        assert await emission == "sent to bob"
    assert sent == ["ada", "bob"]


async def test_a_program_that_is_adopted_without_a_worker_only_emits() -> None:
    late = EventProvider(name="late")
    parcel = Event("parcel", payload=str)

    @late.on(parcel)
    async def send(_: str) -> None: ...

    async with TestBus(provider) as bus:
        await bus.adopt(late, worker=False)
        await late.emit(parcel, "ada", reply=False).enqueued()
        await bus.settle()
        assert (bus.emitted(parcel), bus.ran) == (["ada"], [])
        await bus.start_worker(late)
        await bus.settle()
        assert [run.name for run in bus.ran] == ["parcel"]


async def test_who_waits_for_ever_is_told_so_with_the_line_and_the_jobs() -> None:
    async with TestBus(provider) as bus:
        await bus.keep(remind)
        emission = provider.emit(remind, "ada", reply_timeout=0)
        with pytest.raises(TimeStandsStill) as raised:
            await emission
        assert "test_bus.py:" in str(raised.value)
        assert f"job {emission.job_id} of event.remind: event.remind is paused" in str(raised.value)
        assert "kept by the test" in str(raised.value)
        await bus.release(remind)
        assert await emission == "reminded"


async def test_a_job_that_nobody_serves_is_named_and_many_are_counted() -> None:
    async with TestBus(provider):
        emissions = [provider.emit("nobody.here", number, reply_timeout=0) for number in range(9)]
        with pytest.raises(TimeStandsStill, match=r"No worker serves event\.nobody\.here.*; and 4 more$"):
            await emissions[0]


async def test_a_task_of_the_test_that_waits_for_nothing_is_told_so() -> None:
    async with TestBus(provider):
        with pytest.raises(TimeStandsStill, match=r"test_bus\.py"):
            await asyncio.Event().wait()
        with pytest.raises(TimeStandsStill, match=r"test_bus\.py"):  # and again
            await asyncio.Event().wait()


async def test_a_handler_that_blocks_the_loop_takes_no_time() -> None:
    rude = EventProvider(name="rude")

    @rude.on("block")
    async def block(_: Any) -> str:
        time.sleep(0.1)  # noqa: ASYNC251
        return "done"

    async with TestBus(rude, lease="1s") as bus:
        began = bus.now
        assert await rude.emit("block", reply_timeout="10ms") == "done"
        assert bus.now == began


async def test_time_stands_while_a_thread_of_the_test_sleeps() -> None:
    async with TestBus(provider) as bus:
        began = bus.now
        ticks = asyncio.create_task(asyncio.sleep(3600))
        await asyncio.to_thread(time.sleep, 0.1)
        assert (bus.now, ticks.done()) == (began, False)
        await ticks


def test_importing_the_packages_imports_no_kit_and_no_pytest() -> None:
    code = (
        "import sys, eventbus.provider, workflows.provider; "
        "assert not [name for name in sys.modules if name.startswith(('eventbus.testing', 'pytest'))]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
