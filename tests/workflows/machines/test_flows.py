"""Flows of state machines in a real server: they move, wait, are triggered, fail and go on, from any
process.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from drivers.machines.acting import Draft, Open, Until, Verdict, act, did, stands_at

from eventbus import DefinitionError, PayloadError, SignalRefused, UsageError
from eventbus.lowlevel import JobClient
from workflows import END, FlowCancelled, FlowHandle, FlowTimeout, MachineContext, StateMachine, transition

pytestmark = pytest.mark.virtual


class Review(StateMachine[Draft], name="review", start="draft"):
    @transition("draft", to="waiting")
    async def prepare(self, ctx: MachineContext[Draft]) -> None:
        act("prepare")
        ctx.state.seen.append("prepared")
        ctx.save("summary", {"pages": 3})

    @prepare.rollback
    async def unprepare(self, ctx: MachineContext[Draft]) -> None:
        act(f"unprepare {ctx.state.seen} {await ctx.load('summary')}")

    @transition("waiting", to="approved", wait=Verdict, when=lambda _, verdict: verdict.ok)
    async def approve(self, ctx: MachineContext[Draft], verdict: Verdict) -> None:
        act("approve")
        ctx.state.seen.append("approved")

    @transition("waiting", to=END, wait=None)
    async def reject(self, ctx: MachineContext[Draft], payload: None) -> list[str]:
        return ["rejected"]

    @transition("approved", to=END)
    async def publish(self, ctx: MachineContext[Draft]) -> list[str]:
        act("publish")
        return ctx.state.seen


async def test_l030_an_approval_moves_the_machine_to_its_end(open_flows: Open, until: Until) -> None:
    flows = await open_flows(Review)
    flow = await flows.execute(Review, Draft(), idempotency_key="r-1")
    await stands_at(flow, "waiting", until)
    assert await flow.state() == Draft(seen=["prepared"])
    await flow.trigger(Review.approve, Verdict(ok=True))
    assert await flow.result(timeout=240) == ["prepared", "approved"]
    again = await flows.execute(Review, Draft(), idempotency_key="r-1")
    assert again.id == flow.id
    assert did == ["prepare", "approve", "publish"]


async def test_l006_each_move_is_recorded_with_place_state_documents_and_version(
    open_flows: Open, until: Until
) -> None:
    flows = await open_flows(Review)
    flow = await flows.execute(Review, Draft(5))
    await stands_at(flow, "waiting", until)
    report = await flow.report()
    machine = report.machine
    assert machine is not None
    assert (report.state, machine.place, machine.version) == ("waiting", "waiting", 1)
    assert machine.state == {"value": 5, "seen": ["prepared"]}
    assert machine.documents == {"summary": {"pages": 3}}
    assert machine.accepts == ["approve", "reject"]
    await flow.trigger("approve", Verdict(ok=True))
    await flow.result(timeout=240)
    machine = (await flow.report()).machine
    assert machine is not None
    assert [(each.transition, each.source, each.target, each.version) for each in machine.moves] == [
        ("prepare", "draft", "waiting", 1),
        ("approve", "waiting", "approved", 2),
        ("publish", "approved", END, 3),
    ]
    (summary,) = await flows.flows("review")
    assert (summary.state, summary.completed) == ("completed", 3)


class Late(StateMachine[Draft], name="late", start="a"):
    @transition("a", to=END, wait=None)
    async def go(self, ctx: MachineContext[Draft], payload: None) -> None: ...


async def test_a_trigger_that_comes_a_moment_too_early_is_told_to_be_sent_again(
    open_flows: Open, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows = await open_flows(Late)
    lives = JobClient.lives

    async def look_late(self: JobClient, *given: Any) -> Any:
        """Look once the machine has begun: between its refusal and the look."""
        monkeypatch.undo()
        await stands_at(flow, "a", until)
        return await lives(self, *given)

    monkeypatch.setattr(JobClient, "lives", look_late)
    flow = await flows.execute(Late, Draft())
    with pytest.raises(
        SignalRefused, match=r"accepted none at that moment.* which accepts go: send it again"
    ):
        await flow.trigger(Late.go)
    await flow.trigger(Late.go)
    await flow.result(timeout=240)


async def test_l032_a_trigger_that_the_place_does_not_offer_is_refused_at_once(
    open_flows: Open, until: Until
) -> None:
    """Defect F6: an unfit signal killed the run."""
    flows, other = await open_flows(Review), await open_flows(Late, worker=False)
    flow = await flows.execute(Review, Draft())
    await stands_at(flow, "waiting", until)
    before = await flow.report()
    with pytest.raises(SignalRefused, match="is at place 'waiting', which accepts approve, reject") as caught:
        await other.handle(flow.id).trigger("publish")
    assert caught.value.reason == "unwanted"
    with pytest.raises(SignalRefused, match="no worker has begun it"):
        await (await other.execute(Late, Draft())).trigger(Late.go)
    with pytest.raises(PayloadError, match="the payload of transition 'approve'"):
        await flow.trigger(Review.approve, "yes")  # pyright: ignore[reportArgumentType, reportCallIssue]
    with pytest.raises(DefinitionError, match="has no transition 'unknown'"):
        await flow.trigger("unknown")
    with pytest.raises(DefinitionError, match="waits for no trigger"):
        await flow.trigger(Review.publish)  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert await flow.report() == before
    await flow.trigger(Review.reject)
    assert await flow.result(timeout=240) == ["rejected"]
    with pytest.raises(SignalRefused, match="has ended"):
        await flow.trigger(Review.reject)


async def test_l031_a_payload_that_only_the_worker_can_judge_is_refused_and_the_place_opens_again(
    open_flows: Open, until: Until
) -> None:
    flows = await open_flows(Review)
    flow = await flows.execute(Review, Draft())
    await stands_at(flow, "waiting", until)
    other = await open_flows(worker=False)
    await other.handle(flow.id).trigger("approve", "no verdict")

    async def refused() -> int:
        report = (await flow.report()).machine
        assert report is not None
        return sum(each.kind == "refused" for each in report.moves) if report.accepts else 0

    async def one() -> bool:
        return await refused() == 1

    async def two() -> bool:
        return await refused() == 2

    await until(one, "the payload is refused")
    await flow.trigger(Review.approve, Verdict(ok=False))
    await until(two, "the guard refuses")
    await flow.trigger(Review.approve, Verdict(ok=True))
    assert await flow.result(timeout=240) == ["prepared", "approved"]
    assert did == ["prepare", "approve", "publish"]


async def test_l034_of_two_triggers_one_fires(open_flows: Open, until: Until) -> None:
    flows = await open_flows(Review)
    for _ in range(10):
        flow = await flows.execute(Review, Draft())
        await stands_at(flow, "waiting", until)
        sent = await asyncio.gather(
            flow.trigger(Review.approve, Verdict(ok=True)),
            flow.trigger(Review.reject),
            flow.trigger(Review.approve, Verdict(ok=True)),
            return_exceptions=True,
        )
        assert sum(each is None for each in sent) == 1
        assert all(each is None or isinstance(each, SignalRefused) for each in sent)
        fired = ["prepared", "approved"] if sent[1] is not None else ["rejected"]
        assert await flow.result(timeout=240) == fired


async def test_a_trigger_with_an_id_that_is_sent_twice_is_one(open_flows: Open, until: Until) -> None:
    flows = await open_flows(Review)
    flow = await flows.execute(Review, Draft())
    await stands_at(flow, "waiting", until)
    await flow.trigger(Review.reject, trigger_id="t-1")
    await flow.trigger(Review.reject, trigger_id="t-1")
    assert await flow.result(timeout=240) == ["rejected"]


async def test_l041_a_cancelled_flow_is_undone_and_a_retry_goes_on_where_it_stood(
    open_flows: Open, until: Until
) -> None:
    flows = await open_flows(Review)
    flow = await flows.execute(Review, Draft())
    await stands_at(flow, "waiting", until)
    assert await flow.cancel("changed my mind")
    with pytest.raises(FlowCancelled, match="changed my mind") as caught:
        await flow.result(timeout=240)
    assert caught.value.rollback == "complete"
    assert did == ["prepare", "unprepare ['prepared'] {'pages': 3}"]
    assert [each.step for each in (await flow.report()).rollbacks] == ["prepare@1"]
    with pytest.raises(UsageError, match="retry it without a target"):
        await flow.retry(target="draft")
    await flow.retry()
    await stands_at(flow, "waiting", until)
    await flow.trigger(Review.approve, Verdict(ok=True))
    assert await flow.result(timeout=240) == ["prepared", "approved"]
    await flow.retry()
    await stands_at(flow, "waiting", until)
    assert did[-1] == "prepare", "a flow that completed begins again"
    assert (await flow.report()).run == 3


class Hanging(StateMachine[Draft], name="hanging", start="a", timeout=0.3):
    @transition("a", to=END, timeout=0)
    async def hang(self, ctx: MachineContext[Draft]) -> None:
        did.append("began")
        await asyncio.sleep(60)


async def test_the_timeout_of_the_flow_ends_a_body_that_runs(open_flows: Open) -> None:
    flows = await open_flows(Hanging, lease=0.5)
    flow = await flows.execute(Hanging, Draft())
    with pytest.raises(FlowTimeout):
        await flow.result(timeout=240)
    assert did == ["began"]


async def test_a_worker_that_stops_between_transitions_leaves_the_rest_to_another(
    open_flows: Open, until: Until, stack: AsyncExitStack
) -> None:
    gate = asyncio.Event()

    class Steps(StateMachine[Draft], name="steps", start="a"):
        @transition("a", to="b")
        async def first(self, ctx: MachineContext[Draft]) -> None:
            did.append("first")
            await gate.wait()

        @transition("b", to=END)
        async def second(self, ctx: MachineContext[Draft]) -> str:
            did.append("second")
            return "done"

    flows = await open_flows(Steps, worker=False)
    flow = await flows.execute(Steps, Draft())
    async with flows.provider.worker():
        await until(lambda: did == ["first"], "the first transition runs")
        asyncio.get_running_loop().call_later(0.2, gate.set)  # while the worker stops, which waits for it
    assert did == ["first"]
    await stack.enter_async_context(flows.provider.worker())
    assert await flow.result(timeout=240) == "done"
    assert did == ["first", "second"]


class Dated(StateMachine[Draft], name="dated", start="a", timeout=3):
    @transition("a", to="b", wait=int)
    async def take(self, ctx: MachineContext[Draft], number: int) -> None:
        did.append(f"take {number}")
        ctx.state.value = number

    @take.rollback
    async def untake(self, ctx: MachineContext[Draft]) -> None:
        did.append(f"untake {ctx.state.value}")

    @transition("b", to=END)
    async def end(self, ctx: MachineContext[Draft]) -> int:
        return ctx.state.value


async def test_of_a_trigger_and_the_timeout_of_its_flow_one_decides(open_flows: Open, until: Until) -> None:
    """A trigger that is refused has fired nothing. One that is taken completes its flow, or is undone with
    it.
    """
    flows = await open_flows(Dated, lease=0.5)
    loop, began, some = asyncio.get_running_loop(), list[float](), list[FlowHandle[Any]]()
    for _ in range(30):
        began.append(loop.time())
        some.append(await flows.execute(Dated, Draft()))
    for flow in some:
        await stands_at(flow, "a", until)

    async def trigger(number: int) -> str:
        if number:  # around the time when the server ends the flows
            await asyncio.sleep(began[number] + 3.2 + number * 0.02 - loop.time())
        try:
            await some[number].trigger(Dated.take, number)
        except SignalRefused as error:
            return error.reason
        return "taken"

    async def end(number: int) -> str:
        try:
            return str(await some[number].result(timeout=240))
        except FlowTimeout:
            return "timeout"

    sent = await asyncio.gather(*map(trigger, range(30)))
    ends = await asyncio.gather(*map(end, range(30)))
    for number, (word, came) in enumerate(zip(sent, ends, strict=True)):
        ran = [each.partition(" ")[0] for each in did if each.endswith(f" {number}")]
        if word == "taken":
            assert came in (str(number), "timeout")
            assert ran == ["take"] if came != "timeout" else ran in ([], ["take"], ["take", "untake"])
        else:
            assert (word in ("stopping", "ended"), came, ran) == (True, "timeout", [])
    assert ends[0] == "0"
    assert "timeout" in ends
