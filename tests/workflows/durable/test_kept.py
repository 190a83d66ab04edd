"""What a retry by hand keeps and forgets, rule by rule; random programs are in `test_random_retries`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from drivers.recorded import RecordedFlow

from eventbus import DefinitionError, HandlerError, PayloadError, Retry
from eventbus.lowlevel import JOB_ID_LENGTH
from workflows import FlowContext, StepError, WorkflowProvider, durable, task
from workflows.functions.calls.kept import kept_entries
from workflows.functions.endings import Completed, Failed
from workflows.records.entries import Entry

pytestmark = pytest.mark.virtual

OpenFlows = Callable[..., Awaitable[WorkflowProvider]]

did: list[str] = []
broken: set[str] = set()


@pytest.fixture(autouse=True)
def nothing_did() -> None:
    did.clear()
    broken.clear()


def _act(name: str) -> str:
    did.append(name)
    if name in broken:
        raise ValueError(name)
    return name


@task(retry=Retry(attempts=1))
async def act(name: str) -> str:
    return _act(name)


@task(retry=Retry(attempts=1))
async def book(name: str) -> str:
    return _act(name)


@book.rollback
async def free(name: str) -> None:
    _act(f"free {name}")


async def _fails(flow: RecordedFlow, *names: str) -> list[str]:
    """Run a flow while these steps are broken, roll it back, begin the next run; return what it did."""
    broken.clear()
    broken.update(names)
    did.clear()
    ending = await flow.activate()
    assert isinstance(ending, Failed), ending
    await flow.fail(ending)
    await flow.retry()
    return list(did)


async def _completes(flow: RecordedFlow) -> tuple[Any, list[str]]:
    """Run a flow while nothing is broken; return its output and what it did."""
    broken.clear()
    did.clear()
    ending = await flow.activate()
    assert isinstance(ending, Completed), ending
    assert await flow.activate() == ending, "a replay ends the same"
    return msgspec.json.decode(ending.output), list(did)


@durable("order", retry=Retry(attempts=1))
async def order(ctx: FlowContext[None]) -> list[str]:
    return [await ctx.step(book, "a"), await ctx.step(act, "b"), await ctx.step(act, "c")]


async def test_a_step_that_was_undone_and_fails_when_it_is_redone_parks_nothing_and_what_was_kept_stays() -> (
    None
):
    flow = RecordedFlow(order)
    assert await _fails(flow, "c") == ["a", "b", "c", "free a"]
    assert await _fails(flow, "a") == ["a"]
    assert await _fails(flow, "a") == ["a"]
    assert await _completes(flow) == (["a", "b", "c"], ["a", "c"])


async def test_a_step_whose_rollback_failed_is_kept() -> None:
    flow = RecordedFlow(order)
    assert await _fails(flow, "c", "free a") == ["a", "b", "c", "free a"]
    assert await _completes(flow) == (["a", "b", "c"], ["c"])


def _tidying(what: str) -> Any:
    """Return a function whose code tidies up behind a failed part, and raises again."""

    async def branch(ctx: FlowContext[None], name: str) -> str:
        try:
            return await ctx.step(act, name)
        except HandlerError:
            await ctx.step(act, f"tidy {name}")
            raise

    async def parts(ctx: FlowContext[None]) -> Any:
        if what == "map":
            return await ctx.map(act, ["x", "y", "z"], limit=3, local=True)
        if what == "calls":
            return await ctx.gather(*(ctx.step(act, name) for name in "xyz"))
        return await ctx.gather(*(branch(ctx, name) for name in "xyz"))

    @durable("tidying", retry=Retry(attempts=1))
    async def tidying(ctx: FlowContext[None]) -> Any:
        await ctx.step(act, "first")
        try:
            return [*await parts(ctx), await ctx.step(act, "last")]
        except HandlerError as error:
            await ctx.step(act, "tidied")
            if what == "another error":
                raise RuntimeError("it did not work") from error
            raise

    return tidying


@pytest.mark.parametrize("what", ["map", "calls", "branches", "another error"])
async def test_what_the_code_did_because_of_an_error_is_forgotten_and_what_stood_beside_it_is_kept(
    what: str,
) -> None:
    flow = RecordedFlow(_tidying(what))
    inner = ["tidy x", "tidy z"] if what in ("branches", "another error") else []
    assert sorted(await _fails(flow, "x", "z")) == sorted(["first", "x", "y", "z", *inner, "tidied"])
    assert sorted(await _fails(flow, "z")) == sorted(["x", "z", *inner[1:], "tidied"])
    assert await _completes(flow) == (["x", "y", "z", "last"], ["z", "last"])


async def test_a_failure_that_the_code_dealt_with_is_kept_also_in_a_branch() -> None:
    @durable("dealt", retry=Retry(attempts=1))
    async def dealt(ctx: FlowContext[None]) -> list[str]:
        found = await ctx.gather(ctx.step(act, "x"), ctx.step(act, "y"), return_exceptions=True)
        return [*(type(one).__name__ for one in found), await ctx.step(act, "b"), await ctx.step(act, "c")]

    flow = RecordedFlow(dealt)
    assert await _fails(flow, "y", "c") == ["x", "y", "b", "c"]
    assert await _completes(flow) == (["str", "HandlerError", "b", "c"], ["c"])


async def test_ids_and_random_numbers_are_the_same_in_each_run_of_a_retried_flow() -> None:
    given: list[tuple[str, float]] = []

    @durable("paid", retry=Retry(attempts=1))
    async def paid(ctx: FlowContext[None]) -> str:
        order = (str(ctx.uuid()), ctx.random.random())
        await ctx.step(act, "create")
        given.append(order)
        return await ctx.step(act, "pay")

    flow = RecordedFlow(paid)
    await _fails(flow, "pay")
    await _fails(flow, "pay")
    await _completes(flow)
    assert len(given) == 4
    assert len(set(given)) == 1
    other = RecordedFlow(paid)
    other.run = 2  # a retry from the start: nothing is kept, so its journal begins with it
    other.journal.append('{"k":"run","x":2}')
    await _completes(other)
    assert len(set(given)) == 2


def test_the_journals_of_old_releases_keep_their_ids_and_forget_what_outer_code_did_behind_the_error() -> (
    None
):
    old = [
        Entry(kind="step", place="0", name="act"),
        Entry(kind="failed", place="1.1.0", name="act"),
        Entry(kind="step", place="1.0.0", name="act"),
        Entry(kind="step", place="2", name="act"),  # behind the gather: it tidied up
        Entry(kind="raised", place="act@1.1.0"),
        Entry(kind="run", run=2),
    ]
    kept = kept_entries(old)
    assert [entry.place for entry in kept.entries] == ["0", "1.0.0"]
    assert (kept.loose, kept.seed_of(2)) == (set(), "2")
    assert kept_entries([*old, Entry(kind="run", run=3, origin="2")]).seed_of(3) == "2"


@pytest.mark.parametrize("is_deep", [False, True])
async def test_a_call_that_is_refused_does_not_count_when_the_code_goes_on(is_deep: bool) -> None:
    @durable("inner")
    async def inner(ctx: FlowContext[int]) -> None: ...

    @durable("deep")
    async def deep(ctx: FlowContext[None]) -> str:
        any_ctx: Any = ctx
        refused: list[tuple[Callable[[], Any], type[Exception]]] = [
            (lambda: any_ctx.flow(inner, "text"), DefinitionError if is_deep else PayloadError),
            (lambda: any_ctx.flow(5, 1), DefinitionError),
            (lambda: ctx.map(act.using(name="other"), ["x"]), DefinitionError),
            (lambda: ctx.map(act, ["x"], limit=0), DefinitionError),
            (lambda: any_ctx.map(act, [object()]), PayloadError),
            (lambda: any_ctx.emit("it", object()), PayloadError),
            (lambda: any_ctx.step(5), DefinitionError),
            (lambda: any_ctx.sleep("soon"), DefinitionError),
            (lambda: any_ctx.wait_for("go"), DefinitionError),
            (lambda: any_ctx.rollback(5), DefinitionError),
        ]
        for call, error in refused:
            with pytest.raises(error):
                call()
        return await ctx.step(act, "done")

    # The id of a flow which is nested so deep that it cannot have one of its own.
    flow = RecordedFlow(deep, flow_id=f"deep~{'1' * (JOB_ID_LENGTH - 10)}" if is_deep else "deep~1")
    flow.has_children = True
    assert (await _completes(flow))[0] == "done"
    assert [kind for kind, _, _ in flow.told] == ["step"]


async def test_a_flow_in_a_worker_keeps_its_ids_and_is_not_parked_over_retries(open_flows: OpenFlows) -> None:
    ids: list[str] = []

    @durable("shop", retry=Retry(attempts=1))
    async def shop(ctx: FlowContext[None]) -> list[str]:
        ids.append(str(ctx.uuid()))
        found = [await ctx.step(book, "a"), await ctx.step(act, "b")]
        try:
            found += await ctx.map(act, ["x", "y"])
        except HandlerError:
            await ctx.step(act, "tidied")
            raise
        return [*found, await ctx.step(act, "c")]

    flows = await open_flows(shop)
    broken.add("x")
    flow = await flows.execute(shop, None)
    for names in (["a"], ["a"], ["c"], []):
        with pytest.raises(StepError):
            await flow.result(240)
        broken.clear()
        broken.update(names)
        flow = await flows.retry(flow.id, workflow=shop)
    assert await flow.result(240) == ["a", "b", "x", "y", "c"]
    assert len(set(ids)) == 1
    assert {name: did.count(name) for name in ("b", "y", "tidied")} == {"b": 1, "y": 1, "tidied": 1}
    assert did.count("a") - did.count("free a") == 3  # two of them failed
