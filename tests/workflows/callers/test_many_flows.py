"""Many flows are retried and cancelled at once: by workflow, state, error and age, a bounded part at a
time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eventbus import CountChanged, DefinitionError, EventProvider, Retry
from workflows import (
    END,
    FlowContext,
    FlowError,
    FlowHandle,
    MachineContext,
    StateMachine,
    StepContext,
    Workflow,
    WorkflowProvider,
    durable,
    transition,
)

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]

_broken: set[str] = set()


@pytest.fixture(autouse=True)
def broken() -> None:
    _broken.clear()
    _broken.update(("a", "b"))


def _fail(text: str) -> str:
    if text in _broken:
        raise (ValueError if text == "a" else LookupError)(f"no {text}")
    return text


@durable("code")
async def code(ctx: FlowContext[str]) -> str:
    return _fail(ctx.input)


steps: Workflow[str, None] = Workflow("steps", input=str)


@steps.step(retry=Retry(attempts=1))
async def try_it(ctx: StepContext[str]) -> str:
    return _fail(ctx.input)


@durable("sleeper")
async def sleeper(ctx: FlowContext[int]) -> None:
    await ctx.sleep("1 hour")


class Stands(StateMachine[list[str]], name="stands", start="open"):
    @transition("open", to=END, retry=Retry(attempts=1))
    async def go(self, ctx: MachineContext[list[str]]) -> str:
        return _fail("a")


async def _end(flows: WorkflowProvider, workflow: Any, *inputs: str) -> list[FlowHandle[Any]]:
    made = [await flows.execute(workflow, text) for text in inputs]
    for flow in made:
        with pytest.raises(FlowError):
            await flow.result(240)
    return made


def _open(make_provider: MakeProvider) -> tuple[EventProvider, WorkflowProvider]:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    for each in (code, steps, sleeper, Stands):
        flows.register(each)
    return provider, flows


async def test_failed_flows_are_counted_and_retried_by_workflow_and_error(
    make_provider: MakeProvider,
) -> None:
    provider, flows = _open(make_provider)
    async with provider, provider.worker():
        of_code = await _end(flows, code, "a", "b", "a")
        of_steps = await _end(flows, steps, "a", "b")
        counts = {
            (workflow, error): (await flows.retry_all(workflow, error=error, dry_run=True)).count
            for workflow in (None, "code", "steps", "sleeper")
            for error in (None, "ValueError", "LookupError", "KeyError")
        }
        assert counts == {
            (None, None): 5, (None, "ValueError"): 3, (None, "LookupError"): 2, (None, "KeyError"): 0,
            ("code", None): 3, ("code", "ValueError"): 2, ("code", "LookupError"): 1, ("code", "KeyError"): 0,
            ("steps", None): 2, ("steps", "ValueError"): 1, ("steps", "LookupError"): 1, ("steps",
            "KeyError"): 0,
            ("sleeper", None): 0, ("sleeper", "ValueError"): 0, ("sleeper", "LookupError"): 0, ("sleeper",
            "KeyError"): 0,
        }  # fmt: skip
        _broken.clear()
        done = await flows.retry_all("code", error="ValueError", expected=2)
        assert (done.count, done.refused, done.cursor) == (2, 0, "")
        assert sorted(done.samples) == sorted([of_code[0].id, of_code[2].id])
        for flow in (of_code[0], of_code[2]):
            assert await flows.handle(flow.id, code).result(240) == "a"
        assert (await flows.status(of_code[1].id)).state == "failed"
        assert (await flows.retry_all(expected=3)).count == 3
        for flow in of_steps:
            await flows.handle(flow.id, steps).result(240)


async def test_it_goes_on_behind_the_cursor_and_retries_none_that_failed_again(
    make_provider: MakeProvider, until: Until
) -> None:
    provider, flows = _open(make_provider)
    async with provider, provider.worker():
        made = await _end(flows, code, *"aaaaa")
        counts: list[int] = []
        cursor, before = "", 0
        while True:
            part = await flows.retry_all("code", limit=2, cursor=cursor, before=before)
            counts.append(part.count)
            for flow in part.samples:  # it fails again at once, and is the newest in the list then

                async def has_failed_again(flow: str = flow) -> bool:
                    report = await flows.report(flow)
                    return report.run > 1 and report.state == "failed"

                await until(has_failed_again, "it fails again")
            cursor, before = part.cursor, part.before
            if not cursor:
                break
        assert sum(counts) == 5
        assert max(counts) == 2
        assert {(await flows.report(flow.id)).run for flow in made} == {2}
        # Somebody who lost the cursor begins anew, with the moment at which the first one began.
        assert (await flows.retry_all("code", before=before)).count == 0


async def test_nothing_is_done_if_there_are_more_or_fewer_than_expected(make_provider: MakeProvider) -> None:
    provider, flows = _open(make_provider)
    async with provider, provider.worker():
        (flow,) = await _end(flows, code, "a")
        with pytest.raises(CountChanged) as caught:
            await flows.retry_all("code", expected=3)
        assert (caught.value.count, caught.value.expected) == (1, 3)
        assert (await flows.report(flow.id)).run == 1
        assert (await flows.retry_all("code", older_than="1 hour")).count == 0
        for wrong in ({"state": "completed"}, {"state": "odd"}, {"limit": 0}):
            with pytest.raises(DefinitionError, match="expected"):
                await flows.retry_all("code", **wrong)  # type: ignore[arg-type]
        with pytest.raises(DefinitionError, match="one of pending"):
            await flows.cancel_all("code", state="failed")


async def test_open_flows_are_cancelled_and_those_of_others_go_on(
    make_provider: MakeProvider, until: Until
) -> None:
    provider, flows = _open(make_provider)
    async with provider, provider.worker():
        sleepers = [await flows.execute(sleeper, number) for number in range(3)]
        other = await flows.execute(code, "later", delay="1 hour")
        assert (await flows.cancel_all("sleeper", older_than="1 hour", dry_run=True)).count == 0
        counted = await flows.cancel_all("sleeper", dry_run=True)
        done = await flows.cancel_all("sleeper", reason="moved", expected=counted.count)
        assert (counted.count, done.count, done.refused) == (3, 3, 0)
        for flow in sleepers:
            await until(lambda flow=flow: _is(flows, flow.id, "cancelled"), "it is cancelled")
            assert "moved" in (await flows.report(flow.id)).error
        assert (await flows.status(other.id)).state == "pending"


async def test_machines_that_stand_with_an_error_go_on(make_provider: MakeProvider, until: Until) -> None:
    provider, flows = _open(make_provider)
    async with provider, provider.worker():
        stands = await flows.execute(Stands, [])
        await flows.execute(sleeper, 1)

        async def has_error() -> bool:
            return bool((await stands.report()).error)

        await until(has_error, "it stands with an error")
        assert (await flows.retry_all(state="waiting", error="LookupError", dry_run=True)).count == 0
        _broken.clear()
        done = await flows.retry_all(state="waiting")
        assert (done.count, done.samples) == (1, [stands.id])
        assert await stands.result(240) == "a"


async def _is(flows: WorkflowProvider, flow_id: str, state: str) -> bool:
    return (await flows.status(flow_id)).state == state
