"""Definitions: the order of steps, the defaults, and the ways to refer to a step."""

from __future__ import annotations

import functools
from typing import Annotated, Any, NoReturn, Protocol, TypeVar, cast

import msgspec
import pytest

from eventbus import DefinitionError, Retry
from workflows.definition.context import StepContext
from workflows.definition.step import AsyncStep, Step, SyncStep, step
from workflows.definition.workflow import Workflow


class Order(msgspec.Struct):
    total: int


class Reservation(msgspec.Struct):
    number: int


_T = TypeVar("_T")
Price = Annotated[int, msgspec.Meta(ge=0)]
_CTX: Any = object()


async def a(ctx: StepContext[Order]) -> Reservation:
    return Reservation(1)


async def b(ctx: StepContext[Order]) -> Price:
    return 2


def c(ctx: StepContext[Order]) -> list[str]:
    return ["c"]


async def d(ctx: StepContext[Order]) -> None: ...


async def e(  # noqa: ANN201
    ctx,  # noqa: ANN001  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]
    extra=5,  # noqa: ANN001  # pyright: ignore[reportMissingParameterType]
):
    return extra


async def undo(ctx: StepContext[Order], result: Reservation) -> None: ...


def _shop(**options: Any) -> Workflow[Order, Any]:
    return Workflow("shop", input=Order, **options)


def _edges(workflow: Workflow[Any, Any]) -> dict[str, tuple[str, ...]]:
    return {name: step.after for name, step in workflow.steps.items()}


def test_what_is_not_given_has_its_default() -> None:
    workflow = Workflow("shop")
    assert (workflow.name, workflow.input, workflow.output) == ("shop", Any, Any)
    assert (workflow.retry, workflow.timeout, workflow.errors) == (Retry(), None, ())
    assert (workflow.completed_hook, workflow.failed_hook, dict(workflow.steps)) == (None, None, {})
    made = workflow.step(a)
    assert (made.name, made.after, made.retry, made.timeout, made.when) == ("a", (), None, None, None)
    assert (made.rollback_on_failure, made.undo, made.workflow, made.input) == (False, None, None, None)
    assert (repr(workflow), repr(made)) == ("Workflow('shop')", "<Step 'a' of 'shop'>")


def test_what_is_given_is_kept_in_seconds_and_tuples() -> None:
    workflow = _shop(timeout="5 minutes", retry=Retry(attempts=1), errors=[ValueError], version="v1")
    assert (workflow.timeout, workflow.retry, workflow.errors) == (300.0, Retry(attempts=1), (ValueError,))
    made = workflow.step(a, name="first", retry=Retry(attempts=5), timeout="30s", rollback_on_failure=True)
    assert (made.name, made.retry, made.timeout) == ("first", Retry(attempts=5), 30.0)
    assert made.rollback_on_failure
    assert Workflow("x", timeout=0).timeout is None
    assert step(a, timeout=0).timeout is None


def test_a_step_without_after_follows_the_one_before_it() -> None:
    workflow = _shop()
    workflow.step(a)
    workflow.step()(b)
    workflow.step(c, name="third")
    assert _edges(workflow) == {"a": (), "b": ("a",), "third": ("b",)}


def test_after_is_a_step_a_name_a_function_a_list_or_nothing() -> None:
    workflow = _shop()
    first = workflow.step(a)
    workflow.step(b, after=None)
    workflow.step(c, after=[])
    workflow.step(d, after=[first, "b", c, "a"])
    workflow.step(e, after=b)
    workflow.step(e, name="f", after=("d", "later"))
    workflow.step(e, name="later", after=first)
    assert _edges(workflow) == {
        "a": (),
        "b": (),
        "c": (),
        "d": ("a", "b", "c"),
        "e": ("b",),
        "f": ("d", "later"),
        "later": ("a",),
    }
    workflow.check()
    assert [node.step for node in workflow.plan.nodes][-1] == "f"


def test_the_builder_makes_the_same_graph_as_decorators() -> None:
    built = _shop().then(a, b).parallel(c, d).then(e)
    assert _edges(built) == {"a": (), "b": ("a",), "c": ("b",), "d": ("b",), "e": ("c", "d")}
    decorated = _shop()
    decorated.step()(a)
    decorated.step()(b)
    decorated.step(after=b)(c)
    decorated.step(after=b)(d)
    decorated.step(after=[c, d])(e)
    assert _edges(decorated) == _edges(built)
    assert decorated.version == built.version
    assert (built.plan.last, built.plan.ancestors("e")) == (("e",), ["c", "d", "b", "a"])


def test_a_decorated_step_follows_the_whole_parallel_group() -> None:
    workflow = _shop().parallel(a, b)
    made = workflow.step(c)
    assert made.after == ("a", "b")
    assert _edges(workflow.parallel(d).then(e))["e"] == ("d",)


def test_the_builder_takes_steps_with_options_and_workflows() -> None:
    async def check(ctx: StepContext[Any]) -> None: ...

    inner = Workflow("inner", input=Order, output=str).then(check)
    made = step(a, name="first", retry=Retry(attempts=7), timeout=3, rollback=undo)
    workflow = _shop().then(made, inner)
    assert workflow.steps["first"] is made
    assert (made.owner, made.undo, made.retry, made.timeout) == ("shop", undo, Retry(attempts=7), 3.0)
    assert (workflow.steps["inner"].workflow, workflow.steps["inner"].result) == (inner, str)
    assert workflow.steps["inner"].after == ("first",)


def test_a_step_stays_a_function_that_can_be_called() -> None:
    made, plain = step(a), step(c)
    assert isinstance(made, AsyncStep)
    assert isinstance(plain, SyncStep)
    assert (made.is_async, plain.is_async, plain(_CTX)) == (True, False, ["c"])
    coroutine = made(_CTX)
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    assert ended.value.value == Reservation(1)


class _Callable:
    async def __call__(self, ctx: StepContext[Order]) -> int:
        return 1

    def method(self, ctx: StepContext[Order]) -> str:
        return ""


@pytest.mark.parametrize(
    ("function", "name", "is_async", "result"),
    [
        (a, "a", True, Reservation),
        (b, "b", True, Price),
        (c, "c", False, list[str]),
        (d, "d", True, type(None)),
        (e, "e", True, Any),
        (functools.partial(e, extra=6), "e", True, Any),
        (_Callable(), "given", True, int),
        (_Callable().method, "method", False, str),
        (lambda ctx: ctx, "given", False, Any),
    ],
)
def test_name_kind_and_result_follow_from_the_function(
    function: Any, name: str, is_async: bool, result: Any
) -> None:
    made = Workflow("shop").step(function, name="given" if name == "given" else None)
    assert (made.name, made.is_async, made.result) == (name, is_async, result)


def test_a_step_that_never_returns_has_a_result_of_any_type() -> None:
    def fail(ctx: StepContext[Order]) -> NoReturn:
        raise ValueError

    assert _shop().step(fail).result is Any


def test_the_rollback_belongs_to_its_step_and_stays_a_function() -> None:
    workflow = _shop()
    first = workflow.step(a)
    assert first.rollback(undo) is undo
    assert (first.undo, first.undo_is_async, first.undo_retry, first.undo_timeout) == (undo, True, None, None)

    @workflow.step(c).rollback(retry=Retry(attempts=9), timeout="1m")
    def back(ctx: StepContext[Order], result: list[str]) -> None: ...

    second = workflow.steps["c"]
    assert (second.undo, second.undo_is_async) == (back, False)
    assert (second.undo_retry, second.undo_timeout) == (Retry(attempts=9), 60.0)


def test_hooks_stay_functions() -> None:
    workflow = Workflow("shop", input=Order, output=str)

    @workflow.completed
    def done(ctx: StepContext[Order]) -> str:
        return "done"

    @workflow.failed
    async def report(ctx: StepContext[Order], error: Exception) -> None: ...

    assert workflow.completed_hook == (done, False)
    assert workflow.failed_hook == (report, True)
    assert done(_CTX) == "done"


def test_a_sub_workflow_is_a_step_with_its_output() -> None:
    inner = Workflow("pay", input=int, output=Reservation)
    workflow = _shop().then(a)

    def total(ctx: StepContext[Order]) -> int:
        return ctx.input.total

    made = workflow.flow(inner, when=lambda ctx: True, input=total)
    assert (made.name, made.after, made.workflow, made.input) == ("pay", ("a",), inner, total)
    assert (made.result, made.retry, made.timeout) == (Reservation, None, None)
    named = workflow.flow(inner, name="again", after=None, input=total)
    assert (named.name, named.after) == ("again", ())
    assert workflow.nested() == [inner]
    with pytest.raises(
        DefinitionError, match="step 'pay' of workflow 'shop' runs workflow 'pay' and cannot be"
    ):
        made(_CTX)


def test_steps_are_found_by_themselves_their_name_function_or_workflow() -> None:
    inner = Workflow("inner")
    workflow = _shop().then(a, step(b, name="second"), inner)
    first = workflow.steps["a"]
    assert workflow.find(first) is workflow.find("a") is workflow.find(a) is first
    assert workflow.find(b).name == "second"
    assert workflow.find(inner).name == "inner"
    other: Step[Any, Any] = step(a)
    for unknown, told in (
        (other, "step 'a'"),
        (c, "c"),
        ("x", "'x'"),
        (_shop(), r"Workflow\('shop'\)"),
        (5, "5"),
    ):
        with pytest.raises(
            DefinitionError, match=rf"^{told} is no step of workflow 'shop'; .*: 'a', 'second', 'inner'$"
        ):
            workflow.find(unknown)  # pyright: ignore[reportArgumentType]


def test_a_function_of_two_steps_names_neither() -> None:
    workflow = _shop().then(a, step(a, name="again"))
    with pytest.raises(DefinitionError, match=r"a is in several steps of workflow 'shop' \('a', 'again'\)"):
        workflow.find(a)
    with pytest.raises(
        DefinitionError, match="step 'b' of workflow 'shop' comes after a, but a is in several"
    ):
        workflow.step(b, after=a)


def test_the_version_follows_from_names_and_edges() -> None:
    base = _shop().then(a, b)
    assert len(base.version) == 12
    assert base.version == Workflow("other").then(a, step(d, name="b")).version
    others = [_shop(), _shop().then(a), _shop().then(b, a), _shop().parallel(a, b), _shop().then(a, b, c)]
    joined = _shop().then(a, b)
    joined.step(c, after=[a, b])
    assert len({base.version, joined.version, *(each.version for each in others)}) == 7
    turned = _shop()
    turned.step(b, after="a")
    turned.step(a, after=None)
    assert turned.version == base.version  # the order of definition does not matter
    assert _shop(version="2.0").then(a).version == "2.0"


def test_the_version_and_the_plan_follow_what_is_added() -> None:
    workflow = _shop().then(a)
    before = (workflow.version, workflow.plan.last)
    workflow.then(b)
    assert (workflow.version, workflow.plan.last) != before
    assert workflow.plan.last == ("b",)


def test_nested_workflows_are_found_at_every_depth_and_once() -> None:
    deep = Workflow("deep")
    one, other = Workflow("one").then(deep), Workflow("other").then(deep)
    assert set(map(repr, _shop().then(one, other).nested())) == set(map(repr, [one, other, deep]))
    assert len(_shop().then(one, other).nested()) == 3


def test_a_workflow_may_run_itself_under_a_condition() -> None:
    workflow = _shop()
    workflow.flow(workflow, name="again", when=lambda ctx: ctx.input.total > 0)
    workflow.check()
    assert workflow.nested() == []


def test_wide_annotations_are_fine() -> None:
    workflow = Workflow("shop", input=Order, output=float)

    class Base:
        async def run(self, ctx: StepContext[Any]) -> int | None: ...
        async def wide(self, ctx: StepContext[Order | None]) -> bool: ...
        async def no_argument(
            self,
            ctx: StepContext,  # pyright: ignore[reportMissingTypeArgument, reportUnknownParameterType]
        ) -> int: ...

    async def back(ctx: object, result: int | str | None) -> None: ...
    async def done(ctx: Any) -> int: ...
    async def broken(ctx: StepContext[Any], error: ValueError | RuntimeError) -> None: ...

    workflow.step(Base().run).rollback(back)
    workflow.step(cast("Any", Base().wide), after=None).rollback(lambda ctx, *args: None)
    workflow.step(Base().no_argument)
    workflow.completed(done)
    workflow.failed(broken)
    workflow.check()


class _WithInput(Protocol):
    @property
    def input(self) -> Order: ...


class _OwnContext(StepContext[Order]):
    """A context of a user's own, for a stand-in in tests."""


def test_what_annotations_leave_open_is_not_refused() -> None:
    Local = StepContext[Order]  # noqa: N806  (a name that cannot be found from the module)

    async def local(
        ctx: Local,  # pyright: ignore[reportUnknownParameterType, reportInvalidTypeForm]
    ) -> int: ...
    async def protocol(ctx: _WithInput) -> int: ...
    async def own(ctx: _OwnContext) -> int: ...
    async def generic(ctx: StepContext[_T]) -> int: ...  # pyright: ignore[reportInvalidTypeVarUse]
    async def either(ctx: StepContext[Order] | None) -> int: ...

    workflow = _shop()
    for function in (local, protocol, own, generic, either, max):  # the last one tells nothing of itself
        workflow.step(cast("Any", function))
    workflow.check()
    assert list(workflow.steps)[-1] == "max"


def test_a_declaration_without_steps_needs_no_hook() -> None:
    Workflow("shop", input=Order, output=Reservation).check()  # for a process that executes only


def test_a_thousand_steps_are_defined_and_checked() -> None:
    workflow = _shop().then(*(step(a, name=f"s{i}") for i in range(1000)))
    workflow.check()
    assert workflow.plan.last == ("s999",)


def test_what_is_retried_on_is_some_of_the_declared_errors() -> None:
    workflow = Workflow("w", errors=[ValueError, KeyError], retry_on=[KeyError])
    assert (workflow.errors, workflow.retry_on) == ((ValueError, KeyError), (KeyError,))
    with pytest.raises(
        DefinitionError, match="expected retry_on of workflow 'w' to be some of its errors, got: KeyError"
    ):
        Workflow("w", errors=[ValueError], retry_on=[KeyError])
    with pytest.raises(
        DefinitionError, match="expected retry_on of workflow 'w' to be a list of exception classes"
    ):
        Workflow("w", errors=[ValueError], retry_on=["ValueError"])  # type: ignore[list-item]


def test_a_retry_rule_that_contradicts_the_declared_errors_is_refused() -> None:
    with pytest.raises(
        DefinitionError, match=r"the retry of workflow 'w' has .*KeyError.* in only, but it is"
    ):
        Workflow("w", errors=[LookupError], retry=Retry(only=(KeyError,)))
    with pytest.raises(
        DefinitionError, match=r"the retry of workflow 'w' has .*KeyError.* in never, but retry"
    ):
        Workflow("w", errors=[KeyError], retry_on=[KeyError], retry=Retry(never=(KeyError,)))
    workflow = Workflow("w", errors=[KeyError, ValueError], retry_on=[ValueError])
    workflow.step(retry=Retry(only=(ValueError, OSError)), name="fits")(_fits)
    workflow.check()
    workflow.step(retry=Retry(only=(KeyError,)), name="contradicts")(_fits)
    with pytest.raises(
        DefinitionError, match=r"the retry of step 'contradicts' of workflow 'w' has .*KeyError.* in only"
    ):
        workflow.check()


async def _fits(_: StepContext[Any]) -> None: ...
