"""Plain functions run in threads, which nothing can cancel: what they do while their flow stops is
not lost.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import EventProvider, StalledError
from workflows import FlowCancelled, StepContext, Workflow, WorkflowProvider

MakeProvider = Callable[..., EventProvider]


class Plain:
    """A workflow of one plain step, which begins and waits until it may end."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.undone: list[int] = []
        self.workflow: Workflow[Any, None] = Workflow("plain", output=None)
        step = self.workflow.step(self._work, name="work")
        step.rollback(self._undo)

    def _work(self, ctx: StepContext[Any]) -> int:
        self.began.set()
        assert self.may_end.wait(240)
        return 7

    def _undo(self, ctx: StepContext[Any], result: int) -> None:
        self.undone.append(result)


@pytest.fixture
def plain() -> Plain:
    return Plain()


async def test_a_thread_that_ends_soon_after_the_cancel_has_completed_its_step_which_is_undone(
    make_provider: MakeProvider, plain: Plain
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(plain.workflow)
    async with provider, provider.worker():
        handle = await flows.execute(plain.workflow, None)
        assert await asyncio.to_thread(plain.began.wait, 10)
        assert await handle.cancel("no more")
        plain.may_end.set()
        with pytest.raises(FlowCancelled) as caught:
            await handle.result()
        assert caught.value.rollback == "complete"
        assert (await handle.report()).steps["work"].state == "completed"
    assert plain.undone == [7]


async def test_a_thread_that_goes_on_after_the_cancel_leaves_its_step_unknown_and_named(
    make_provider: MakeProvider, plain: Plain
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(plain.workflow)
    async with provider, provider.worker():
        handle = await flows.execute(plain.workflow, None)
        assert await asyncio.to_thread(plain.began.wait, 10)
        assert await handle.cancel("no more")
        with pytest.raises(FlowCancelled, match="what step 'work' did is unknown") as caught:
            await handle.result()
        plain.may_end.set()
        (error,) = caught.value.rollback_errors
        assert (caught.value.rollback, error.step, type(error.error)) == ("incomplete", "work", StalledError)
        assert (await handle.report()).steps["work"].state == "unknown"
    assert plain.undone == []
