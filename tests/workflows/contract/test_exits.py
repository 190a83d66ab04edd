"""Functions of flows that exit: `sys.exit()` or a KeyboardInterrupt fails the attempt alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
from drivers.runners import Runner

from eventbus import EventProvider, Retry
from workflows import (
    END,
    FlowContext,
    MachineContext,
    StateMachine,
    StepError,
    WorkflowProvider,
    durable,
    task,
    transition,
)
from workflows.definition.context import StepContext
from workflows.definition.workflow import Workflow
from workflows.errors import FlowError

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]

ONCE = Retry(attempts=1)

# The tracebacks of all are long to print.
pytestmark = [pytest.mark.usefixtures("logs"), pytest.mark.virtual]


EXITS = [SystemExit(0), KeyboardInterrupt()]
every_exit = pytest.mark.parametrize("error", EXITS, ids=repr)


def kind(error: BaseException) -> str:
    return type(error).__name__


@pytest.mark.parametrize(
    "where",
    [
        "step",
        "thread step",
        "when",
        "each",
        "input",
        "middleware",
        "before_each",
        "after_each",
        "data",
        "completed",
    ],
)
@every_exit
async def test_the_flow_fails_with_it_and_the_next_one_runs(
    runner: Runner, error: BaseException, where: str
) -> None:
    workflow: Workflow[str, Any] = Workflow("exits", input=str, retry=ONCE)
    inner: Workflow[str, Any] = Workflow("inner", input=str, retry=ONCE)

    def leave(ctx: StepContext[str], *more: Any) -> Any:
        if ctx.input == "leave":
            raise error
        return [1] if where == "each" else ctx.input

    async def leave_async(ctx: StepContext[str], *more: Any) -> Any:
        return leave(ctx)

    async def leave_around(value: Any, ctx: Any, call: Any) -> Any:
        if value == "leave":
            raise error
        return await call(value)

    async def stay(ctx: StepContext[str]) -> str:
        return "stays"

    inner.step(name="within")(stay)
    if where == "each":

        @workflow.each(over=leave_async)
        async def one(ctx: StepContext[str], item: int) -> int:
            return item

    elif where == "input":
        workflow.flow(inner, input=leave)
    elif where == "when":
        workflow.step(name="one", when=leave)(stay)
    else:
        function: Any = {"step": leave_async, "thread step": leave}.get(where, stay)
        workflow.step(name="one")(function)
    if where in ("before_each", "after_each", "data", "completed"):
        getattr(workflow, where)(leave)
    options = {"middleware": [leave_around]} if where == "middleware" else {}
    for _ in range(2):
        with pytest.raises(FlowError, match=kind(error)):
            await (await runner.start(workflow, "leave", **options)).result()
    await (await runner.start(workflow, "stay", **options)).result()


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "thread"])
@every_exit
async def test_rollbacks_and_failed_hooks_that_exit_are_done_with(
    runner: Runner, error: BaseException, is_async: bool
) -> None:
    workflow: Workflow[Any, Any] = Workflow("exits", retry=ONCE)
    called: list[str] = []

    @workflow.step()
    async def first(ctx: StepContext[Any]) -> None:
        """Has a rollback."""

    @workflow.step(after=first)
    async def second(ctx: StepContext[Any]) -> None:
        raise ValueError("no luck")

    def note(what: str) -> None:
        called.append(what)
        raise error

    if is_async:

        @first.rollback(retry=Retry(2, delay=0))
        async def undo(ctx: StepContext[Any], result: None) -> None:
            note("undo")

        @workflow.failed
        async def failed(ctx: StepContext[Any], raised: FlowError) -> None:
            note("failed")

    else:

        @first.rollback(retry=Retry(2, delay=0))
        def undo_in_thread(ctx: StepContext[Any], result: None) -> None:
            note("undo")

        @workflow.failed
        def failed_in_thread(ctx: StepContext[Any], raised: FlowError) -> None:
            note("failed")

    for times in (1, 2):
        handle = await runner.start(workflow, None)
        with pytest.raises(StepError, match="no luck"):
            await handle.result()
        assert called == ["undo", "undo", "failed"] * times
        assert (await handle.report()).rollback == "incomplete"


@every_exit
async def test_a_strategy_that_exits_is_the_final_error(runner: Runner, error: BaseException) -> None:
    def strategy(attempt: int, raised: BaseException) -> float:
        raise error

    workflow: Workflow[Any, Any] = Workflow("exits", retry=Retry(3, backoff=strategy))

    @workflow.step()
    async def one(ctx: StepContext[Any]) -> None:
        raise ValueError("no luck")

    for _ in range(2):
        with pytest.raises(StepError, match=kind(error)):
            await (await runner.start(workflow, None)).result()


leaving: list[BaseException] = []


def leave_now(item: Any = None) -> Any:
    raise leaving[0]


@task(retry=ONCE)
async def on_loop() -> None:
    leave_now()


@task(retry=ONCE)
def in_thread() -> None:
    leave_now()


@task(retry=ONCE)
def of_map(item: int) -> int:
    return leave_now(item)


@task
async def owed() -> None:
    """Has a rollback that exits."""


@owed.rollback(retry=ONCE)
def undo_owed(result: None) -> None:
    leave_now()


@durable("exits-program")
async def program(ctx: FlowContext[str]) -> str:
    if ctx.input == "task":
        await ctx.step(on_loop)
    elif ctx.input == "thread task":
        await ctx.step(in_thread)
    elif ctx.input == "map":
        await ctx.map(of_map, [1, 2])
    elif ctx.input == "local map":
        await ctx.map(of_map, [1, 2], local=True)
    elif ctx.input == "branch":
        await ctx.gather(branch(ctx), branch(ctx))
    elif ctx.input == "rollback":
        await ctx.step(owed)
        raise ValueError("no luck")
    elif ctx.input == "code":
        leave_now()
    return "stays"


async def branch(ctx: FlowContext[str]) -> None:
    await ctx.sleep(0)
    leave_now()


@pytest.mark.parametrize("where", ["code", "task", "thread task", "map", "local map", "branch", "rollback"])
@every_exit
async def test_durable_functions_fail_with_it(
    make_provider: MakeProvider, stack: AsyncExitStack, error: BaseException, where: str
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(program)
    await stack.enter_async_context(provider)
    await stack.enter_async_context(provider.worker())
    leaving[:] = [error]
    for _ in range(2):
        with pytest.raises(FlowError, match="no luck" if where == "rollback" else kind(error)):
            await (await flows.execute(program, where)).result(timeout=240)
    assert await (await flows.execute(program, "stay")).result(timeout=240) == "stays"


class Order(msgspec.Struct):
    where: str = ""


def guard(ctx: MachineContext[Order]) -> bool:
    return leave_now() if ctx.state.where == "guard" else True


async def async_guard(ctx: MachineContext[Order]) -> bool:
    return leave_now() if ctx.state.where == "async guard" else True


class Machine(StateMachine[Order], name="exits", start="a"):
    @transition("a", to="b", retry=ONCE, when=guard)
    async def first(self, ctx: MachineContext[Order]) -> None:
        if ctx.state.where == "transition":
            leave_now()

    @transition("b", to=END, retry=ONCE, when=async_guard)
    async def last(self, ctx: MachineContext[Order]) -> str:
        return "stays"


@pytest.mark.parametrize("where", ["guard", "async guard", "transition"])
@every_exit
async def test_machines_wait_with_it(
    make_provider: MakeProvider, stack: AsyncExitStack, until: Until, error: BaseException, where: str
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(Machine)
    await stack.enter_async_context(provider)
    await stack.enter_async_context(provider.worker())
    leaving[:] = [error]
    handle = await flows.execute(Machine, Order(where))

    async def has_failed() -> bool:
        return kind(error) in (await handle.report()).error

    await until(has_failed, "it stands with the error")
    assert await (await flows.execute(Machine, Order())).result(timeout=240) == "stays"
