"""What a test sees of the runs of a program, and how it makes them fail or fakes them."""

from __future__ import annotations

from typing import Any

import pytest

from eventbus import Event, EventProvider, HandlerError, PayloadError, Retry, UsageError
from eventbus.testing import TestBus
from workflows import (
    END,
    FlowContext,
    MachineContext,
    StateMachine,
    StepContext,
    StepError,
    Workflow,
    WorkflowProvider,
    durable,
    task,
    transition,
)

provider = EventProvider(name="shop")
flows = WorkflowProvider(provider)

pay = Event("order.pay", payload=int, result=str)


@provider.on(pay, retry=Retry(3, delay="10s"))
async def run_pay(amount: int) -> str:
    return f"paid {amount}"


@provider.on(pay, group="books")
async def book(_: int) -> None: ...


order = Workflow("order", input=int, output=str)


@order.step()
async def reserve(ctx: StepContext[int]) -> int:
    return ctx.input


@order.step(after=reserve, retry=Retry(2, delay="1m"))
def ship(ctx: StepContext[int]) -> str:
    return f"parcel {ctx.input}"


@reserve.rollback
async def free(_: StepContext[int], __: int) -> None: ...


@order.completed
async def tell(ctx: StepContext[int]) -> str:
    return ctx.result(ship)


@task(retry=Retry(2, delay="1h"))
async def charge(amount: int) -> str:
    return f"charged {amount}"


@charge.rollback
async def refund(_: str) -> None: ...


async def plain(amount: int) -> int:
    return amount


@durable("checkout")
async def checkout(ctx: FlowContext[int]) -> str:
    await ctx.step(plain, 1)
    return await ctx.step(charge, 2)


class Review(StateMachine[int], name="review", start="open"):
    @transition("open", to="asked", retry=Retry(2, delay="1m"))
    async def ask(self, ctx: MachineContext[int]) -> None:
        ctx.state += 1

    @transition("asked", to=END)
    async def close(self, ctx: MachineContext[int]) -> int:
        return ctx.state


for definition in (order, checkout, Review):
    flows.register(definition)


def named(bus: TestBus) -> list[tuple[str, int]]:
    return [(run.name, run.attempt) for run in bus.ran]


async def test_runs_have_the_names_of_events_steps_tasks_and_transitions() -> None:
    async with TestBus(provider) as bus:
        assert await provider.emit(pay, 1) == "paid 1"
        await bus.settle()
        assert sorted(named(bus)) == [("order.pay", 1), ("order.pay@books", 1)]
        for flow in (order, checkout, Review):
            bus.ran.clear()
            handle = await flows.execute(flow, 1)
            await handle.result()
            assert {run.flow for run in bus.ran} == {handle.id}
            assert (
                named(bus)
                == {
                    order: [("order.reserve", 1), ("order.ship", 1), ("order@completed", 1)],
                    checkout: [("checkout.plain", 1), ("checkout.charge", 1)],
                    Review: [("review.ask", 1), ("review.close", 1)],
                }[flow]
            )


@pytest.mark.parametrize("given", [pay, "order.pay", run_pay])
async def test_a_handler_fails_as_often_as_asked(given: Any) -> None:
    async with TestBus(provider) as bus:
        bus.fail(given, TimeoutError("the bank is silent"), times=2)
        assert await provider.emit(pay, 1, reply_timeout=0) == "paid 1"
        attempts = [run.attempt for run in bus.ran if run.name == "order.pay"]
        assert len(attempts) in (2, 3)  # an event means its groups, too
        assert 10 <= (bus.now - bus.ran[0].at).total_seconds() < 31


async def test_a_handler_that_fails_too_often_fails_its_emission() -> None:
    async with TestBus(provider) as bus:
        bus.fail(run_pay, times=3)
        with pytest.raises(HandlerError, match="told to fail"):
            await provider.emit(pay, 1, reply_timeout=0)


async def test_the_handler_of_a_group_fails_alone() -> None:
    async with TestBus(provider) as bus:
        bus.fail("order.pay@books")
        assert await provider.emit(pay, 1) == "paid 1"
        await bus.advance("1 minute")
        assert sorted(named(bus)) == [("order.pay", 1), ("order.pay@books", 1), ("order.pay@books", 2)]


@pytest.mark.parametrize("given", [ship, "order.ship", ship.function])
async def test_a_step_fails_and_is_tried_again(given: Any) -> None:
    async with TestBus(provider) as bus:
        bus.fail(given)
        assert await (await flows.execute(order, 1)).result() == "parcel 1"
        assert named(bus) == [
            ("order.reserve", 1),
            ("order.ship", 1),
            ("order.ship", 2),
            ("order@completed", 1),
        ]


@pytest.mark.parametrize("given", [charge, "checkout.charge", charge.function])
async def test_a_task_fails_and_is_tried_again(given: Any) -> None:
    async with TestBus(provider) as bus:
        bus.fail(given)
        assert await (await flows.execute(checkout, 1)).result() == "charged 2"
        assert named(bus)[-2:] == [("checkout.charge", 1), ("checkout.charge", 2)]


@pytest.mark.parametrize("given", [Review.ask, "review.ask"])
async def test_a_transition_fails_and_is_tried_again(given: Any) -> None:
    async with TestBus(provider) as bus:
        bus.fail(given)
        assert await (await flows.execute(Review, 1)).result() == 2
        assert named(bus) == [("review.ask", 1), ("review.ask", 2), ("review.close", 1)]


async def test_a_rollback_is_seen_and_fails_by_name() -> None:
    async with TestBus(provider) as bus:
        bus.fail(ship, times=2)
        bus.fail(free)
        with pytest.raises(StepError, match="told to fail"):
            await (await flows.execute(order, 1)).result()
        assert named(bus)[-2:] == [("order.reserve.rollback", 1), ("order.reserve.rollback", 2)]


async def test_a_fake_stands_for_a_handler_until_its_end() -> None:
    async with TestBus(provider) as bus:
        fake = bus.replace(run_pay, returns="p-1")
        assert await provider.emit(pay, 7) == "p-1"
        assert fake.calls == [7]
        fake.end()
        assert await provider.emit(pay, 8) == "paid 8"


async def test_a_fake_stands_for_a_step_a_task_and_a_transition() -> None:
    async with TestBus(provider) as bus:
        bus.replace(ship, returns="parcel of the test")
        fake = bus.replace(charge, returns="charged by the test")
        bus.replace(Review.close, returns=9)
        bus.replace(Review.ask, returns=None)
        assert await (await flows.execute(order, 1)).result() == "parcel of the test"
        assert await (await flows.execute(checkout, 1)).result() == "charged by the test"
        assert await (await flows.execute(Review, 1)).result() == 9
        assert fake.calls == [(2,)]


async def test_a_fake_raises_and_the_last_one_counts() -> None:
    async with TestBus(provider) as bus:
        bus.replace(pay, returns="first")
        bus.replace(pay, raises=ValueError("no money"))
        with pytest.raises(HandlerError, match="no money"):
            await provider.emit(pay, 1, reply_timeout=0)


@pytest.mark.parametrize(
    ("given", "value"), [(pay, 7), (run_pay, 7), (ship, 7), (charge, 7), (plain, "text"), (Review.close, "x")]
)
async def test_a_fake_of_another_type_is_refused(given: Any, value: Any) -> None:
    async with TestBus(provider) as bus:
        with pytest.raises(PayloadError):
            bus.replace(given, returns=value)


async def test_a_fake_of_a_move_returns_nothing() -> None:
    async with TestBus(provider) as bus:
        with pytest.raises(UsageError, match="only a transition to END returns a value"):
            bus.replace(Review.ask, returns=1)


async def test_a_fake_needs_either_a_result_or_an_error() -> None:
    async with TestBus(provider) as bus:
        with pytest.raises(UsageError, match="expected either returns"):
            bus.replace(pay)
        with pytest.raises(UsageError, match="expected either returns"):
            bus.replace(pay, returns="p", raises=ValueError())


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("order.pai", "did you mean 'order.pay'"),
        ("ship", "did you mean 'order.ship'"),
        ("checkout.chrage", "did you mean 'checkout.charge'"),
        ("review.aks", "did you mean 'review.ask'"),
        ("xyz", "there are: checkout.charge, "),
        (Event("order.paid"), "did you mean 'order.pay'"),
        (len, "there are: "),
        (7, "named '7'; there are: "),
    ],
)
async def test_what_means_nothing_is_refused_with_the_near_names(given: Any, near: str) -> None:
    async with TestBus(provider) as bus:
        for call in (bus.fail, lambda named: bus.replace(named, returns=None)):
            with pytest.raises(UsageError, match="nothing that the providers of the bus run") as raised:
                call(given)
            assert near in str(raised.value)


async def test_a_failure_wants_an_error_and_a_count() -> None:
    async with TestBus(provider) as bus:
        with pytest.raises(UsageError, match="expected error to be an exception"):
            bus.fail(pay, ValueError)  # pyright: ignore[reportArgumentType]
        with pytest.raises(UsageError, match="expected times to be 1 or more, got: 0"):
            bus.fail(pay, times=0)


async def test_a_function_that_two_workflows_have_is_meant_in_both() -> None:
    program = EventProvider(name="two")
    both = WorkflowProvider(program)
    graphs = [Workflow[None, Any](name) for name in ("first", "second")]

    async def work(ctx: StepContext[None]) -> int:
        return 1

    for graph in graphs:
        graph.step(name="work")(work)

        @graph.completed
        async def tell(ctx: StepContext[None]) -> Any:
            return ctx.result("work")

        both.register(graph)
    async with TestBus(program) as bus:
        bus.replace(work, returns=7)
        assert [await (await both.execute(graph, None)).result() for graph in graphs] == [7, 7]
