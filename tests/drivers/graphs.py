"""A place for the run of a graph: functions of the test, a journal in memory that is as slow as the test
wants it, and children that end when the test says so.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from eventbus.lowlevel import Outcome
from workflows import Workflow
from workflows.definition.codecs import Codecs
from workflows.definition.flow_tools import FlowFacts
from workflows.execution.attempt import PATIENCE
from workflows.execution.environment import Environment
from workflows.execution.graph_entries import restore_graph
from workflows.execution.graph_run import GraphRun
from workflows.execution.graph_surroundings import StepChild
from workflows.execution.step_run import StepRun
from workflows.inline.flow import InlineSurroundings
from workflows.inline.memory_recorder import MemoryRecorder
from workflows.records.entries import Entry
from workflows.records.graph_history import read_graph
from workflows.records.records import FlowMessage

__all__ = ["GraphPlace", "Journal"]


class Journal(MemoryRecorder):
    """Records in memory. An entry whose name is in `gates` waits for that, one in `refuses` raises it, and
    one of a step in `ticks` takes as many rounds of the event loop.
    """

    doubts: Collection[str] = ()
    has_news = False

    def __init__(self, workflow: Workflow[Any, Any]) -> None:
        names = tuple(workflow.steps)
        super().__init__([Entry(kind="run", run=1, version=workflow.version, steps=names)])
        self.recorded: list[str] = []
        """Each step with its state, such as `first completed`."""
        self.gates: dict[str, asyncio.Event] = defaultdict(_opened)
        self.refuses: dict[str, Exception] = {}
        self.ticks: Mapping[str, int] = {}
        self.note: Callable[[Entry], None] = lambda _: None
        """Called with each entry before it is recorded."""

    async def append(
        self, entries: Sequence[Entry], *, live: Mapping[str, str] | None = None, taken: Sequence[str] = ()
    ) -> None:
        """Record slowly."""
        (entry,) = entries
        name = f"{entry.place} {_state_of(entry)}"
        self.note(entry)
        await self.gates[name].wait()
        for _ in range(self.ticks.get(entry.place, 0)):
            await asyncio.sleep(0)
        if name in self.refuses:
            raise self.refuses[name]
        await super().append(entries, live=live, taken=taken)
        self.recorded.append(name)

    async def stop_failed(self, run: StepRun, *, is_last: bool) -> None:
        """Do nothing: the run halts by itself."""


class GraphPlace(InlineSurroundings):
    """Where the steps of `workflow` run: waits of at most `longest` seconds stay here. It has no children, or
    those that `begin_child` begins.
    """

    def __init__(
        self,
        workflow: Workflow[Any, Any],
        *,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        begin_child: Callable[[StepChild], Awaitable[tuple[str, str]]] | None = None,
    ) -> None:
        """`begin_child` runs a child to its end, and returns its state and its text."""
        self.workflow = workflow
        self.journal = Journal(workflow)
        self.longest = 1.0
        self.are_here = False
        self.children: dict[str, asyncio.Task[Outcome]] = {}
        self._begin_child = begin_child
        self._message = FlowMessage(input=msgspec.Raw(b"null"))
        self._environment = Environment(sleep=sleep)

    def open(self, *, patience: float = PATIENCE) -> GraphRun:
        """Return a run that goes on with what is recorded."""
        history = read_graph(self.journal.entries, self._message)
        state = restore_graph(self.workflow, history, (), self.journal.clock.now_ms)
        super().__init__(
            self.workflow,
            Codecs(self.workflow),
            b"null",
            FlowFacts(flow_id="w~1"),
            self._environment,
            self.journal,
            state,
            is_open=False,
        )
        return GraphRun(state, self.journal, self, self, known=history.open_children, patience=patience)

    def holds(self, delay: float, *, listens: bool = False) -> bool:
        """Tell whether a wait is short."""
        del listens
        return delay <= self.longest

    async def find_ended(self, ids: Sequence[str]) -> dict[str, Outcome]:
        """Return the ends of children."""
        return {child: self.children[child].result() for child in ids if self.children[child].done()}

    def add(self, child: StepChild) -> asyncio.Future[Outcome]:
        """Begin a child, in a task of its own."""
        assert child.id not in self.children, "it is begun once"
        assert self._begin_child is not None, child.id
        self.children[child.id] = asyncio.create_task(_outcome(child.id, self._begin_child(child)))
        return self.end_of(child.id)

    def end_of(self, child: str) -> asyncio.Future[Outcome]:
        """Return a future of the end of a child, which nobody but its awaiter cancels."""
        task = self.children[child]
        end: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        task.add_done_callback(lambda _: end.done() or end.set_result(task.result()))
        return end

    async def is_stopping(self) -> bool:
        """Tell that nobody stops the flow."""
        return False


async def _outcome(child_id: str, work: Awaitable[tuple[str, str]]) -> Outcome:
    return Outcome(child_id, *await work)


def _opened() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


def _state_of(entry: Entry) -> str:
    if entry.kind == "cut":
        return "unknown" if entry.is_lost else "cancelled"
    return {"step": "completed", "try": "delayed", "child": "begun"}.get(entry.kind, entry.kind)
