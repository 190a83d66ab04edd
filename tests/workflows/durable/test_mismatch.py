"""A function that does something else than it recorded: it is refused, before anything new begins."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from drivers.recorded import RecordedFlow

from eventbus import DefinitionError
from workflows import Durable, FlowContext, NonDeterminismError, Signal, durable
from workflows.functions.endings import Asleep, Completed, Diverged

Code = Callable[[FlowContext[None]], Awaitable[Any]]

go = Signal("go", str)
did: list[str] = []


@pytest.fixture(autouse=True)
def nothing_did() -> None:
    did.clear()


async def a() -> str:
    did.append("a")
    return "a"


async def b() -> str:
    did.append("b")
    return "b"


async def c() -> str:
    did.append("c")
    return "c"


def made(code: Code) -> Durable[None, Any]:
    @durable("changed")
    async def function(ctx: FlowContext[None]) -> Any:
        return await code(ctx)

    return function


async def both(ctx: FlowContext[None]) -> None:
    await ctx.gather(one(ctx), one(ctx))


async def one(ctx: FlowContext[None]) -> None:
    await ctx.step(a)


async def before(ctx: FlowContext[None]) -> None:
    await ctx.step(a)
    await ctx.step(b)
    await both(ctx)
    await ctx.wait_for(go)


async def renamed(ctx: FlowContext[None]) -> None:
    await ctx.step(c)


async def removed(ctx: FlowContext[None]) -> None:
    await ctx.step(a)
    await both(ctx)
    await ctx.wait_for(go)


async def added(ctx: FlowContext[None]) -> None:
    await ctx.step(a)
    await ctx.step(c)
    await ctx.step(b)


async def reordered(ctx: FlowContext[None]) -> None:
    await ctx.step(b)


async def other_kind(ctx: FlowContext[None]) -> None:
    await ctx.step(a)
    await ctx.sleep(5)


async def shorter(ctx: FlowContext[None]) -> None:
    await ctx.step(a)


async def no_branches(ctx: FlowContext[None]) -> None:
    await ctx.step(a)
    await ctx.step(b)
    await ctx.step(c)


async def fewer_branches(ctx: FlowContext[None]) -> None:
    await ctx.step(a)
    await ctx.step(b)
    await ctx.gather(one(ctx))


async def longer_branch(ctx: FlowContext[None]) -> None:
    await ctx.step(a)
    await ctx.step(b)
    await ctx.gather(one(ctx), removed_in_branch(ctx))


async def removed_in_branch(_ctx: FlowContext[None]) -> None: ...


async def other_signal(ctx: FlowContext[None]) -> None:
    await ctx.step(a)
    await ctx.step(b)
    await both(ctx)
    await ctx.wait_for(Signal("stop", str))


async def swallowed(ctx: FlowContext[None]) -> None:
    try:
        await ctx.step(c)
    except Exception:  # noqa: BLE001  (what it would catch ends the run all the same)
        did.append("went on")
        await ctx.step(c)


@pytest.mark.parametrize(
    ("after", "position", "recorded", "asked"),
    [
        (renamed, "0", "step 'a'", "step 'c'"),
        (removed, "1", "step 'b'", "a gather"),
        (added, "1", "step 'b'", "step 'c'"),
        (reordered, "0", "step 'a'", "step 'b'"),
        (other_kind, "1", "step 'b'", "a sleep"),
        (shorter, "1", "step 'b'", "no call"),
        (no_branches, "2", "step 'a'", "step 'c'"),
        (fewer_branches, "2", "step 'a'", "a gather"),
        (longer_branch, "2.1.0", "step 'a'", "no call"),
        (other_signal, "3", "wait 'go'", "wait 'stop'"),
        (swallowed, "0", "step 'a'", "step 'c'"),
    ],
)
async def test_changed_code_is_refused_with_what_was_recorded_and_what_it_asks(
    after: Code, position: str, recorded: str, asked: str
) -> None:
    flow = RecordedFlow(made(before))
    assert await flow.activate() == Asleep(None, listens=True)
    did.clear()
    journal = list(flow.journal)
    ending = await flow.activate(made(after))
    assert isinstance(ending, Diverged)
    error = ending.error
    assert (error.position, error.recorded, error.asked) == (position, recorded, asked)
    assert flow.flow_id in str(error)
    assert "ctx.patched(name)" in str(error)
    assert ([each for each in did if each != "went on"], flow.journal) == ([], journal), "nothing began"
    assert await flow.activate() == Asleep(None, listens=True), "with the old code it goes on"


async def test_code_that_goes_on_behind_what_is_recorded_is_no_other_code() -> None:
    async def longer(ctx: FlowContext[None]) -> str:
        await before(ctx)
        return await ctx.step(c)

    flow = RecordedFlow(made(before))
    await flow.activate()
    flow.send("go", "on")
    assert isinstance(await flow.activate(made(longer)), Completed)
    assert did == ["a", "b", "a", "a", "c"]


async def patched(ctx: FlowContext[None]) -> str:
    await ctx.step(a)
    if ctx.patched("second"):
        await ctx.step(c)
    else:
        await ctx.step(b)
    if ctx.patched("third"):
        await ctx.wait_for(go)
        return "new"
    await both(ctx)
    await ctx.wait_for(go)
    return "old"


async def retired(ctx: FlowContext[None]) -> str:
    await ctx.step(a)
    ctx.retired("second")
    await ctx.step(c)
    ctx.retired("third")
    await ctx.wait_for(go)
    return "retired"


async def test_a_patch_is_off_in_flows_that_were_there_before_it_and_on_in_others() -> None:
    old, new, fresh = (RecordedFlow(made(code)) for code in (before, patched, retired))
    for flow in (old, new, fresh):
        await flow.activate()
        flow.send("go", "on")
    assert [entry.name for entry in new.entries if entry.kind == "patch"] == ["second", "third"]
    assert await old.activate(made(patched)) == Completed('"old"')
    assert await new.activate(made(patched)) == Completed('"new"')
    assert await new.activate(made(retired)) == Completed('"retired"')
    assert await fresh.activate(made(retired)) == Completed('"retired"')
    assert isinstance(await new.activate(made(before)), Diverged)


def _in_a_task(routine: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
    return _unheard(asyncio.get_running_loop().create_task(routine))


def _unheard(future: asyncio.Future[Any]) -> asyncio.Future[Any]:
    """Take the error of a future that nobody awaits to its end: the refusal of a call in it."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future


async def by_gather(ctx: FlowContext[None]) -> None:
    await _unheard(asyncio.gather(_in_a_task(one(ctx)), _in_a_task(one(ctx))))


async def by_gather_of_calls(ctx: FlowContext[None]) -> None:
    await _unheard(asyncio.gather(*(_in_a_task(_awaited(ctx.step(a))) for _ in range(2))))


async def _awaited(call: Awaitable[str]) -> str:
    return await call


async def by_task(ctx: FlowContext[None]) -> None:
    await _in_a_task(_in_task(ctx))


async def _in_task(ctx: FlowContext[None]) -> None:
    await ctx.step(a)


async def by_sleep(ctx: FlowContext[None]) -> None:
    await ctx.step(b)
    await asyncio.sleep(0.01)


async def by_bare_yield(_ctx: FlowContext[None]) -> None:
    await asyncio.sleep(0)


async def not_awaited(ctx: FlowContext[None]) -> None:
    _ = ctx.step(a)


@pytest.mark.parametrize("code", [by_gather, by_gather_of_calls, by_task, by_sleep, by_bare_yield])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_what_cannot_be_repeated_is_refused_in_the_first_run(code: Code) -> None:
    flow = RecordedFlow(made(code))
    ending = await flow.activate()
    await asyncio.sleep(0.02)
    assert isinstance(ending, Diverged)
    assert "use ctx.gather" in str(ending.error)
    assert did in ([], ["b"])


async def test_a_call_that_nobody_awaits_is_refused() -> None:
    ending = await RecordedFlow(made(not_awaited)).activate()
    assert isinstance(ending, Diverged)
    assert str(ending.error) == (
        "step 'a' of flow flow~1, at position 0, was called and never awaited; await it, or leave it out"
    )


@pytest.mark.parametrize("name", ["timeout", "TaskGroup"])
async def test_timeouts_and_task_groups_of_asyncio_do_not_work_in_the_code(name: str) -> None:
    async def code(ctx: FlowContext[None]) -> str:
        with pytest.raises(RuntimeError):
            async with asyncio.timeout(1) if name == "timeout" else asyncio.TaskGroup():
                await ctx.step(a)
        return "refused"

    assert await RecordedFlow(made(code)).activate() == Completed('"refused"')
    assert did == []


async def test_a_call_belongs_to_the_code_that_made_it() -> None:
    async def other(call: Awaitable[str]) -> str:
        return await call

    async def code(ctx: FlowContext[None]) -> None:
        await ctx.gather(other(ctx.step(a)))

    ending = await RecordedFlow(made(code)).activate()
    assert isinstance(ending, Diverged)
    assert "was called in another branch" in str(ending.error)


async def test_a_recorded_result_that_does_not_fit_its_type_any_more_is_a_mismatch() -> None:
    async def number() -> int:
        return 1

    async def text() -> str:
        return "1"

    text.__name__ = "number"

    async def old(ctx: FlowContext[None]) -> None:
        await ctx.step(number)

    async def new(ctx: FlowContext[None]) -> None:
        await ctx.step(text)

    flow = RecordedFlow(made(old))
    await flow.activate()
    ending = await flow.activate(made(new))
    assert isinstance(ending, Diverged)
    assert "does not fit" in str(ending.error)


async def test_a_lambda_has_no_name_for_its_step() -> None:
    async def code(ctx: FlowContext[None]) -> str:
        with pytest.raises(DefinitionError, match="a lambda has no name"):
            await ctx.step(lambda: 1)
        return "refused"

    assert await RecordedFlow(made(code)).activate() == Completed('"refused"')


def test_the_error_has_its_facts() -> None:
    error = NonDeterminismError("text", flow_id="f", position="1", recorded="step 'a'", asked="no call")
    assert (error.flow_id, error.position, error.recorded, error.asked) == ("f", "1", "step 'a'", "no call")
