"""Which step the error of a local flow names, and which steps its rollbacks leave in doubt, after workers
died.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from eventbus import Retry
from eventbus.lowlevel import TreePage
from workflows import StepContext, Workflow
from workflows.distributed.activation import Activation
from workflows.distributed.graph_flow import LocalFlow
from workflows.distributed.undo.local_undo import note_stop, read_local_plan
from workflows.distributed.worker_runtime import Flow
from workflows.errors import COMPLETED
from workflows.execution.graph_entries import entry_of
from workflows.execution.rollback import Undo
from workflows.execution.step_run import StepRun
from workflows.execution.surroundings import FlowClock
from workflows.records.entries import Entry
from workflows.records.graph_history import GraphHistory, read_graph
from workflows.records.records import FlowMessage

pytestmark = pytest.mark.virtual

_ERROR = '{"type":"ValueError","message":"no"}'
_STALLED = '{"type":"StalledError","message":"its workers died","stalls":4}'
_FIRST = Entry(kind="run", run=1, version="1", steps=("first", "away", "here", "last"))
_MESSAGE = FlowMessage(input=msgspec.Raw(b"null"))
_CHILD = "w~1/1/away/0"


async def _act(ctx: StepContext[Any]) -> int:
    return 1


async def _undo(ctx: StepContext[Any], result: int | None) -> None:
    pass


def _workflow(**options: Any) -> Workflow[Any, Any]:
    """Make `first`, then `away`, a job of its own with these options, beside `here`, then `last`."""
    made = Workflow[Any, Any]("w", retry=Retry(attempts=3))
    made.step(_act, name="first")
    made.step(_act, name="away", after="first", spread=True, **options).rollback(_undo)
    made.step(_act, name="here", after="first").rollback(_undo)
    made.step(_act, name="last", after=["away", "here"])
    return made


class Bench:
    """A stopped flow of `_workflow` with a journal, and a child that has ended."""

    def __init__(
        self, *entries: Entry, text: str, ended: str = "", stop: str = "failed", **options: Any
    ) -> None:
        """`text` is the error of the root; `ended` is that with which the child failed, unrecorded."""
        self.journal = [_FIRST, *entries]
        self._root = {"text": text, "lost": "4" if "stalls" in text else "0"}
        self._ended = ended
        runtime = SimpleNamespace(jobs=self, ask=_wait, add_inner=_wait)
        made = _workflow(**options)
        flow = SimpleNamespace(workflow=made, message=_MESSAGE, runtime=runtime, flow_id="w~1")
        self.flow = cast("Flow", flow)
        job = SimpleNamespace(id="w~1", created_ms=1, stop=stop)
        self._activation = cast(
            "Activation", SimpleNamespace(job=job, clock=FlowClock(1000), append=self._append)
        )

    async def _append(self, entries: list[Entry]) -> None:
        self.journal += entries

    def look(self, _: str, **__: Any) -> Any:
        found = SimpleNamespace(id=_CHILD, claimed=5, state="failed", ended=9, stalls=0, attempts=3)
        return SimpleNamespace(members=[found] if self._ended else [], total=len(self._ended[:1]))

    def outcomes(self, ids: list[str]) -> Any:
        return [SimpleNamespace(job=each, text=self._ended) for each in ids]

    def read(self) -> GraphHistory:
        return read_graph(self.journal, _MESSAGE)

    async def named(self) -> tuple[str, str]:
        """Return the step that the error names and its error; a later activation must name the same."""
        history = self.read()
        await note_stop(self._activation, self.flow, history, self._root)
        page = cast("TreePage", SimpleNamespace(root=self._root))
        both = [LocalFlow(self.flow, self._activation, each, set()) for each in (history, self.read())]
        first, second = [await flow.find_failure(page) for flow in both]
        assert first == second
        return first.step, first.failure


async def _wait(value: Any) -> Any:
    return value


def _done(name: str) -> Entry:
    return Entry(kind="step", place=name, started_ms=5, took_ms=1)


def _failed(name: str, **options: Any) -> Entry:
    return Entry(kind="failed", place=name, error=msgspec.Raw(_ERROR.encode()), attempts=3, **options)


_BEGUN = Entry(kind="child", place="away", child=_CHILD, started_ms=5)
_ENDED = Entry(kind="step", place="away", child=_CHILD)


async def test_a_failure_that_was_recorded_before_the_worker_died_is_named() -> None:
    bench = Bench(_done("first"), _BEGUN, _failed("here"), text=_STALLED, ended=_ERROR)
    assert await bench.named() == ("here", _ERROR)


async def test_a_step_that_killed_its_workers_is_named_although_a_child_failed_meanwhile() -> None:
    bench = Bench(_done("first"), _BEGUN, text=_STALLED, ended=_ERROR)
    assert await bench.named() == ("here", _STALLED)
    assert bench.read().failed is not None, "the failure of the child is recorded all the same"


async def test_a_step_in_doubt_that_waited_for_its_next_attempt_did_not_kill_the_worker() -> None:
    error = msgspec.Raw(_ERROR.encode())
    late = Entry(kind="try", place="here", error=error, attempts=1, due_ms=9999, is_lost=True)
    bench = Bench(_done("first"), late, _BEGUN, text=_STALLED)
    assert await bench.named() == ("away", _STALLED)


@pytest.mark.parametrize("ended", ["", _ERROR])
async def test_workers_that_died_between_steps_do_not_blame_the_completed_hook(ended: str) -> None:
    bench = Bench(_done("first"), _done("here"), _BEGUN, text=_STALLED, ended=ended)
    assert await bench.named() == ("away", ended or _STALLED)


async def test_the_completed_hook_is_named_if_all_steps_have_ended() -> None:
    ignored = Entry(
        kind="step", place="away", child=_CHILD, error=msgspec.Raw(_STALLED.encode()), is_lost=True
    )
    every = [_done("first"), _done("here"), _BEGUN, ignored, _done("last")]
    for text in (_STALLED, _ERROR):
        assert await Bench(*every, text=text).named() == (COMPLETED, text)


async def test_a_journal_of_an_earlier_release_names_the_step_that_failed() -> None:
    bench = Bench(_done("first"), _failed("here"), Entry(kind="stop", run=1), text=_ERROR)
    assert await bench.named() == ("here", _ERROR)


@pytest.mark.parametrize("undoes", [False, True])
async def test_an_ignored_failure_of_dead_workers_stays_in_doubt(undoes: bool) -> None:
    bench = Bench(text=_ERROR, on_failure="ignore", rollback_on_failure=undoes)
    run = StepRun(bench.flow.workflow.steps["away"], ())
    run.start()
    run.child = _CHILD
    run.fail_with(_STALLED)
    run.ignore_failure()
    bench.journal += [_done("first"), _BEGUN, entry_of(run), _done("here"), _failed("last")]
    history = bench.read()
    assert (history.steps["away"].state, history.open_children) == ("unknown", {})
    plan = await read_local_plan(bench.flow, history)
    assert [each.path for each in plan.undos] == (["here", "away"] if undoes else ["here"])
    assert plan.inherited == ([] if undoes else [("away", _STALLED)])
    assert plan.records["away"].failure == _STALLED, "so the steps behind it ran"


@pytest.mark.parametrize("stop", ["cancelled", "timeout", "failed"])
async def test_a_first_step_that_died_before_any_entry_is_undone_if_it_wants_that(stop: str) -> None:
    bench = Bench(text=_STALLED, stop=stop)
    bench.journal.clear()
    workflow = Workflow[Any, Any]("w")
    workflow.step(_act, name="first", rollback_on_failure=True).rollback(_undo)
    bench.flow.workflow = workflow
    bench.flow.first_entry = lambda: _FIRST  # type: ignore[method-assign]
    await bench.named()
    plan = await read_local_plan(bench.flow, bench.read())
    assert [(each.path, cast("Undo", each).record) for each in plan.undos] == [("first", None)]
    assert plan.inherited == []


def test_an_ignored_failure_that_left_nothing_open_is_no_doubt() -> None:
    run = StepRun(_workflow(on_failure="ignore").steps["away"], ())
    run.start()
    run.child = _CHILD
    run.fail_with(_ERROR)
    run.ignore_failure()
    assert not entry_of(run).is_lost
