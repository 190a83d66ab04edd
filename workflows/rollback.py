"""The saga: the rollbacks of what a stopped flow had completed, in reverse order, durably.

Shared by both runs. Not here: which steps are undone and in what order (whoever reads the flow's
records makes the list), and where checkpoints are kept (`save`).

What must hold:
- one rollback at a time, in the order given; each with its own retry and timeout;
- `save` is awaited after each, before the next begins, so that a saga which was interrupted goes on
  where it stopped. Crash window: a rollback that ran and was not saved runs again, so rollbacks run at
  least once, as steps do;
- a rollback that fails for good is recorded, and the others still run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import msgspec

from eventbus.lowlevel import describe, get_logger
from workflows.attempt import Attempt, Ended
from workflows.context import StepContext
from workflows.definition import Workflow
from workflows.errors import Rollback
from workflows.records import StepRecord
from workflows.step import Step
from workflows.steps import CallSync, call, judge

__all__ = ["Outcome", "Saga", "Undo", "failures_of", "read_undone", "undone_name", "verdict_on"]

_log = get_logger("workflows")

_SAVED = "undo:"

Outcome: TypeAlias = tuple[str, str]
"""The path of a rollback, and the record of its error as JSON text; empty if it went well."""

MakeContext: TypeAlias = Callable[[int], StepContext[Any]]
"""Returns the context of attempt number n of a rollback."""


class Undo(msgspec.Struct, frozen=True, kw_only=True):
    """One rollback to run. `path` is the step's name, or `outer/inner` for a sub-workflow's step.

    `record` is what the step left; None if it did not complete, or nobody knows: its rollback is given
    None then. `ctx` makes the context of each attempt.
    """

    path: str
    step: Step[Any, Any]
    workflow: Workflow[Any, Any]
    record: StepRecord | None
    ctx: MakeContext


class Saga:
    """Runs a list of rollbacks; once."""

    def __init__(
        self,
        undos: Sequence[Undo],
        *,
        flow_id: str,
        call_sync: CallSync,
        sleep: Callable[[float], Awaitable[Any]],
        save: Callable[[str, str], Awaitable[Any]] | None = None,
        done: Mapping[str, str] | None = None,
        around: Callable[[Undo, int], AbstractContextManager[str]] | None = None,
    ) -> None:
        """`around(undo, n)` surrounds attempt number n, and yields its traceparent. `done` are outcomes that were saved before, by path: these do not run again.

        `save(path, failure)` keeps one outcome; `sleep(seconds)` waits between attempts.
        """
        self._undos = undos
        self._flow_id = flow_id
        self._call_sync = call_sync
        self._sleep = sleep
        self._save = save
        self._done = dict(done or {})
        self._around = around

    async def run(self) -> list[Outcome]:
        """Run what is not done, and return all outcomes in order.

        Cancelling it cancels the rollback that runs, which is then not saved.
        """
        outcomes: list[Outcome] = []
        for undo in self._undos:
            failure = self._done.get(undo.path)
            if failure is None:
                failure = await self._run(undo)
                if self._save is not None:
                    await self._save(undo.path, failure)
            outcomes.append((undo.path, failure))
        if outcomes:
            failed = len(failures_of(outcomes))
            succeeded = len(outcomes) - failed
            _log.info("rollback ended", flow_id=self._flow_id, succeeded=succeeded, failed=failed)
        return outcomes

    async def _run(self, undo: Undo) -> str:
        """Run one rollback to its end; return the record of its error, empty if it went well."""
        rule = undo.step.undo_retry or undo.workflow.retry
        attempts = 0
        while True:
            ended = await self._attempt(undo, attempts + 1)
            if ended.error is None:
                return ""
            attempts += 1
            delay, error = judge(rule, attempts, ended.error)
            if delay is None:
                _log.error(
                    "rollback failed",
                    flow_id=self._flow_id,
                    step=undo.path,
                    attempts=attempts,
                    error=f"{type(error).__name__}: {error}",
                )
                return describe(error, attempts=attempts, declared=undo.workflow.errors)
            await self._sleep(delay)

    async def _attempt(self, undo: Undo, number: int) -> Ended:
        attempt = Attempt(
            lambda: self._call(undo, number),
            what=f"the rollback of step {undo.path!r}",
            timeout=undo.step.undo_timeout,
        )
        return await attempt.run()

    async def _call(self, undo: Undo, number: int) -> None:
        with self._around(undo, number) if self._around is not None else nullcontext(""):
            await self._undo(undo, number)

    async def _undo(self, undo: Undo, number: int) -> None:
        step, ctx, record = undo.step, undo.ctx(number), undo.record
        result = None if record is None else ctx.codecs.result(step.name).decode(memoryview(record.result))
        assert step.undo is not None, "only steps with a rollback are listed"  # noqa: S101
        await call(step.undo, ctx, result, is_async=step.undo_is_async, call_sync=self._call_sync)


def undone_name(number: int, path: str) -> str:
    """Return the name of the checkpoint for the rollback of `path`, which was number `number` of its saga."""
    return f"{_SAVED}{number}:{path}"


def read_undone(saved: Mapping[str, str]) -> dict[str, str]:
    """Return what checkpoints say of rollbacks: path -> record of its error, in the order in which they ran.

    Checkpoints come in any order, so their names tell it.
    """
    found: list[tuple[int, str, str]] = []
    for name, failure in saved.items():
        if name.startswith(_SAVED):
            number, _, path = name.removeprefix(_SAVED).partition(":")
            found.append((int(number), path, failure))
    return {path: failure for _, path, failure in sorted(found)}


def failures_of(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return those that failed for good."""
    return [(path, failure) for path, failure in outcomes if failure]


def verdict_on(outcomes: Sequence[Outcome]) -> Rollback:
    """Return what all the rollbacks of a flow come to."""
    if not outcomes:
        return "none"
    return "incomplete" if failures_of(outcomes) else "complete"
