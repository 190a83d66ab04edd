# pyright: reportUnnecessaryTypeIgnoreComment=true
"""The types of steps that wait, of hooks around steps, and of failures that are ignored; nothing here
is run.
"""

from __future__ import annotations

from typing import Any, assert_type

from eventbus import Retry
from workflows import FlowHandle, Signal, Step, StepContext, Workflow
from workflows.testing import run_inline, start_inline

approval = Signal("approval", int)
graph = Workflow("graph", input=str, output=bool, retry=Retry(attempts=1))

by_signal = graph.wait(approval, timeout="3 days", on_failure="ignore")
by_name = graph.wait("later", str, name="other", after=by_signal, when=lambda ctx: ctx.input != "")
untyped = graph.wait("anything")
nap = graph.sleep("1 day", name="nap", after=[by_signal, by_name], when=lambda ctx: bool(ctx.input))

assert_type(by_signal, Step[str, int])
assert_type(by_name, Step[str, str])
assert_type(untyped, Step[str, Any])
assert_type(nap, Step[str, None])

graph.wait(  # type: ignore[call-overload]
    approval,
    on_failure="skip",  # pyright: ignore[reportCallIssue, reportArgumentType]
)
graph.wait("later", str, retry=Retry(3))  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
graph.sleep("1 day", timeout="1s")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@graph.step(on_failure="ignore")
async def act(ctx: StepContext[str]) -> int:
    assert_type(ctx.result(by_signal), int)
    assert_type(ctx.result(by_signal, default=None), int | None)
    assert_type(ctx.result(nap), None)
    assert_type(ctx.data, Any)
    return ctx.result(by_signal)


@graph.before_each
async def before(ctx: StepContext[str]) -> None: ...


@graph.after_each
def after(ctx: StepContext[str], result: Any) -> None: ...


@graph.on_error
async def on_error(ctx: StepContext[str], error: Exception) -> bool:
    return isinstance(error, OSError)


@graph.data
async def make_data(ctx: StepContext[str]) -> dict[str, int]:
    return {}


async def of_number(ctx: StepContext[int]) -> None: ...


graph.before_each(of_number)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
inner = Workflow("inner", input=str, output=int)
assert_type(graph.flow(inner, on_failure="ignore"), Step[str, int])


async def signals(handle: FlowHandle[bool]) -> None:
    await handle.signal(approval, 7)
    await handle.signal(  # type: ignore[misc]  # pyright: ignore[reportCallIssue]
        approval,
        "7",  # pyright: ignore[reportArgumentType]
    )
    assert_type(await run_inline(graph, "a", signals=[(approval, 7)]), bool)
    await start_inline(graph, "a").signal(approval, 7)
