"""The rollback alone: checkpoints, and continuing where an earlier run stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import pytest

from eventbus import Retry
from eventbus.lowlevel import Attempt, outside_job
from workflows.definition.codecs import Codecs
from workflows.definition.context import StepContext
from workflows.definition.flow_tools import FlowFacts
from workflows.definition.workflow import Workflow
from workflows.execution.environment import InlineTools, in_thread
from workflows.execution.rollback import RollbackResult, Saga, Undo, UndoPlan, failures_of
from workflows.execution.step_attempt import MemoryHost
from workflows.execution.stop import Stop
from workflows.records.checkpoints import read_undone, undone_name
from workflows.records.records import StepRecord


class Story:
    """Three steps with rollbacks that record what happens; a test can make some of them fail."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.fails: dict[str, int] = {}
        self.slept: list[float] = []
        self.saved: dict[str, str] = {}
        self.hold: asyncio.Event | None = None
        self.is_held = asyncio.Event()
        self.workflow: Workflow[Any, Any] = Workflow("w", retry=Retry(attempts=3, delay=1))
        for name in ("a", "b", "c"):
            self.workflow.step(self._run, name=name).rollback(self._undo)

    async def _run(self, ctx: StepContext[Any]) -> str:
        return ctx.step

    async def _undo(self, ctx: StepContext[Any], result: Any) -> None:
        self.log.append((ctx.step, result, ctx.attempt))
        if self.hold is not None and ctx.step == "b":
            self.is_held.set()
            await self.hold.wait()
        if ctx.attempt <= self.fails.get(ctx.step, 0):
            raise ValueError(ctx.step)

    def _context(self, step: str, attempt: int) -> StepContext[Any]:
        return StepContext(
            InlineTools(None, {}),
            Codecs(self.workflow),
            FlowFacts(flow_id="w~1"),
            input=None,
            step=step,
            job_id="w~1",
            attempt=attempt,
            traceparent="",
            records={},
            reach=(),
            own=Attempt(MemoryHost(), outside_job("w~1"), ""),
        )

    def _undo_of(self, step: str, record: StepRecord | None) -> Undo:
        return Undo(
            path=step,
            step=self.workflow.steps[step],
            workflow=self.workflow,
            record=record,
            ctx=partial(self._context, step),
        )

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def _save(self, path: str, failure: str) -> None:
        self.log.append(f"saved {path}")
        self.saved[path] = failure

    def saga(self, *, unknown: str = "", done: dict[str, str] | None = None) -> Saga:
        records = {name: StepRecord(result=msgspec.Raw(f'"{name}"'.encode())) for name in "cba"}
        undos = [self._undo_of(name, None if name == unknown else record) for name, record in records.items()]
        plan = UndoPlan(undos=[*undos], done=done or {})
        return Saga(plan, flow_id="w~1", call_sync=in_thread, sleep=self._sleep, save=self._save)


def _verdict(outcomes: Sequence[RollbackResult]) -> str:
    stop = Stop(cause="timeout")
    verdict, text = UndoPlan().end(stop, outcomes, flow_id="w~1", workflow="w", timeout=1.0)
    assert f'"rollback":"{verdict}"' in text or verdict == "none"
    return verdict


async def test_each_rollback_is_saved_before_the_next_begins() -> None:
    story = Story()
    outcomes = await story.saga().run()
    assert story.log == [("c", "c", 1), "saved c", ("b", "b", 1), "saved b", ("a", "a", 1), "saved a"]
    assert outcomes == [("c", ""), ("b", ""), ("a", "")]
    assert _verdict(outcomes) == "complete"


async def test_what_was_saved_before_does_not_run_again_and_is_told() -> None:
    story = Story()
    outcomes = await story.saga(done={"c": "", "b": "its failure"}).run()
    assert story.log == [("a", "a", 1), "saved a"]
    assert outcomes == [("c", ""), ("b", "its failure"), ("a", "")]
    assert failures_of(outcomes) == [("b", "its failure")]
    assert _verdict(outcomes) == "incomplete"


async def test_an_interrupted_rollback_is_not_saved_and_runs_again() -> None:
    story = Story()
    story.hold = asyncio.Event()
    running = asyncio.create_task(story.saga().run())
    await story.is_held.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert story.saved == {"c": ""}
    story.hold = None
    await story.saga(done=dict(story.saved)).run()
    assert [each for each in story.log if isinstance(each, tuple)] == [
        ("c", "c", 1),
        ("b", "b", 1),
        ("b", "b", 1),
        ("a", "a", 1),
    ]


async def test_a_rollback_is_tried_again_and_its_last_error_is_recorded() -> None:
    story = Story()
    story.fails = {"b": 2, "a": 9}
    outcomes = dict(await story.saga().run())
    assert story.slept == [1, 2, 1, 2]
    assert outcomes["b"] == ""
    failure = msgspec.json.decode(outcomes["a"])
    assert (failure["type"], failure["message"], failure["attempts"]) == ("ValueError", "a", 3)
    assert story.saved == outcomes


async def test_what_a_step_left_may_be_unknown() -> None:
    story = Story()
    await story.saga(unknown="b").run()
    assert ("b", None, 1) in story.log


async def test_nothing_to_undo_is_told_apart(logs: list[dict[str, Any]]) -> None:
    story = Story()
    saga = Saga(UndoPlan(), flow_id="w~1", call_sync=in_thread, sleep=asyncio.sleep)
    assert await saga.run() == []
    assert _verdict([]) == "none"
    assert logs == []
    await story.saga().run()
    assert [(each["event"], each["succeeded"], each["failed"]) for each in logs] == [("rollback ended", 3, 0)]


def test_checkpoints_tell_the_order_of_rollbacks_however_they_come() -> None:
    paths = [f"s{n}" for n in range(12)] + ["part/s1"]
    saved = {undone_name(number, path): f"error of {path}" for number, path in enumerate(paths, start=1)}
    shuffled = {name: saved[name] for name in sorted(saved)} | {"graph": "v1", "hook:failed": ""}
    assert list(read_undone(shuffled).items()) == [(path, f"error of {path}") for path in paths]
