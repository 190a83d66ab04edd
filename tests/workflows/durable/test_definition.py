"""The definitions of durable functions, tasks and signals: what is refused, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eventbus import DefinitionError, EventProvider, PayloadError, Retry
from workflows import (
    FlowContext,
    Signal,
    StepContext,
    StepError,
    TaskContext,
    WorkflowProvider,
    durable,
    task,
)
from workflows.definition.task import find_task
from workflows.distributed.functions.parked_flows import ParkedFlows
from workflows.testing import run_inline


def plain(ctx: FlowContext[int]) -> int:
    return 1


async def fine(ctx: FlowContext[int]) -> str:
    return "1"


async def graph(ctx: StepContext[int]) -> None: ...


class OwnContext(FlowContext[int]):
    """No flow has one."""


async def own(ctx: OwnContext) -> None: ...


async def unknown(ctx: FlowContext[int]) -> Nowhere:  # type: ignore[name-defined]  # noqa: F821
    ...


async def generator(ctx: FlowContext[int]) -> Any:
    yield 1


async def two(ctx: FlowContext[int], more: int) -> None: ...


async def with_context(path: str, ctx: TaskContext) -> None: ...


any_durable: Any = durable
any_task: Any = task


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: any_durable("x y")(fine), "expected the name of a workflow"),
        (lambda: any_durable("x")(plain), "durable function 'x' is a plain function; make it `async def`"),
        (lambda: any_durable("x")(graph), "annotate it as FlowContext"),
        (lambda: any_durable("x")(own), "annotate it as FlowContext"),
        (lambda: any_durable("x")(unknown), "'Nowhere' of durable function 'x' is not to be found"),
        (lambda: any_durable("x")(generator), "is a generator"),
        (lambda: any_durable("x")(two), "expected durable function 'x' to take one parameter"),
        (lambda: any_durable("x", output=int)(fine), "returns str, but its output is int"),
        (lambda: any_durable("x", retries=3)(fine), "'x' has no option 'retries'.* mean retry?"),
        (lambda: any_durable("x", retry=3)(fine), "expected retry of durable function 'x' to be a Retry"),
        (lambda: any_durable("x", timeout="soon")(fine), "timeout of durable function 'x'"),
        (lambda: any_durable("x", errors=[3])(fine), "expected errors of durable function 'x'"),
        (lambda: any_durable("x", retry_on=[ValueError])(fine), "expected retry_on of durable function 'x'"),
        (lambda: any_durable("x", version="a b")(fine), "expected version of durable function 'x'"),
        (lambda: any_durable("x", max_history=1)(fine), "expected max_history of durable function 'x'"),
        (lambda: any_durable("x", state=Callable)(fine), "cannot be used"),
        (lambda: any_task(3), "expected a task to be a function"),
        (lambda: any_task(with_context), "parameter 'ctx' for a TaskContext, .* call task_context() inside"),
        (lambda: any_task(name="a b")(plain), "expected the name of a step"),
        (lambda: any_task(lambda: 1), "a lambda has no name"),
        (
            lambda: any_task(name="x")(lambda: 1).rollback(print),
            "is a lambda, so no other process could find",
        ),
        (lambda: any_task(timeout="soon")(plain), "timeout of task 'plain'"),
        (lambda: any_task(retry=3)(plain), "expected retry of task 'plain' to be a Retry"),
        (lambda: Signal("a b"), "expected the name of a signal"),
        (lambda: Signal("x", Callable), "cannot be used"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_defined(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(DefinitionError, match=says.replace("(", r"\(").replace(")", r"\)")):
        make()


def test_a_definition_has_the_types_of_its_annotations() -> None:
    function = durable("fine", timeout="2 minutes", errors=[ValueError])(fine)
    assert (function.input, function.output, function.timeout, function.version) == (int, str, 120, "1")
    assert (function.is_answer(ValueError()), function.is_answer(KeyError())) == (True, False)
    assert repr(function) == "Durable('fine')"


async def test_a_task_is_called_as_its_function_and_has_options_for_one_call() -> None:
    @task(retry=Retry(attempts=5), timeout="30s")
    async def charge(total: int) -> int:
        return total

    @charge.rollback(timeout=5)
    async def refund(total: int) -> None: ...

    assert await charge(7) == await refund_of(charge)(7) == 7
    other = charge.using(timeout=1, name="other")
    assert (other.name, other.timeout, other.retry, other.undo) == ("other", 1, charge.retry, refund)
    assert find_task(charge.key) is charge
    with pytest.raises(DefinitionError, match="has a rollback already: refund"):
        charge.rollback(refund)

    @task
    async def text() -> str:
        return ""

    with pytest.raises(DefinitionError, match="takes int, but the task returns str"):
        text.rollback(refund)  # pyright: ignore[reportArgumentType, reportCallIssue]


def refund_of(charge: Any) -> Any:
    return charge.function


def test_a_payload_that_does_not_fit_its_signal_is_refused_with_its_path() -> None:
    signal = Signal("approval", dict[str, int])
    assert signal.decode(signal.encode({"a": 1})) == {"a": 1}
    with pytest.raises(
        PayloadError, match="the payload of signal 'approval' failed its validation"
    ) as caught:
        signal.encode({"a": "b"})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    assert caught.value.event == "approval"


async def test_a_function_that_declares_its_signals_waits_for_no_other_one() -> None:
    known, other = Signal("known", int), Signal("other", int)

    @durable("declares", signals=[known])
    async def function(ctx: FlowContext[None]) -> int:
        with pytest.raises(DefinitionError, match="declares no signal 'other'; its signals: 'known'"):
            ctx.wait_for(other)
        return await ctx.wait_for(known)

    assert await run_inline(function, None, signals=[(known, 7)]) == 7
    assert function.check_signal("known") is known
    with pytest.raises(DefinitionError, match="two signals 'known'"):
        durable("twice", signals=[known, Signal("known", str)])(function.function)
    with pytest.raises(DefinitionError, match="to be Signals"):
        any_durable("wrong", signals=["known"])(function.function)


def test_a_worker_remembers_what_it_parked_as_long_as_nothing_is_recorded() -> None:
    parked = ParkedFlows()
    parked.keep("a", 1, 3, "changed")
    assert parked.get("a", 1, 3) == "changed"
    assert [parked.get("a", 1, 4), parked.get("a", 2, 3), parked.get("b", 1, 3)] == [None, None, None]


class Busy(Exception):
    pass


@task(retry=Retry(only=(Busy,)))
async def insist() -> None: ...


async def _calls_it(ctx: FlowContext[int]) -> None:
    async def inner() -> None:
        await ctx.step(insist)

    await inner()


async def _names_another(ctx: FlowContext[int]) -> None:
    await getattr(ctx, "insist", ctx).sleep(1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"errors": [Busy]},
            "the retry of task 'insist' in durable function 'x' has .*Busy.* in only, but it is declared",
        ),
        (
            {"errors": [KeyError], "retry_on": [KeyError]},
            "the retry of task 'insist' in durable function 'x' has an only without .*KeyError",
        ),
    ],
)
async def test_the_rule_of_a_task_that_contradicts_what_the_function_declares_is_refused_when_registered(
    options: dict[str, Any], says: str
) -> None:
    flows = WorkflowProvider(EventProvider("memory:"))
    with pytest.raises(DefinitionError, match=says):
        flows.register(any_durable("x", **options)(_calls_it))
    flows.register(any_durable("x", **options)(_names_another))
    flows.register(any_durable("y", errors=[Busy], retry_on=[Busy])(_calls_it))

    @task(retry=Retry(never=(Busy,)))
    async def give_up() -> None: ...

    async def around(ctx: FlowContext[int]) -> None:
        await ctx.step(give_up)

    with pytest.raises(
        DefinitionError, match=r"task 'give_up' in durable function 'z' has .*Busy.* in never"
    ):
        flows.register(any_durable("z", errors=[Busy], retry_on=[Busy])(around))


@pytest.mark.parametrize("way", ["step", "map"])
async def test_a_rule_that_is_given_for_one_call_is_checked_by_the_call(way: str) -> None:
    async def answer(n: int = 0) -> int:
        return n

    @durable("x", errors=[Busy])
    async def calls(ctx: FlowContext[int]) -> None:
        busy = task(answer).using(retry=Retry(only=(Busy,)))
        await (ctx.step(busy) if way == "step" else ctx.map(busy, [1], local=True))

    with pytest.raises(
        StepError,
        match=r"DefinitionError: the retry of task 'answer' in durable function 'x' has .*Busy.* in only",
    ):
        await run_inline(calls, 1)
