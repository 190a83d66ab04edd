"""Workers elsewhere, for a flow whose journal is in the test: they run the children that the flow has
started.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import msgspec

from eventbus.lowlevel import Failure, Outcome, describe
from workflows.definition.flow_definition import AnyDefinition
from workflows.execution.surroundings import Child
from workflows.records.ids import is_nested
from workflows.records.records import StepRecord, describe_flow, encode_step

__all__ = ["Fleet"]


class Fleet:
    """Children by id, with their ends. It lives on when a worker of the flow dies."""

    are_here = False

    def __init__(self, flow_id: str, run: Callable[[str, int], int]) -> None:
        """Have `run(name, number)` give the end of a child, a number or an error that the flow declares."""
        self.children: dict[str, Child] = {}
        self.ends: dict[str, Outcome] = {}
        self.ran: Counter[str] = Counter()
        self._flow_id = flow_id
        self._run = run
        self._waiting: dict[str, list[asyncio.Future[Outcome]]] = {}

    @property
    def open(self) -> list[str]:
        """The ids of the children that have not ended."""
        return [each for each in self.children if each not in self.ends]

    def check(self, workflow: AnyDefinition) -> None:
        """Know every workflow."""

    def follow(self, child: Child) -> asyncio.Future[Outcome]:
        """Add a child, unless it is there. One in three ends while the flow runs, one in three before it
        waits.
        """
        number = msgspec.json.decode(child.given)
        if child.id not in self.children:
            self.children[child.id] = child
            if number % 3 == 0:
                self.end(child.id)
            elif number % 3 == 1:
                asyncio.get_running_loop().call_soon(self.end, child.id)
        return self.follow_lost(child.id)

    def follow_lost(self, child_id: str) -> asyncio.Future[Outcome]:
        """Return the future of the end of a child; one that is not there never was."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        if child_id not in self.children:
            future.set_result(Outcome(child_id, "unknown", ""))
        elif child_id in self.ends:
            future.set_result(self.ends[child_id])
        else:
            self._waiting.setdefault(child_id, []).append(future)
        return future

    async def cancel(self, child_id: str, reason: str) -> None:
        """Stop a child; it ends a little later."""
        if child_id in self.children and child_id not in self.ends:
            wish = msgspec.json.encode(Failure("JobCancelled", reason)).decode()
            asyncio.get_running_loop().call_soon(self._tell, Outcome(child_id, "cancelled", wish))

    def end(self, child_id: str) -> None:
        """Run a child that has not ended to its end."""
        if child_id in self.ends:
            return
        child = self.children[child_id]
        name = child.task.name if child.task is not None else getattr(child.workflow, "name", "")
        self.ran[child_id] += 1
        try:
            text = str(self._run(name, msgspec.json.decode(child.given)))
        except Exception as error:  # noqa: BLE001  (whatever a program of a test raises)
            self._tell(Outcome(child_id, "failed", self._failure(child, name, error)))
            return
        done = text if child.task is None else encode_step(StepRecord(result=msgspec.Raw(text.encode())))
        self._tell(Outcome(child_id, "completed", done))

    def _failure(self, child: Child, name: str, error: Exception) -> str:
        told = describe(error, attempts=1, declared=[type(error)], event=name)
        if not is_nested(child.id, self._flow_id):
            return told
        return describe_flow("failed", flow_id=child.id, workflow=name, step="inner@0", error=told)

    def _tell(self, end: Outcome) -> None:
        if self.ends.setdefault(end.job, end) is not end:
            return
        for future in self._waiting.pop(end.job, []):
            if not future.done() and not future.get_loop().is_closed():
                future.set_result(end)
