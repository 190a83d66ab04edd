"""What a pipeline refuses when it is made, and what its workflow is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from eventbus import DefinitionError, EventProvider
from workflows import Pipeline, PipelineContext, Workflow, WorkflowProvider


class Given(msgspec.Struct, rename="camel"):
    row_count: int
    note: str = ""


class Rows(msgspec.Struct):
    rows: list[str]


class Total(msgspec.Struct):
    total: int


class Unsure(TypedDict, total=False):
    rows: list[str]


class Model(pydantic.BaseModel):
    rows: list[str]
    total: int = 0


class Pair(NamedTuple):
    a: int


class NeedsTotal(msgspec.Struct):
    total: int


class TotalText(msgspec.Struct):
    total: str


class MayHaveTotal(msgspec.Struct):
    total: int = 0


async def rows(given: Given) -> Rows:
    return Rows(["a"] * given.row_count)


async def count(given: Rows) -> Total:
    return Total(len(given.rows))


async def count_too(given: Rows) -> Total:
    return Total(len(given.rows))


async def use(given: NeedsTotal) -> None:
    """Take the total."""


async def use_text(given: TotalText) -> None:
    """Take the total as text."""


async def may_use(given: MayHaveTotal) -> None:
    """Take the total if there is one."""


async def plain(given: int) -> None:
    """Take what is no object."""


async def gives_plain() -> int:
    return 1


async def gives_pair() -> Pair:
    return Pair(1)


async def takes_three(one: Any, two: Any, three: Any) -> None:
    """Take too much."""


async def takes_keyword(given: Any, *, more: int) -> None:
    """Take what nobody gives."""


def _pipeline(**options: Any) -> Any:
    return Pipeline[Any, Any]("sync", input=Given, **options)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: _pipeline().then(use),
            "takes the field 'total', which neither the input nor a step before it has",
        ),
        (lambda: _pipeline().then(count), "there are: rowCount, note"),
        (
            lambda: _pipeline().then(rows).then(count, when=lambda ctx: True).then(use),
            "step 'count' gives, and that may be skipped or leave it out; give the field a default",
        ),
        (
            lambda: _pipeline().then(rows).then(count).then(use_text),
            "'total' as str, but step 'count' gives int",
        ),
        (
            lambda: _pipeline().then(rows).parallel(count, count_too),
            "'count' and 'count_too' of pipeline 'sync' run side by side, and both give the field 'total'",
        ),
        (lambda: _pipeline().then(plain), "what step 'plain' of pipeline 'sync' takes is int"),
        (lambda: _pipeline().then(gives_plain), "what step 'gives_plain' of pipeline 'sync' returns is int"),
        (lambda: _pipeline().then(gives_pair), "returns is Pair"),
        (lambda: Pipeline("sync", input=int), "the input of pipeline 'sync' is int"),
        (lambda: _pipeline().then(takes_three), "at most the merged result and the context"),
        (lambda: _pipeline().then(takes_keyword), "at most the merged result and the context"),
        (lambda: _pipeline().parallel(rows), "at least two steps, got: 1; use `then` for one"),
        (lambda: _pipeline().parallel(rows, use, when=lambda ctx: True), "can have no condition"),
        (lambda: _pipeline().then(rows, pool="process"), "cannot run in a process"),
        (lambda: _pipeline().then(rows, spred=True), "has no option 'spred'"),
        (lambda: _pipeline().then(rows).then(rows), "'rows'"),
        (lambda: _pipeline().then(Workflow("other")), "expected a function as a step"),
        (lambda: _pipeline().then("rows"), "to be a function, got: 'rows'"),
        (lambda: _pipeline().returns(), "has no steps"),
        (
            lambda: _pipeline(output=Total).then(rows).returns(),
            "the output of pipeline 'sync' takes the field 'total'",
        ),
        (lambda: _pipeline(output=Total).then(rows).returns(use), "takes the field 'total'"),
        (lambda: _pipeline(output=Rows).then(rows).then(count).returns(count), "Total"),
        (lambda: _pipeline(progress=Total), "cannot be made without arguments"),
        (lambda: _pipeline(progress=int), "the progress of pipeline 'sync' is int"),
    ],
)
def test_a_mistake_is_told_where_it_is_made(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(DefinitionError) as raised:
        make()
    assert said in str(raised.value)


@pytest.mark.parametrize("method", ["then", "parallel", "returns", "before_each", "after_each", "on_error"])
def test_a_pipeline_that_is_done_takes_nothing_more(method: str) -> None:
    pipeline = _pipeline().then(rows)
    pipeline.returns()
    with pytest.raises(DefinitionError, match=f"call {method} before it"):
        getattr(pipeline, method)(*[count, use] if method == "parallel" else [count])


def test_a_field_that_may_be_missing_needs_a_default_alone() -> None:
    _pipeline().then(rows).then(count, when=lambda ctx: True).then(may_use).returns()


def test_a_field_that_the_input_has_too_is_there_when_its_step_is_skipped() -> None:
    Pipeline("sync", input=Model).then(count, when=lambda ctx: False).then(use).returns()


@pytest.mark.parametrize("open_type", [dict[str, Any], Any, Unsure])
def test_what_no_type_tells_is_not_refused(open_type: Any) -> None:
    async def gives(given: Any) -> Any:
        return given

    gives.__annotations__["return"] = open_type
    pipeline = Pipeline("sync", input=dict[str, Any]).then(gives)
    pipeline.then(use).then(count).returns()


def test_a_field_that_the_input_may_leave_out_is_not_sure() -> None:
    class Maybe(TypedDict):
        total: NotRequired[int]

    with pytest.raises(DefinitionError, match="may be skipped or leave it out"):
        Pipeline("sync", input=Maybe).then(use)


async def test_a_pipeline_without_returns_is_no_workflow(make_provider: Callable[..., EventProvider]) -> None:
    flows = WorkflowProvider(make_provider())
    with pytest.raises(DefinitionError):
        flows.register(_pipeline().then(rows))


def test_its_workflow_has_the_steps_in_their_order() -> None:
    async def left(ctx: PipelineContext[None]) -> None: ...
    async def right() -> None: ...

    workflow = _pipeline().then(rows).parallel(left, right).then(count, name="last").returns()
    assert {name: step.after for name, step in workflow.steps.items()} == {
        "rows": (),
        "left": ("rows",),
        "right": ("rows",),
        "last": ("left", "right"),
    }
    assert workflow.input is Given
