"""What stays of moves and of attempts that failed, and the documents that moves leave. L-numbers are those of
Loopstack's behaviours.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from drivers.machines.acting import Draft, Open, Until, broken, did, stands_at

from eventbus import PayloadError, Retry, SignalRefused, StoreRefused
from eventbus.model import clock
from workflows import (
    END,
    FlowNotEnded,
    MachineContext,
    MachineReport,
    StateMachine,
    WorkflowProvider,
    transition,
)
from workflows.testing import run_inline

pytestmark = pytest.mark.virtual


async def machine_of(flows: WorkflowProvider, flow_id: str) -> MachineReport:
    machine = (await flows.report(flow_id)).machine
    assert machine is not None
    return machine


class Trying(StateMachine[Draft], name="trying", start="a"):
    @transition("a", to="b", retry=Retry(attempts=3, delay=0.01))
    async def work(self, ctx: MachineContext[Draft]) -> None:
        did.append(f"work {ctx.attempt} at move {ctx.moves} with {ctx.key.split('/')[2]}")
        if ctx.attempt < 3:
            raise ValueError(f"no. {ctx.attempt}")

    @transition("b", to=END, retry=Retry(attempts=2, delay=0.01))
    async def end(self, ctx: MachineContext[Draft]) -> None:
        did.append(f"end {ctx.attempt} at move {ctx.moves} with {ctx.key.split('/')[2]}")
        if ctx.attempt < 2:
            raise ValueError("no end")


async def test_l007_the_history_has_each_move_in_order_with_its_places_number_and_time(
    open_flows: Open,
) -> None:
    flows = await open_flows(Trying)
    before = int(clock.now() * 1000)
    flow = await flows.execute(Trying, Draft())
    await flow.result(timeout=240)
    machine = await machine_of(flows, flow.id)
    moves = [each for each in machine.moves if each.kind == "move"]
    assert [(each.transition, each.source, each.target, each.version) for each in moves] == [
        ("work", "a", "b", 1),
        ("end", "b", END, 2),
    ]
    times = [each.at_ms for each in machine.moves]
    assert times == sorted(times)
    assert before <= times[0] <= times[-1] <= clock.now() * 1000


async def test_l012_one_error_stays_for_each_attempt_that_failed(open_flows: Open) -> None:
    flows = await open_flows(Trying)
    flow = await flows.execute(Trying, Draft())
    await flow.result(timeout=240)
    machine = await machine_of(flows, flow.id)
    assert [(each.kind, each.transition, each.attempts, each.error) for each in machine.moves] == [
        ("try", "work", 1, "ValueError: no. 1"),
        ("try", "work", 2, "ValueError: no. 2"),
        ("move", "work", 2, ""),
        ("try", "end", 1, "ValueError: no end"),
        ("move", "end", 1, ""),
    ]
    assert (await flows.tree(flow.id)).errors == {
        "work@1": ["ValueError: no. 1", "ValueError: no. 2"],
        "end@2": ["ValueError: no end"],
    }
    assert (await flow.report()).error == ""


async def test_l023_attempts_are_counted_for_each_transition_and_have_the_key_of_their_move(
    open_flows: Open,
) -> None:
    flows = await open_flows(Trying)
    flow = await flows.execute(Trying, Draft())
    await flow.result(timeout=240)
    assert did == [
        *(f"work {attempt} at move 0 with 1" for attempt in (1, 2, 3)),
        *(f"end {attempt} at move 1 with 2" for attempt in (1, 2)),
    ]


class Pausing(StateMachine[Draft], name="pausing", start="a"):
    @transition("a", to=END, retry=Retry(attempts=3, delay="1 hour"))
    async def work(self, ctx: MachineContext[Draft]) -> int:
        if "broken" in did:
            raise ValueError("not yet")
        return ctx.attempt


async def test_l018_between_attempts_the_flow_waits_and_says_which_transition_failed_how_often(
    open_flows: Open, until: Until
) -> None:
    flows = await open_flows(Pausing)
    did.append("broken")
    flow = await flows.execute(Pausing, Draft())

    async def has_failed() -> bool:
        return (await flow.report()).state == "waiting"

    await until(has_failed, "the first attempt has failed")
    report = await flow.report()
    step = report.steps["work@1"]
    assert (step.state, step.attempts, step.error) == ("delayed", 1, "ValueError: not yet")
    assert report.error == "ValueError: not yet"
    (wait,) = await flows.waits(flow.id)
    assert wait.until_ms - clock.now() * 1000 == pytest.approx(3_600_000, abs=1_000)
    did.clear()
    await flow.retry()  # nobody waits for the hour
    assert await flow.result(timeout=240) == 2


class Preparing(StateMachine[Draft], name="preparing", start="a"):
    """What Loopstack calls `retryTarget`: a failure leads to another place, which prepares the next round."""

    @transition("a", to=END, error_place="prepare", when=lambda ctx: ctx.state.value < 3)
    async def work(self, ctx: MachineContext[Draft]) -> str:
        did.append(f"work, {ctx.state.value} prepared")
        if ctx.state.value < 2:
            raise ValueError("not prepared")
        return "done"

    @transition("a", to=END)
    async def give_up(self, ctx: MachineContext[Draft]) -> str:
        return "given up"

    @transition("prepare", to="a", retry=Retry(attempts=2, delay=0.01))
    async def prepare(self, ctx: MachineContext[Draft]) -> None:
        did.append(f"prepare {ctx.attempt}")
        if ctx.attempt < 2:
            raise ValueError("try again")
        ctx.state.value += 1


async def test_l022_an_error_place_prepares_the_next_round_with_attempts_of_its_own(open_flows: Open) -> None:
    flows = await open_flows(Preparing)
    flow = await flows.execute(Preparing, Draft())
    assert await flow.result(timeout=240) == "done"
    round_ = ["prepare 1", "prepare 2"]
    assert did == ["work, 0 prepared", *round_, "work, 1 prepared", *round_, "work, 2 prepared"]


class Page(msgspec.Struct):
    number: int


class Writing(StateMachine[Draft], name="writing", start="a"):
    @transition("a", to="b")
    async def write(self, ctx: MachineContext[Draft]) -> None:
        ctx.save("page", Page(1))
        ctx.save("draft", "a draft")
        assert await ctx.load("page", Page) == Page(1)

    @transition("b", to="c", wait=None)
    async def rewrite(self, ctx: MachineContext[Draft], payload: None) -> None:
        assert await ctx.load("page", Page) == Page(1)
        with pytest.raises(PayloadError, match="document 'draft'"):
            await ctx.load("draft", int)
        ctx.save("page", Page(2))
        ctx.save("draft", None)
        assert await ctx.load("draft") is None

    @transition("c", to=END, wait=None)
    async def end(self, ctx: MachineContext[Draft], payload: None) -> Page:
        return await ctx.load("page", Page)


async def test_l055_a_document_takes_the_place_of_the_one_of_its_name_and_none_takes_it_away(
    open_flows: Open, until: Until
) -> None:
    flows = await open_flows(Writing)
    flow = await flows.execute(Writing, Draft())
    await stands_at(flow, "b", until)
    assert (await machine_of(flows, flow.id)).documents == {"page": {"number": 1}, "draft": "a draft"}
    await flow.trigger(Writing.rewrite)
    await stands_at(flow, "c", until)
    assert (await machine_of(flows, flow.id)).documents == {"page": {"number": 2}}
    await flow.trigger(Writing.end)
    assert await flow.result(timeout=240) == Page(2)


async def test_l051_inline_a_machine_has_its_documents_and_leaves_its_result_alone() -> None:
    triggers = [(Writing.rewrite, None), (Writing.end, None)]
    assert await run_inline(Writing, Draft(), triggers=triggers) == Page(2)


async def test_l028_a_context_that_is_kept_emits_and_reads_nothing_after_its_attempt() -> None:
    kept: list[MachineContext[Any]] = []

    class Keeping(StateMachine[Draft], name="keeping", start="a"):
        @transition("a", to=END)
        async def work(self, ctx: MachineContext[Draft]) -> None:
            kept.append(ctx)

    await run_inline(Keeping, Draft())
    with pytest.raises(StoreRefused, match=r"ctx.emit did nothing: the attempt .* at place 'a' has ended"):
        kept[0].emit("order.paid", 7)
    with pytest.raises(StoreRefused, match=r"ctx.load did nothing"):
        await kept[0].load("page")


class Deciding(StateMachine[Draft], name="deciding", start="a"):
    @transition("a", to=END, wait=None)
    async def accept(self, ctx: MachineContext[Draft], payload: None) -> str:
        return "accepted"

    @transition("a", to=END, when=lambda ctx: "closed" in broken)
    async def leave(self, ctx: MachineContext[Draft]) -> str:
        return "left"


async def test_l003_a_retry_where_nothing_failed_and_a_trigger_of_another_place_begin_no_pass(
    open_flows: Open, until: Until
) -> None:
    flows = await open_flows(Deciding)
    flow = await flows.execute(Deciding, Draft())
    await stands_at(flow, "a", until)
    broken.add("closed")  # a pass would find its guard true
    before = await flow.report()
    with pytest.raises(FlowNotEnded, match="nothing failed at its place"):
        await flow.retry()
    other = await open_flows(worker=False)
    with pytest.raises(SignalRefused, match="which accepts accept"):
        await other.handle(flow.id).trigger("leave")
    assert await flow.report() == before
    await flow.trigger(Deciding.accept)
    assert await flow.result(timeout=240) == "accepted"
