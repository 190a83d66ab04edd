"""What `execute` refuses before anything is started, and that it starts one flow for each call or key."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eventbus import DefinitionError, EventProvider, ProviderStopped
from workflows import StepContext, Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]


def _counter(runs: list[int]) -> Workflow[int, int]:
    workflow = Workflow("counter", input=int, output=int)

    @workflow.step()
    async def count(ctx: StepContext[int]) -> int:
        runs.append(ctx.input)
        return ctx.input

    @workflow.completed
    async def total(ctx: StepContext[int]) -> int:
        return ctx.result(count)

    return workflow


async def test_what_is_not_registered_is_refused_at_execute_and_so_is_a_provider_that_was_not_started(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    flows, known, unknown = WorkflowProvider(provider), _counter([]), _counter([])
    flows.register(known)
    with pytest.raises(ProviderStopped):
        await flows.execute(known, 1)
    async with provider:
        with pytest.raises(
            DefinitionError, match=r"workflow 'counter' is not registered here; call flows\.reg"
        ):
            await flows.execute(unknown, 1)
        assert await flows.flows("counter") == []


async def test_two_keys_are_two_flows_and_so_are_two_calls_without_a_key(make_provider: MakeProvider) -> None:
    provider = make_provider()
    flows, runs = WorkflowProvider(provider), list[int]()
    counter = _counter(runs)
    flows.register(counter)
    async with provider, provider.worker():
        keyed = [await flows.execute(counter, n, idempotency_key=f"k-{n}") for n in (1, 2)]
        bare = [await flows.execute(counter, 3) for _ in range(2)]
        assert [await each.result() for each in (*keyed, *bare)] == [1, 2, 3, 3]
        assert len({each.id for each in (*keyed, *bare)}) == 4
    assert sorted(runs) == [1, 2, 3, 3]
