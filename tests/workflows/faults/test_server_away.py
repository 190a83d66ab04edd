"""If the server cannot be reached before a function runs, that does not count as an attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eventbus import EventProvider, Retry, StoreUnavailable
from eventbus.store.calls.tree_store import TreeStore
from eventbus.store.store import Store
from workflows import StepContext, Workflow, WorkflowProvider
from workflows.distributed.caches.result_cache import ResultCache

pytestmark = pytest.mark.virtual

_ONCE = Retry(attempts=1)


class Away:
    """In the place of a call to the server: it fails the first time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.failed = 0
        self._call = getattr(owner, name)
        away = self

        async def call(self: Any, *given: Any, **options: Any) -> Any:
            if not away.failed:
                away.failed += 1
                raise StoreUnavailable("gone", address="here")
            return await away._call(self, *given, **options)

        monkeypatch.setattr(owner, name, call)


def _flow(ran: list[str]) -> Workflow[Any, Any]:
    inner = Workflow("inner", retry=_ONCE, spread=True)

    async def note(ctx: StepContext[Any]) -> None:
        ran.append(ctx.step or "completed")

    inner.step(note, name="inside")
    workflow = Workflow("away", retry=_ONCE)
    workflow.step(note, name="first").rollback(_undo)
    workflow.flow(inner)
    workflow.step(note, name="last")
    workflow.completed(note)
    return workflow


async def _undo(ctx: StepContext[Any], result: None) -> None:
    raise AssertionError("nothing failed")


@pytest.mark.parametrize(
    ("owner", "name"),
    [(ResultCache, "load"), (Store, "look"), (TreeStore, "checkpoint"), (TreeStore, "look")],
)
async def test_a_flow_with_one_attempt_outlives_a_server_that_is_away(
    make_provider: Callable[..., EventProvider], monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    ran: list[str] = []
    provider = make_provider()
    flows = WorkflowProvider(provider)
    workflow = _flow(ran)
    flows.register(workflow)
    async with provider, provider.worker():
        away = Away(monkeypatch, owner, name)
        handle = await flows.execute(workflow, None)
        await handle.result()
        report = await handle.report()
    assert away.failed == 1
    assert ran == ["first", "inside", "last", "completed"]
    assert [step.attempts for step in report.steps.values()] == [0, 0, 0]
