"""Passes: a worker takes up a machine where it stands, fires what it can, and holds nothing while the machine
rests.

L-numbers are those of Loopstack's behaviours.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

import msgspec
import pytest
from drivers.machines.acting import Draft, Open, Until, did, stands_at

from eventbus import DefinitionError, PayloadError, Retry, SignalRefused, UnknownJob
from eventbus.lowlevel import JobClient
from workflows import END, FlowHandle, MachineContext, Settled, StateMachine, transition
from workflows.testing import run_inline

pytestmark = pytest.mark.virtual


class Walk(StateMachine[Draft], name="walk", start="a"):
    """Its transitions write down which instance they are called on: a pass has one of its own."""

    instances: ClassVar[list[StateMachine[Draft]]] = []  # keeps them all, so that no two have one id

    def note(self, name: str) -> None:
        self.instances.append(self)
        did.append(f"{name} of {id(self)}")

    @transition("a", to="b")
    async def first(self, ctx: MachineContext[Draft]) -> None:
        self.note("first")
        while "held" in ctx.state.seen and "go on" not in did:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    @transition("b", to="c")
    async def second(self, ctx: MachineContext[Draft]) -> None:
        self.note("second")

    @transition("c", to="d", wait=None)
    async def go(self, ctx: MachineContext[Draft], payload: None) -> None:
        self.note("go")

    @transition("d", to=END)
    async def last(self, ctx: MachineContext[Draft]) -> str:
        self.note("last")
        return "done"


async def test_l001_a_flow_is_pending_then_running_then_waiting_at_a_place_then_completed(
    open_flows: Open, until: Until, stack: Any
) -> None:
    flows = await open_flows(Walk, worker=False)
    flow = await flows.execute(Walk, Draft(seen=["held"]))
    machine = (await flow.report()).machine
    assert machine is not None
    assert ((await flow.status()).state, machine.place) == ("pending", "")
    await stack.enter_async_context(flows.provider.worker())
    await until(lambda: len(did) == 1, "the first transition runs")
    assert (await flow.status()).state == "running"
    did.append("go on")
    await stands_at(flow, "c", until)
    await flow.trigger(Walk.go)
    assert await flow.result(timeout=240) == "done"
    assert (await flow.status()).state == "completed"


async def test_l002_a_pass_fires_all_that_fires_by_itself_and_a_trigger_begins_another_one(
    open_flows: Open, until: Until
) -> None:
    flows = await open_flows(Walk)
    flow = await flows.execute(Walk, Draft())
    await stands_at(flow, "c", until)
    await flow.trigger(Walk.go)
    await flow.result(timeout=240)
    names, instances = zip(*(each.split(" of ") for each in did), strict=True)
    assert names == ("first", "second", "go", "last")
    assert instances[0] == instances[1] != instances[2] == instances[3]


async def test_l029_machines_that_wait_hold_no_slot_of_their_worker(open_flows: Open, until: Until) -> None:
    flows = await open_flows(Walk, concurrency=1)
    some = [await flows.execute(Walk, Draft()) for _ in range(5)]
    for flow in some:
        await stands_at(flow, "c", until)
    for flow in reversed(some):
        await flow.trigger(Walk.go)
    assert [await flow.result(timeout=240) for flow in some] == ["done"] * 5


async def test_l030_a_trigger_that_is_sent_while_no_worker_is_there_fires_in_the_next_one(
    open_flows: Open, until: Until, stack: Any
) -> None:
    flows = await open_flows(Walk, worker=False)
    flow = await flows.execute(Walk, Draft())
    async with flows.provider.worker():
        await stands_at(flow, "c", until)
    await flow.trigger(Walk.go)
    assert len(did) == 2
    other = await open_flows(Walk)
    assert await other.handle(flow.id, Walk).result(timeout=240) == "done"
    assert [each.partition(" ")[0] for each in did] == ["first", "second", "go", "last"]


class Color(enum.Enum):
    RED = "red"


class Line(msgspec.Struct):
    price: Decimal
    color: Color


class Rich(msgspec.Struct):
    """A state of many types."""

    at: dt.datetime
    number: UUID
    lines: dict[str, list[Line]]
    marks: set[int]
    blob: bytes
    note: str | None = None


class Keeping(StateMachine[Rich], name="keeping", start="a"):
    @transition("a", to="b")
    async def change(self, ctx: MachineContext[Rich]) -> None:
        ctx.state.marks.add(7)
        ctx.state.lines["new"] = [Line(Decimal("0.10"), Color.RED)]

    @transition("b", to=END, wait=None)
    async def end(self, ctx: MachineContext[Rich], payload: None) -> Rich:
        return ctx.state


async def test_l008_another_worker_has_the_state_exactly_as_it_was_recorded(
    open_flows: Open, until: Until
) -> None:
    at = dt.datetime(2026, 2, 28, 23, 59, 59, 123456, tzinfo=dt.UTC)
    given = Rich(at, UUID(int=5), {"old": [Line(Decimal("1E-3"), Color.RED)]}, {1}, b"\x00\xff")
    flows = await open_flows(Keeping, worker=False)
    flow: FlowHandle[Rich] = await flows.execute(Keeping, given)
    async with flows.provider.worker():
        await stands_at(flow, "b", until)
    wanted = msgspec.structs.replace(
        given, marks={1, 7}, lines={**given.lines, "new": [Line(Decimal("0.10"), Color.RED)]}
    )
    assert await flow.state() == wanted
    other = await open_flows(Keeping)
    await other.handle(flow.id).trigger("end")
    assert await flow.result(timeout=240) == wanted


async def test_l054_an_input_that_is_no_state_is_refused_before_anything_runs(open_flows: Open) -> None:
    flows = await open_flows(Walk)
    with pytest.raises(PayloadError, match="Draft"):
        await flows.execute(Walk, "no draft")  # pyright: ignore[reportArgumentType, reportCallIssue]
    with pytest.raises(PayloadError):
        await run_inline(Walk, "no draft")  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert did == []
    assert await flows.flows("walk") == []


def test_an_attempt_has_five_minutes_unless_its_transition_says_otherwise() -> None:
    async def body(self: Any, ctx: MachineContext[Draft]) -> None: ...

    made = [
        transition("a", to=END)(body),
        transition("a", to=END, timeout="1m")(body),
        transition("a", to=END, timeout=0)(body),
    ]
    assert [each.timeout for each in made] == [300, 60, None]


class Slow(StateMachine[Draft], name="slow", start="a"):
    @transition("a", to=END, timeout=0.1, retry=Retry(attempts=2, delay=0.01))
    async def work(self, ctx: MachineContext[Draft]) -> int:
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return ctx.attempt


async def test_l025_an_attempt_that_takes_too_long_has_failed_and_is_tried_again(open_flows: Open) -> None:
    flows = await open_flows(Slow)
    flow = await flows.execute(Slow, Draft())
    assert await flow.result(timeout=240) == 2
    machine = (await flow.report()).machine
    assert machine is not None
    assert [each.kind for each in machine.moves] == ["try", "move"]
    assert "transition 'work' timed out: it ran longer than its timeout of 0.1 s" in machine.moves[0].error


class Told(StateMachine[Draft], name="told", start="a"):
    @transition("a", to=END)
    async def tell(self, ctx: MachineContext[Draft]) -> list[Any]:
        return [ctx.flow_id, dict(ctx.meta), ctx.correlation_id, ctx.place, ctx.moves, ctx.attempt, ctx.error]


async def test_the_context_tells_whose_flow_it_is_and_where_it_stands(open_flows: Open) -> None:
    flows = await open_flows(Told)
    flow = await flows.execute(Told, Draft(), meta={"user": "ada"}, correlation_id="c-1")
    assert await flow.result(timeout=240) == [flow.id, {"user": "ada"}, "c-1", "a", 0, 1, ""]


class Parent(StateMachine[Draft], name="parent", start="a"):
    @transition("a", to="b")
    async def begin(self, ctx: MachineContext[Draft]) -> None:
        ctx.children(Told, [Draft()])
        ctx.children(Walk, [Draft()])

    @transition("b", to=END, after="all_settled")
    async def collect(self, ctx: MachineContext[Draft], settled: Settled) -> list[tuple[str, str, str]]:
        return [(each.flow_id, each.state, str(each.error or "")) for each in settled.children]


async def test_l038_the_end_of_each_child_has_its_id_its_state_and_its_error(
    open_flows: Open, until: Until
) -> None:
    flows = await open_flows(Parent, Told, Walk)
    flow = await flows.execute(Parent, Draft())
    await stands_at(flow, "b", until)
    machine = (await flow.report()).machine
    assert machine is not None
    told, walk = machine.children
    await stands_at(flows.handle(walk), "c", until)
    await flows.handle(walk).cancel("enough")
    ends = await flow.result(timeout=240)
    assert [each[:2] for each in ends] == [(told, "completed"), (walk, "cancelled")]
    assert ends[0][2] == ""
    assert "enough" in ends[1][2]


async def test_a_signal_by_its_name_is_a_trigger_also_where_the_machine_is_not_known(
    open_flows: Open, until: Until
) -> None:
    flows, other = await open_flows(Walk), await open_flows(worker=False)
    flow = await flows.execute(Walk, Draft())
    await stands_at(flow, "c", until)
    with pytest.raises(DefinitionError, match="has no transition 'unknown'"):
        await flows.signal(flow.id, "unknown")
    with pytest.raises(DefinitionError, match="waits for no trigger"):
        await flows.signal(flow.id, "last")
    with pytest.raises(PayloadError, match="the payload of transition 'go' failed its validation"):
        await flows.signal(flow.id, "go", 7)
    with pytest.raises(SignalRefused, match=f"trigger last was not sent to flow {flow.id}: .* accepts go"):
        await other.signal(flow.id, "last")
    with pytest.raises(UnknownJob):
        await other.signal("walk~0123456789abcdef0123", "go")
    await other.signal(flow.id, "go")
    assert await flow.result(timeout=240) == "done"


@pytest.mark.parametrize("name", ["lives", "journal"])
async def test_a_report_shows_one_moment_also_if_the_machine_moves_while_it_is_read(
    name: str, open_flows: Open, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place was read behind the moves, so it could be a newer one."""
    flows = await open_flows(Walk)
    flow = await flows.execute(Walk, Draft())
    await stands_at(flow, "c", until)
    real, is_moved = getattr(JobClient, name), list[bool]()

    async def move_behind(self: JobClient, *args: Any, **kwargs: Any) -> Any:
        found = await real(self, *args, **kwargs)
        if not is_moved:
            is_moved.append(True)
            await flow.trigger(Walk.go)
            await flow.result()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(JobClient, name, move_behind)
        machine = (await flow.report()).machine
    assert machine is not None
    assert is_moved
    last = machine.moves[-1]
    assert (last.target, last.version) == (machine.place, machine.version)
