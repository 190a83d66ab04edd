"""State machines in this process: what the run of a machine does, without a server. L-numbers are those of
Loopstack's behaviours.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from eventbus import DefinitionError, Retry, StoreRefused, UsageError
from workflows import (
    END,
    FlowContext,
    FlowTimeout,
    MachineContext,
    Settled,
    StateMachine,
    StepError,
    durable,
    transition,
)
from workflows.execution.environment import Environment
from workflows.inline.machine_flow import InlineMachine
from workflows.inline.start import open_code
from workflows.inline.triggers import InlineTriggers
from workflows.testing import run_inline

pytestmark = pytest.mark.virtual


class Draft(msgspec.Struct):
    value: int = 0
    seen: list[str] = msgspec.field(default_factory=list[str])


class Verdict(msgspec.Struct):
    ok: bool


did: list[str] = []
broken: set[str] = set()


@pytest.fixture(autouse=True)
def fresh() -> None:
    did.clear()
    broken.clear()


async def no_pause(_: float) -> None: ...


def open_flow(machine: type[StateMachine[Any]], given: Any, **options: Any) -> InlineMachine:
    triggers = InlineTriggers(options.pop("triggers", ()))
    flow = open_code(
        machine.definition, given, environment=Environment(sleep=no_pause), triggers=triggers, **options
    )
    assert isinstance(flow, InlineMachine)
    return flow


def moves(flow: InlineMachine) -> list[str]:
    return [f"{each.kind} {each.place}" for each in flow.recorder.entries]


class Routed(StateMachine[Draft], name="routed", start="a"):
    @transition("a", to="d", when=lambda ctx: ctx.state.value > 200, priority=2)
    async def high(self, ctx: MachineContext[Draft]) -> None: ...

    @transition("a", to="c", when=lambda ctx: ctx.state.value > 100, priority=1)
    async def middle(self, ctx: MachineContext[Draft]) -> None: ...

    @transition("a", to="b")
    async def low(self, ctx: MachineContext[Draft]) -> None: ...

    @transition(["b", "c", "d"], to=END)
    async def end(self, ctx: MachineContext[Draft]) -> str:
        return ctx.place


@pytest.mark.parametrize(("value", "place"), [(50, "b"), (150, "c"), (250, "d")])
async def test_l035_the_first_true_guard_by_priority_fires_and_the_unguarded_one_last(
    value: int, place: str
) -> None:
    assert await run_inline(Routed, Draft(value)) == place


class Review(StateMachine[Draft], name="review", start="draft"):
    @transition("draft", to="waiting")
    async def prepare(self, ctx: MachineContext[Draft]) -> None:
        ctx.state.seen.append("prepared")
        ctx.save("summary", {"pages": 3})

    async def wants(self, ctx: MachineContext[Draft], verdict: Verdict) -> bool:
        return verdict.ok

    @transition("waiting", to="approved", wait=Verdict, when=lambda ctx, verdict: _is_ok(verdict))
    async def approve(self, ctx: MachineContext[Draft], verdict: Verdict) -> None:
        summary = await ctx.load("summary", dict[str, int])
        ctx.state.seen.append(f"approved {summary['pages']} {verdict.ok}")

    @transition("waiting", to="draft", wait=None)
    async def again(self, ctx: MachineContext[Draft], payload: None) -> None: ...

    @transition("approved", to=END)
    async def publish(self, ctx: MachineContext[Draft]) -> list[str]:
        return ctx.state.seen


async def _is_ok(verdict: Verdict) -> bool:
    return verdict.ok


async def test_a_machine_goes_its_way_with_the_triggers_that_it_is_given() -> None:
    triggers = [(Review.again, None), (Review.approve, Verdict(ok=True))]
    assert await run_inline(Review, Draft(), triggers=triggers) == ["prepared", "prepared", "approved 3 True"]


async def test_l053_a_wait_without_a_trigger_raises() -> None:
    with pytest.raises(UsageError, match="waits at place 'waiting' for a trigger that does not come"):
        await run_inline(Review, Draft())


async def test_l032_a_trigger_that_the_place_does_not_offer_raises() -> None:
    class Other(StateMachine[Draft], name="other", start="a"):
        @transition("a", to="b", wait=None)
        async def first(self, ctx: MachineContext[Draft], payload: None) -> None: ...

        @transition("b", to=END, wait=None)
        async def second(self, ctx: MachineContext[Draft], payload: None) -> None: ...

    with pytest.raises(UsageError, match="accepts no trigger 'second'; it accepts: first"):
        await run_inline(Other, Draft(), triggers=[(Other.second, None)])


async def test_l033_a_guard_refuses_a_trigger_and_the_machine_stays() -> None:
    flow = open_flow(
        Review, Draft(), triggers=[(Review.approve, Verdict(ok=False)), (Review.approve, Verdict(ok=True))]
    )
    await flow.run()
    assert moves(flow) == ["move waiting", "refused waiting", "move approved", "move __end__"]


class Failing(StateMachine[Draft], name="failing", start="a"):
    @transition("a", to="b", retry=Retry(attempts=3, max_delay=1.5), error_place="mended")
    async def work(self, ctx: MachineContext[Draft]) -> None:
        ctx.state.seen.append("half done")
        ctx.save("half", 1)
        did.append(f"work {ctx.attempt}")
        if "work" in broken or ctx.attempt < 3:
            raise ValueError(f"no. {ctx.attempt}")

    @transition("mended", to="b", wait=None)
    async def mend(self, ctx: MachineContext[Draft], payload: None) -> None:
        did.append(f"mend after {ctx.error}, half is {await ctx.load('half')}")

    @transition("b", to=END)
    async def end(self, ctx: MachineContext[Draft]) -> list[str]:
        assert ctx.error == ""
        return ctx.state.seen


async def test_l016_attempts_are_retried_with_a_capped_pause_and_a_failed_one_leaves_nothing() -> None:
    flow = open_flow(Failing, Draft())
    assert await flow.run() == ["half done"], "once, though three attempts changed it"
    assert did == ["work 1", "work 2", "work 3"]
    tries = [each for each in flow.recorder.entries if each.kind == "try"]
    pauses = [each.due_ms - each.started_ms - each.took_ms for each in tries]
    assert [round(each / 100) for each in pauses] == [10, 15]
    assert moves(flow) == ["try a", "try a", "move b", "move __end__"]
    assert flow.recorder.entries[2].attempts == 2


async def test_l021_after_the_last_attempt_it_moves_to_the_error_place_and_a_trigger_recovers_it() -> None:
    broken.add("work")
    flow = open_flow(Failing, Draft(), triggers=[(Failing.mend, None)])
    assert await flow.run() == []
    assert did[3:] == ["mend after ValueError: no. 3, half is None"]
    assert moves(flow) == ["try a", "try a", "failed a", "move mended", "move b", "move __end__"]


class Once(StateMachine[Draft], name="once", start="a"):
    @transition("a", to=END, timeout=0.05)
    async def work(self, ctx: MachineContext[Draft]) -> Any:
        did.append("work")
        match ctx.state.value:
            case 1:
                raise ValueError("broken")
            case 2:
                await asyncio.Event().wait()
            case 3:
                ctx.state = "no draft"  # type: ignore[assignment]
            case 4:
                ctx.state.seen = ["x" * (256 << 10)]
            case 5:
                ctx.save("large", "x" * (1 << 20))
            case 6:
                return object()
            case _:
                ctx.state.value += 1
        return None


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (1, "ValueError: broken"),
        (2, "transition 'work' timed out: it ran longer than its timeout of 0.05 s"),
        (3, "the state of state machine 'once' cannot be recorded"),
        (4, "the state of state machine 'once' cannot be recorded"),
        (5, "document 'large'"),
        (6, "object"),
    ],
)
async def test_l009_a_transition_that_fails_leaves_the_machine_where_it_was(value: int, told: str) -> None:
    flow = open_flow(Once, Draft(value))
    with pytest.raises(StepError, match=told):
        await flow.run()
    assert did == ["work"], "one attempt is the default"
    assert moves(flow) == ["failed a"]
    assert msgspec.json.decode(flow.recorder.live["state"], type=Draft) == Draft(value)
    assert not [name for name in flow.recorder.live if name.startswith("doc/")]


async def test_l014_a_value_that_nobody_asked_for_fails_the_transition() -> None:
    class Returning(StateMachine[Draft], name="returning", start="a"):
        @transition("a", to="b")
        async def work(self, ctx: MachineContext[Draft]) -> int:
            return 7

        @transition("b", to=END)
        async def end(self, ctx: MachineContext[Draft]) -> None: ...

    with pytest.raises(StepError, match="only a transition to END returns a value"):
        await run_inline(Returning, Draft())


async def test_l028_a_body_that_ignores_its_timeout_reaches_nothing_any_more() -> None:
    """Defect F2: the body went on after its timeout, and what it did counted."""
    kept: list[MachineContext[Draft]] = []
    late: list[BaseException] = []
    ended = asyncio.Event()

    class Zombie(StateMachine[Draft], name="zombie", start="a"):
        @transition("a", to=END, timeout=0.05, error_place="b")
        async def work(self, ctx: MachineContext[Draft]) -> None:
            kept.append(ctx)
            while not ended.is_set():
                try:
                    await ended.wait()
                except asyncio.CancelledError:
                    continue
            try:
                ctx.save("late", 1)
            except StoreRefused as error:
                late.append(error)

        @transition("b", to=END)
        async def end(self, ctx: MachineContext[Draft]) -> str:
            return ctx.error

    flow = open_flow(Zombie, Draft())
    assert "timed out" in await flow.run()
    ended.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert "the attempt of this transition at place 'a' has ended" in str(late[0])
    with pytest.raises(StoreRefused):
        kept[0].children(Routed, [Draft()])
    assert "doc/late" not in flow.recorder.live


async def test_l015_the_state_that_is_given_is_not_the_one_that_changes() -> None:
    given = Draft(7)
    assert await run_inline(Review, given, triggers=[(Review.approve, Verdict(ok=True))])
    assert given == Draft(7)


async def test_a_guard_may_change_nothing_and_one_that_raises_fails_its_transition() -> None:
    def changing(ctx: MachineContext[Draft]) -> bool:
        ctx.state.value = 100
        return False

    def saving(ctx: MachineContext[Draft]) -> bool:
        ctx.save("x", 1)
        return True

    class Guarded(StateMachine[Draft], name="guarded", start="a"):
        @transition("a", to=END, when=changing, priority=2)
        async def never(self, ctx: MachineContext[Draft]) -> None: ...

        @transition("a", to=END, when=saving, priority=1, error_place="b")
        async def failing(self, ctx: MachineContext[Draft]) -> None: ...

        @transition("b", to=END)
        async def end(self, ctx: MachineContext[Draft]) -> str:
            return f"{ctx.state.value} {ctx.error}"

    assert (await run_inline(Guarded, Draft())).startswith("0 UsageError: ctx.save is for transitions")


class Page(msgspec.Struct):
    number: int


@durable("analyse", output=int)
async def analyse(ctx: FlowContext[Page]) -> int:
    if ctx.input.number < 0:
        raise ValueError(f"page {ctx.input.number} cannot be read")
    return ctx.input.number * 10


class Fanning(StateMachine[list[int]], name="fanning", start="a"):
    @transition("a", to="analysing")
    async def begin(self, ctx: MachineContext[list[int]]) -> None:
        ctx.children(analyse, [Page(each) for each in ctx.state])

    @transition("analysing", to=END, after="all_settled")
    async def collect(self, ctx: MachineContext[list[int]], settled: Settled) -> str:
        return f"{settled.results} {settled.has_error} {[str(each) for each in settled.errors]}"


class Strict(StateMachine[list[int]], name="strict", start="a"):
    @transition("a", to="analysing")
    async def begin(self, ctx: MachineContext[list[int]]) -> None:
        ctx.children(analyse, [Page(each) for each in ctx.state])

    @transition("analysing", to=END, after="all", error_place="lost", retry=Retry(attempts=5))
    async def collect(self, ctx: MachineContext[list[int]], settled: Settled) -> list[int]:
        did.append("collect")
        return settled.results

    @transition("lost", to=END)
    async def give_up(self, ctx: MachineContext[list[int]]) -> str:
        return ctx.error


async def test_l038_a_transition_hears_of_the_ends_of_all_children() -> None:
    assert await run_inline(Fanning, [1, 2]) == "[10, 20] False []"
    assert await run_inline(Fanning, []) == "[] False []", "none have all ended"
    told = await run_inline(Fanning, [1, -2, 3])
    assert told.startswith("[10, 30] True [")
    assert "page -2 cannot be read" in told


async def test_l040_with_all_a_failed_child_fails_the_transition_without_its_body() -> None:
    assert await run_inline(Strict, [1, 2]) == [10, 20]
    assert did == ["collect"]
    assert "page -1 cannot be read" in await run_inline(Strict, [1, -1])
    assert did == ["collect"], "and it is not tried again: its children stay as they ended"


async def test_a_flow_that_times_out_undoes_the_moves_that_have_a_rollback_newest_first() -> None:
    class Undone(StateMachine[Draft], name="undone", start="a", timeout=0.2):
        @transition("a", to="b")
        async def first(self, ctx: MachineContext[Draft]) -> None:
            ctx.state.value = 5

        @first.rollback
        async def unfirst(self, ctx: MachineContext[Draft]) -> None:
            did.append(f"unfirst {ctx.state.value}")

        @transition("b", to="c")
        async def second(self, ctx: MachineContext[Draft]) -> None: ...

        @transition("c", to="d")
        async def third(self, ctx: MachineContext[Draft]) -> None: ...

        @third.rollback
        async def unthird(self, ctx: MachineContext[Draft]) -> None:
            did.append("unthird")
            raise ValueError("cannot be undone")

        @transition("d", to=END, timeout=0)
        async def hang(self, ctx: MachineContext[Draft]) -> None:
            await asyncio.Event().wait()

    with pytest.raises(FlowTimeout) as caught:
        await run_inline(Undone, Draft(), sleep=no_pause)
    assert did == ["unthird", "unthird", "unthird", "unfirst 5"]
    assert caught.value.rollback == "incomplete"
    assert [each.step for each in caught.value.rollback_errors] == ["third@3"]


class Adding(StateMachine[int], name="adding", start="a"):
    @transition("a", to="a", wait=int)
    async def add(self, ctx: MachineContext[int], number: int) -> None:
        ctx.state += number

    @transition("a", to=END, wait=None)
    async def end(self, ctx: MachineContext[int], nothing: None) -> int:
        return ctx.state


async def test_a_trigger_may_be_a_name_and_one_that_is_left_over_raises() -> None:
    assert await run_inline(Adding, 1, triggers=[("add", 2), ("end", None)]) == 3
    with pytest.raises(UsageError, match="has ended before these triggers were sent: add, end"):
        await run_inline(Adding, 1, triggers=[(Adding.end, None), (Adding.add, 2), (Adding.end, None)])
    with pytest.raises(DefinitionError, match="has no transition 'high'; its transitions: add, end"):
        await run_inline(Adding, 1, triggers=[(Routed.high, None)])
