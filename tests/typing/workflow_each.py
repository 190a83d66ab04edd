# pyright: reportUnnecessaryTypeIgnoreComment=true
"""The types of steps that run for each item of a list; nothing here is run."""

from __future__ import annotations

from typing import Any, assert_type

from eventbus import Retry
from workflows import StepContext, StepFailed, Workflow

graph = Workflow("graph", input=list[str], output=int, retry=Retry(attempts=1))


@graph.step
async def find(ctx: StepContext[list[str]]) -> list[str]:
    return ctx.input


@graph.each(over=find, at_once=3, retry=Retry(3), timeout="1s", when=lambda ctx: bool(ctx.input))
async def convert(ctx: StepContext[list[str]], item: str) -> int:
    return len(item)


@convert.rollback(timeout="1s")
async def undo(ctx: StepContext[list[str]], item: str, result: int) -> None: ...


@graph.each(over=lambda ctx: ctx.input, on_failure="ignore")
def measure(ctx: StepContext[list[str]], item: str) -> float:
    return float(len(item))


@measure.rollback
def forget(ctx: StepContext[list[str]], item: str, result: float) -> None: ...


@graph.completed
async def done(ctx: StepContext[list[str]]) -> int:
    assert_type(ctx.result(convert), list[int])
    assert_type(ctx.result(measure), list[float | StepFailed])
    return sum(ctx.result(convert))


def refused(ctx: StepContext[list[str]], item: Any) -> None: ...


graph.each(  # type: ignore[call-overload]
    over="find",
    on_failure="skip",  # pyright: ignore[reportCallIssue, reportArgumentType]
)(refused)
graph.each(over="find", spread=True)(refused)
graph.each(  # type: ignore[call-overload]
    over="find",
    pool="process",  # pyright: ignore[reportCallIssue]
)(refused)
graph.each(at_once=3)(refused)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
