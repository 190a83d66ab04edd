"""Bad definitions: each is refused with the workflow, the step, the value, and what to do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, cast

import msgspec
import pytest

from eventbus import DefinitionError, EventContext
from workflows.definition.context import StepContext
from workflows.definition.step import Step, step
from workflows.definition.workflow import Workflow


class Order(msgspec.Struct):
    total: int


class Basket(msgspec.Struct):
    total: int


class Express(Order):
    hour: int = 0


class Opaque:
    """No type that can be sent."""


async def a(ctx: StepContext[Order]) -> int: ...
async def b(ctx: StepContext[Order]) -> str: ...
async def untyped(ctx: Any) -> Any: ...
async def of_basket(ctx: StepContext[Basket]) -> int: ...
async def of_event(ctx: EventContext) -> int: ...
async def of_order(order: Order) -> int: ...
async def two(ctx: Any, more: Any) -> None: ...
async def none() -> None: ...
async def keyword(*, ctx: Any) -> None: ...
async def undo(ctx: StepContext[Order], result: int) -> None: ...
async def undo_text(ctx: StepContext[Order], result: str) -> None: ...
async def undo_basket(ctx: StepContext[Basket], result: int) -> None: ...
async def opaque(ctx: Any) -> Opaque: ...
async def missing(  # pyright: ignore[reportUnknownParameterType]
    ctx: Any,
) -> Missing: ...  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
async def text(ctx: Any) -> str: ...
async def failing(ctx: Any, error: str) -> None: ...
def awaiting(ctx: Any) -> Awaitable[int]: ...
def numbers(ctx: Any) -> Iterator[int]:
    yield 1


async def stream(ctx: Any) -> AsyncIterator[int]:
    yield 1


def _shop(**options: Any) -> Workflow[Order, Any]:
    return Workflow("shop", input=Order, **options)


def _refused(define: Callable[[], object], *parts: str) -> None:
    with pytest.raises(DefinitionError) as raised:
        define()
    assert [part for part in parts if part not in str(raised.value)] == [], str(raised.value)


_STEP = "step 'a' of workflow 'shop'"


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"name": "a b"}, ["expected the name of a workflow", "'a b'"]),
        ({"name": None}, ["expected the name of a workflow", "None"]),
        ({"retry": 3}, ["expected retry of workflow 'shop' to be a Retry", "got: 3"]),
        ({"timeout": "soon"}, ["expected timeout of workflow 'shop' to be seconds", "'soon'"]),
        ({"timeout": -1}, ["expected timeout of workflow 'shop' to be from 0 s", "-1"]),
        ({"errors": [5]}, ["expected errors of workflow 'shop' to be a list of exception classes", "5"]),
        ({"errors": ValueError()}, ["expected errors of workflow 'shop'", "ValueError()"]),
        ({"errors": [KeyboardInterrupt]}, ["expected errors of workflow 'shop'"]),
        ({"version": ""}, ["expected version of workflow 'shop'", "got: ''"]),
        ({"version": 2}, ["expected version of workflow 'shop'", "got: 2"]),
        ({"version": "a b"}, ["expected version of workflow 'shop'", "'a b'"]),
        ({"spread": 1}, ["expected spread of workflow 'shop' to be a bool", "got: 1"]),
        (
            {"retries": 3},
            ["workflow 'shop' has no option 'retries'", "are: timeout, concurrency", "; did you mean retry?"],
        ),
    ],
)
def test_bad_options_of_a_workflow(options: dict[str, Any], parts: list[str]) -> None:
    given: dict[str, Any] = {"name": "shop", **options}
    _refused(lambda: Workflow(**given), *parts)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"name": "a b"}, ["expected the name of a step of workflow 'shop'", "'a b'", "name="]),
        ({"name": "__a"}, ["expected the name of a step of workflow 'shop'", "'__a'", "reserved"]),
        ({"name": 5}, ["expected the name of a step of workflow 'shop'", "got: 5"]),
        ({"retry": 3}, [f"expected retry of {_STEP} to be a Retry", "Retry(attempts=5)", "got: 3"]),
        ({"timeout": "soon"}, [f"expected timeout of {_STEP}", "'soon'"]),
        ({"timeout": True}, [f"expected timeout of {_STEP}", "True"]),
        ({"when": True}, [f"expected the condition (when) of {_STEP} to be a function", "True"]),
        ({"when": two}, [f"expected the condition (when) of {_STEP} to take one parameter", "ctx, more"]),
        ({"when": of_basket}, [f"the condition (when) of {_STEP} takes StepContext[Basket]", "Order"]),
        ({"when": numbers}, [f"the condition (when) of {_STEP} is a generator", "numbers"]),
        ({"rollback_on_failure": undo}, [f"expected rollback_on_failure of {_STEP} to be a bool", "undo"]),
        ({"spread": 1}, [f"expected spread of {_STEP} to be a bool", "got: 1"]),
        ({"retries": 3}, ["a step of workflow 'shop' has no option 'retries'", "name, retry, timeout"]),
        ({"after": "b"}, [f"{_STEP} comes after 'b'", "its steps are: 'a'"]),
        ({"after": "a"}, ["steps of workflow 'shop' wait for each other", "'a' after 'a'"]),
        ({"after": 5}, [f"{_STEP} comes after 5", "5 is no step of workflow 'shop'", "a list of them"]),
        ({"after": [None]}, [f"{_STEP} comes after None"]),
        ({"after": b}, [f"{_STEP} comes after b, but b is no step of workflow 'shop'"]),
        ({"after": {"b"}}, [f"{_STEP} comes after {{'b'}}", "a list of them"]),
    ],
)
def test_bad_options_of_a_step(options: dict[str, Any], parts: list[str]) -> None:
    workflow = _shop()

    def define() -> None:
        workflow.step(**options)(a)
        workflow.check()

    _refused(define, *parts)


@pytest.mark.parametrize(
    ("function", "parts"),
    [
        ("a", ["expected a step of workflow 'shop' to be a function", "'a'"]),
        (5, ["expected a step of workflow 'shop' to be a function", "5"]),
        (Order, ["expected step 'Order' of workflow 'shop' to be a function", "Order"]),
        (lambda ctx: 1, ["expected the name of a step of workflow 'shop'", "'<lambda>'", "name="]),
        (
            two,
            ["expected step 'two' of workflow 'shop' to take one parameter, the context", "are: ctx, more"],
        ),
        (none, ["expected step 'none' of workflow 'shop' to take one parameter", "are: none"]),
        (keyword, ["expected step 'keyword' of workflow 'shop' to take one parameter"]),
        (numbers, ["step 'numbers' of workflow 'shop' is a generator", "return the values"]),
        (stream, ["step 'stream' of workflow 'shop' is a generator"]),
        (awaiting, ["step 'awaiting' of workflow 'shop' returns", "is no `async def`"]),
        (of_basket, ["step 'of_basket' of workflow 'shop' takes StepContext[Basket]", "StepContext[Order]"]),
        (of_event, ["the first parameter of step 'of_event' of workflow 'shop'", "EventContext"]),
        (of_order, ["the first parameter of step 'of_order' of workflow 'shop'", "it gets the context"]),
    ],
)
def test_functions_that_are_no_steps(function: Any, parts: list[str]) -> None:
    workflow = _shop()
    _refused(lambda: workflow.step(function), *parts)
    _refused(lambda: workflow.then(function), *parts)
    assert dict(workflow.steps) == {}


def test_what_is_refused_leaves_the_workflow_as_it_was() -> None:
    workflow = _shop().then(a)
    version = workflow.version
    wrong: Any = of_basket
    _refused(lambda: workflow.step(wrong))
    assert workflow.step(b).after == ("a",)
    assert workflow.version != version
    assert _shop().then(a, b).version == workflow.version


def test_a_name_that_is_taken() -> None:
    taken = ["workflow 'shop' has a step 'a' already", 'name="..."']
    _refused(lambda: _shop().then(a, a), *taken)
    _refused(lambda: _shop().then(a).step(b, name="a"), *taken)
    _refused(lambda: _shop().then(a).flow(Workflow("a", input=Order)), *taken)


def test_a_step_of_another_workflow() -> None:
    made = Workflow("other", input=Order).step(a)
    _refused(lambda: _shop().then(made), "step 'a' of workflow 'other' cannot be a step of workflow 'shop'")
    _refused(
        lambda: _shop().step(b, after=made),
        "step 'b' of workflow 'shop' comes after step 'a' of workflow 'other'",
        "is no step of workflow 'shop'",
    )


def test_a_step_made_for_the_builder_is_judged_when_it_is_added() -> None:
    loose: Any = step(of_basket)
    _refused(lambda: _shop().then(loose), "step 'of_basket' of workflow 'shop' takes StepContext[Basket]")
    assert loose.owner == ""
    assert Workflow("baskets", input=Basket).then(loose).steps["of_basket"] is loose


def test_nothing_to_add() -> None:
    _refused(lambda: _shop().then(), "expected then of workflow 'shop' to get at least one step")
    _refused(lambda: _shop().parallel(), "expected parallel of workflow 'shop' to get at least one step")


def test_circles_over_several_steps() -> None:
    workflow = _shop()
    workflow.step(a, after="c")
    workflow.step(b, after="a")
    workflow.step(untyped, name="c", after="b")
    for judge in (workflow.check, workflow.seal, lambda: workflow.plan):
        _refused(judge, "steps of workflow 'shop' wait for each other", "'a' after 'c' after 'b' after 'a'")


@pytest.mark.parametrize(
    ("function", "parts"),
    [
        (5, ["expected the rollback of step 'a' of workflow 'shop' to be a function", "5"]),
        (a, ["the rollback of step 'a' of workflow 'shop' to take 2 parameters", "the context, the result"]),
        (undo_text, ["the rollback of step 'a' of workflow 'shop' takes str", "the step returns int"]),
        (undo_basket, ["the rollback of step 'a' of workflow 'shop' takes StepContext[Basket]", "Order"]),
    ],
)
def test_bad_rollbacks(function: Any, parts: list[str]) -> None:
    made: Step[Order, int] = _shop().step(a)
    _refused(lambda: made.rollback(function), *parts)
    assert made.undo is None


def test_a_second_rollback_and_one_with_bad_options() -> None:
    made = _shop().step(a)
    made.rollback(undo)
    _refused(lambda: made.rollback(undo), "step 'a' of workflow 'shop' has a rollback already: undo")
    other: Any = _shop().step(a)
    where = "of the rollback of step 'a' of workflow 'shop'"
    _refused(lambda: other.rollback(retry=3), f"expected retry {where}", "got: 3")
    _refused(lambda: other.rollback(timeout="x"), f"expected timeout {where}", "'x'")


def test_a_rollback_of_a_step_that_is_not_there() -> None:
    _refused(lambda: _shop().then(a).find("b").rollback(undo), "'b' is no step of workflow 'shop'", "'a'")


def test_a_rollback_of_a_sub_workflow_belongs_into_it() -> None:
    made: Any = _shop().flow(Workflow("inner", input=Order))
    _refused(
        lambda: made.rollback(undo),
        "step 'inner' of workflow 'shop' runs workflow 'inner'",
        "define rollbacks there",
    )


@pytest.mark.parametrize(
    ("hook", "function", "parts"),
    [
        ("completed", 5, ["expected the completed hook of workflow 'shop' to be a function", "5"]),
        ("completed", two, ["expected the completed hook of workflow 'shop' to take one parameter"]),
        ("completed", of_basket, ["the completed hook of workflow 'shop' takes StepContext[Basket]"]),
        ("completed", text, ["the completed hook of workflow 'shop' returns str", "output is int"]),
        ("failed", a, ["expected the failed hook of workflow 'shop' to take 2 parameters"]),
        ("failed", undo_basket, ["the failed hook of workflow 'shop' takes StepContext[Basket]"]),
        ("failed", failing, ["the second parameter of the failed hook of workflow 'shop'", "str"]),
    ],
)
def test_bad_hooks(hook: str, function: Any, parts: list[str]) -> None:
    workflow = _shop(output=int)
    _refused(lambda: getattr(workflow, hook)(function), *parts)
    assert (workflow.completed_hook, workflow.failed_hook) == (None, None)


def test_second_hooks() -> None:
    workflow = _shop()
    workflow.completed(untyped)
    workflow.failed(two)
    _refused(lambda: workflow.completed(a), "workflow 'shop' has a completed hook already: untyped")
    _refused(lambda: workflow.failed(two), "workflow 'shop' has a failed hook already: two")


def test_a_subclass_may_be_taken_but_not_returned() -> None:
    async def express(ctx: StepContext[Any]) -> Express: ...

    Workflow("shop", input=Express).step(cast("Any", a))  # a context of its base class
    _refused(
        lambda: _shop(output=Order).completed(express), "returns Express, but the workflow's output is Order"
    )


def test_an_output_that_nobody_returns() -> None:
    _refused(_shop(output=int).then(a).check, "workflow 'shop' has the output int, but no completed hook")
    _shop(output=int | None).then(a).check()


def test_types_are_told_as_they_are_written() -> None:
    workflow = Workflow("shop", input=dict[str, int])
    wrong: Any = of_basket
    _refused(
        lambda: workflow.step(wrong),
        "the workflow's input is dict[str, int]; annotate it as StepContext[dict",
    )
    _refused(lambda: _shop(output=None).completed(a), "returns int, but the workflow's output is None")


def test_types_that_cannot_be_sent() -> None:
    _refused(_shop().then(opaque).check, 'result type of "shop.opaque"', "Opaque")
    _refused(Workflow("shop", input=Opaque).check, 'payload type of "shop"', "Opaque")
    _refused(_shop(output=Opaque).check, 'result type of "shop"', "Opaque")


def test_a_return_type_that_cannot_be_found() -> None:
    _refused(
        _shop().then(missing).check,
        "the return type 'Missing' of step 'missing' of workflow 'shop'",
        "top level",
    )


def test_sub_workflows_that_get_another_type() -> None:
    inner = Workflow("inner", input=Basket, output=int)
    _refused(
        lambda: _shop().flow(inner),
        "step 'inner' of workflow 'shop' runs workflow 'inner', whose input is Basket",
        "but the input is Order",
    )
    _refused(lambda: _shop().then(inner), "whose input is Basket, but the input is Order")
    _refused(lambda: _shop().flow(inner, input=a), "but what its `input` returns is int")
    _refused(
        lambda: _shop().flow(inner, input=cast("Any", two)),
        "expected the input of step 'inner' of workflow 'shop' to take",
    )
    _refused(
        lambda: _shop().flow(cast("Any", a)),
        "expected a step of workflow 'shop' to be a Workflow, a durable function or a StateMachine, got: ",
    )


def test_a_bad_sub_workflow_is_found_by_the_check_of_the_outer_one() -> None:
    inner = Workflow("inner", input=Order).then(a)
    inner.step(b, after="x")
    _refused(_shop().then(inner).check, "step 'b' of workflow 'inner' comes after 'x'")


def test_workflows_that_run_each_other_without_end() -> None:
    one, other = Workflow("one"), Workflow("other")
    one.flow(other)
    other.flow(one)
    _refused(one.check, "workflow 'one' would run itself without end: 'one' runs 'other' runs 'one'", "when=")
    _refused(Workflow("outer").then(one).check, "would run itself without end")


def test_a_step_after_registration_comes_too_late() -> None:
    workflow = _shop().then(a)
    workflow.seal()
    _refused(lambda: workflow.then(b), "step 'b' of workflow 'shop' comes too late", "is registered already")
    _refused(lambda: workflow.completed(untyped), "the completed hook of workflow 'shop' comes too late")
    _refused(lambda: workflow.failed(two), "the failed hook of workflow 'shop' comes too late")


def test_workflows_that_nest_so_deep_that_ids_become_too_long() -> None:
    workflow = Workflow("w" * 80).then(a)
    for level in range(5):
        outer = Workflow(f"{level}" * 80)
        outer.flow(workflow, name=f"step-{level}")
        workflow = outer
        if level < 4:
            workflow.check()
    _refused(
        workflow.check,
        f"workflow '{'4' * 80}' nests too deep",
        "step 'step-4' / 'step-3' / 'step-2' / 'step-1' / 'step-0' / 'a'",
        "more than 512",
    )
    outer = Workflow("outer")
    outer.flow(workflow, when=lambda _: False)
    outer._check_own()  # pyright: ignore[reportPrivateUsage]  (it may be skipped)
