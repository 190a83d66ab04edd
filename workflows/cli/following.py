"""`eventbus flows follow`: prints what becomes of one flow, until it ends, or waits for somebody where nobody
looks.

The report is read again and again, because a local flow records its steps in its journal, which nobody
watches. Of a step of such a flow the server hears when an attempt ends, so that is when it is told. What must
always hold: each state that is seen is printed once, the end of the flow last; a server that is away is
waited for.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer

from eventbus import StoreUnavailable
from eventbus.cli.toolkit import UrlOption, moment, printable, say, span, write_json
from eventbus.lowlevel import FINAL_STATES, JobClient, clock
from workflows import FlowTree, StepReport, WorkflowProvider
from workflows.cli.asking import FlowArgument, ask_flows
from workflows.client.histories import FlowRecord, flows_within
from workflows.client.open_waits import open_waits
from workflows.records.entries import Entry

_EVERY = 0.5
"""Seconds between two looks."""
_WAITS = 3
"""The exit code of a flow that waits for a signal."""
_ASLEEP = {"delayed", "waiting-children"}


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of a step, or without a `step` of the flow. A step inside a sub-workflow has its path.

    `waits_for` is the signal that `flow_id` waits for: the flow, or one that is nested in it. `by` is
    `trigger` for a transition of a state machine.
    """

    at_ms: int
    state: str
    step: str = ""
    took: str = ""
    attempts: int = 0
    error: str = ""
    flow_id: str = ""
    waits_for: str = ""
    by: str = "signal"


class Follower:
    """What has been printed of one flow."""

    def __init__(self, flows: WorkflowProvider, flow_id: str, *, as_json: bool) -> None:
        self._flows = flows
        self._flow_id = flow_id
        self._as_json = as_json
        self._seen: dict[str, tuple[str, int]] = {}
        self._waits: set[tuple[str, str, int]] = set()

    async def follow(self) -> int:
        """Print what happens until there is nothing more to say; return the exit code."""
        is_away = False
        while True:
            try:
                code = await self._look()
                is_away = False
            except StoreUnavailable as error:
                if not is_away:
                    say(f"waiting for the server: {error}", err=True)
                is_away, code = True, None
            if code is not None:
                return code
            await asyncio.sleep(_EVERY)

    async def _look(self) -> int | None:
        tree = await self._flows.tree(self._flow_id)
        leaves = list(_leaves(tree))
        for path, step in sorted(leaves, key=lambda leaf: leaf[1].ended_ms or leaf[1].started_ms):
            self._tell_step(path, step)
        report = tree.report
        if report.state in FINAL_STATES:
            took, error = span(report.created_ms, report.ended_ms), report.error
            self._print(Line(at_ms=report.ended_ms, state=_end(tree), took=took, error=error))
            return 0 if report.state == "completed" else 1
        self._tell("", (report.state, report.run), Line(at_ms=_now(), state=report.state, error=report.error))
        if any(step.state in ("active", "delayed") for _, step in leaves):
            return None
        return await self._tell_waits(self._flows.provider.jobs)

    def _tell_step(self, path: str, step: StepReport) -> None:
        if step.state == "waiting" and path not in self._seen:
            return  # it has not begun, or it is told as a wait
        at_ms = step.ended_ms or step.started_ms or _now()
        took = span(step.started_ms, step.ended_ms) if step.ended_ms and step.started_ms else ""
        line = Line(
            at_ms=at_ms, state=step.state, step=path, took=took, attempts=step.attempts, error=step.error
        )
        self._tell(path, (step.state, step.attempts), line)

    def _tell(self, path: str, state: tuple[str, int], line: Line) -> None:
        if self._seen.get(path) != state:
            self._seen[path] = state
            self._print(line)

    async def _tell_waits(self, jobs: JobClient) -> int | None:
        """Print the signals that the flow waits for. Return an exit code if it waits for these or a retry
        alone, and nobody looks.
        """
        is_asleep, has_waits = True, False
        async for flow in flows_within(jobs, self._flow_id):
            is_asleep = is_asleep and flow.fields.get("state", "") in _ASLEEP
            for entry in await open_waits(jobs, flow):
                has_waits = has_waits or entry.kind in ("wait", "failed")
                if entry.kind != "wait":
                    continue  # the step that failed has a line of its own
                if (known := (flow.flow_id, entry.place, entry.started_ms)) not in self._waits:
                    self._waits.add(known)
                    self._print(_wait_of(flow, entry))
        return _WAITS if is_asleep and has_waits and not sys.stdout.isatty() else None

    def _print(self, line: Line) -> None:
        if self._as_json:
            write_json(line)
            return
        parts = [moment(line.at_ms), line.step or self._flow_id, line.state.replace("_", " ")]
        if line.took:
            parts.append(line.took)
        if line.attempts:
            parts.append(f"{line.attempts} failed attempt{'s' if line.attempts > 1 else ''}")
        if line.waits_for:
            parts.append(
                f"for {line.by} {line.waits_for}: "
                f"eventbus flows {line.by} {line.flow_id} {line.waits_for} JSON"
            )
        if line.error:
            parts.append(line.error)
        say("  ".join(map(printable, parts)), flush=True)


def follow_flow(
    flow_id: FlowArgument,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print an object on a line for each.")] = False,
    url: UrlOption = None,
) -> None:
    """Print what becomes of a flow and its steps until it ends: 0 if it completed, 1 if not.

    Where the output is no terminal, it ends with 3 as soon as the flow only waits for a signal, or for a
    retry.
    """
    code = ask_flows(url, lambda flows: Follower(flows, flow_id, as_json=as_json).follow(), reads_only=True)
    raise typer.Exit(code)


def _leaves(tree: FlowTree, path: str = "") -> Iterator[tuple[str, StepReport]]:
    """Yield the steps that are no sub-workflows, each with its path. Of several runs of a sub-workflow the
    last one counts.
    """
    for name, step in tree.report.steps.items():
        nested = tree.nested.get(name)
        if nested:
            yield from _leaves(nested[-1], f"{path}{name}/")
        else:
            yield f"{path}{name}", step


def _end(tree: FlowTree) -> str:
    rollback = tree.report.rollback
    return tree.report.state + (f", rollback {rollback}" if rollback != "none" else "")


def _wait_of(flow: FlowRecord, entry: Entry) -> Line:
    step = f"{entry.name}@{entry.place}" if flow.message.durable else entry.place
    return Line(
        at_ms=entry.started_ms,
        state="waiting",
        step=step,
        flow_id=flow.flow_id,
        waits_for=entry.name,
        by="trigger" if flow.message.machine else "signal",
    )


def _now() -> int:
    return round(clock.now() * 1000)
