"""Retries by hand of steps that run for each item of a list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eventbus import EventProvider, Retry
from workflows import StepContext, StepError, Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

_ONCE = Retry(attempts=1)


class _Case:
    """A flow that converts the items 1 to 4, one at a time; `fails` says in which run which item or step
    fails.
    """

    spread = False

    def __init__(self, fails: dict[int, Any], *, stuck: int = 0, has_undo: bool = False) -> None:
        self.ran: list[tuple[int, int]] = []
        self.undone: list[tuple[int, int]] = []
        self.jobs: dict[int, set[str]] = {}
        self.results: list[int] = []
        self.graph = Workflow[Any, Any]("again", retry=_ONCE)

        async def convert(ctx: StepContext[Any], item: int) -> int:
            self.ran.append((ctx.run, item))
            self.jobs.setdefault(item, set()).add(ctx.job_id)
            if fails.get(ctx.run) == item:
                raise ValueError("broken")
            return item * 10

        async def undo(ctx: StepContext[Any], item: int, result: int) -> None:
            self.jobs.setdefault(item, set()).add(ctx.job_id)
            if ctx.run == 1 and item == stuck:
                raise ValueError("not undone")
            self.undone.append((ctx.run, item))

        each: Any = self.graph.each(
            over=lambda ctx: [1, 2, 3, 4], at_once=1, name="convert", spread=self.spread
        )(convert)
        if has_undo:
            each.rollback(undo)

        @self.graph.step
        async def late(ctx: StepContext[Any]) -> None:
            self.results = ctx.result("convert")
            if fails.get(ctx.run) == "late":
                raise ValueError("late")

    async def run(self, make_provider: Callable[..., EventProvider], runs: int) -> None:
        """Run the flow so often; the last run completes."""
        async with make_provider() as provider:
            flows = WorkflowProvider(provider)
            flows.register(self.graph)
            async with provider.worker():
                handle: Any = await flows.execute(self.graph, None)
                for _ in range(runs - 1):
                    with pytest.raises(StepError):
                        await handle.result()
                    handle = await flows.retry(handle.id)
                await handle.result()
        assert self.results == [10, 20, 30, 40]


@pytest.fixture(params=[False, True], ids=["local", "spread"], autouse=True)
def spread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the items in the worker of the flow, or as jobs."""
    monkeypatch.setattr(_Case, "spread", request.param)


async def test_items_that_completed_do_not_run_again(make_provider: Callable[..., EventProvider]) -> None:
    case = _Case({1: 3, 2: 4})
    await case.run(make_provider, runs=3)
    assert case.ran == [(1, 1), (1, 2), (1, 3), (2, 3), (2, 4), (3, 4)]


async def test_an_item_whose_rollback_failed_is_kept_and_the_others_run_again(
    make_provider: Callable[..., EventProvider],
) -> None:
    case = _Case({1: "late"}, stuck=2, has_undo=True)
    await case.run(make_provider, runs=2)
    assert case.undone == [(1, 4), (1, 3), (1, 1)]
    assert case.ran == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 3), (2, 4)]


async def test_kept_items_are_undone_in_a_later_run_with_the_ids_of_their_own_run(
    make_provider: Callable[..., EventProvider],
) -> None:
    case = _Case({1: 3, 2: "late"}, stuck=1, has_undo=True)
    await case.run(make_provider, runs=3)
    assert case.ran[:6] == [(1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (2, 4)]
    assert case.undone == [(1, 2), (2, 4), (2, 3), (2, 2), (2, 1)]
    assert case.ran[6:] == [(3, 1), (3, 2), (3, 3), (3, 4)]
    assert len(case.jobs[1]) == 2  # of the first run and its rollback in the second one, and of the third run


async def test_a_step_that_was_kept_in_part_is_kept_whole_later(
    make_provider: Callable[..., EventProvider],
) -> None:
    case = _Case({1: 3, 2: "late", 3: "late"})
    await case.run(make_provider, runs=4)
    assert case.ran == [(1, 1), (1, 2), (1, 3), (2, 3), (2, 4)]
