"""Maps: one call of a task for each item, at most so many at a time, here or anywhere in the fleet.

What must always hold: which items have begun follows from what is recorded, so that a replay begins the same
ones. Each end of an item lets the next one begin, up to the first error that is recorded; behind that no
further one begins. A map whose items are recorded as steps ends as it began, in its worker, also if the code
now maps anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from eventbus import DefinitionError
from eventbus.lowlevel import shown
from workflows.definition.task import Task, find_task
from workflows.functions.calls.child_call import JobCall
from workflows.functions.calls.step_call import StepCall
from workflows.functions.code_run import Call, CodeRun, Mark, Part, Scope
from workflows.functions.history import Record
from workflows.functions.origin import note_beside


class MapCall(Call[Any]):
    """Calls a task with each item."""

    __slots__ = (
        "_allowed",
        "_begun",
        "_counted",
        "_ended",
        "_is_beginning",
        "_is_local",
        "_items",
        "_keeps_errors",
        "_stops",
        "parts",
        "task",
    )

    family = "map"
    is_recorded = False

    def __init__(
        self,
        run: CodeRun,
        scope: Scope,
        task: Task[..., Any],
        items: Iterable[Any],
        *,
        limit: int,
        is_local: bool,
        keeps_errors: bool,
    ) -> None:
        """Take a position. Raises DefinitionError for a limit or a task that cannot be used, and PayloadError
        for an item.
        """
        super().__init__(run, scope, task.name)
        if (
            not isinstance(limit, int)  # pyright: ignore[reportUnnecessaryIsInstance]
            or isinstance(limit, bool)
            or limit < 1
        ):
            raise DefinitionError(
                f"expected the limit of ctx.map to be a whole number from 1 on, got: {shown(limit)}"
            )
        self._items = list(items)
        self._is_local = is_local or run.around.children.are_here or self._began_here
        if not self._is_local:
            _check_known(task)
        self.task: Task[..., Any] = task
        self._keeps_errors = keeps_errors
        self._allowed = min(limit, len(self._items))
        self._begun = self._ended = 0
        self._stops = self._is_beginning = False
        self._counted: set[str] = set()
        self.parts: list[StepCall[Any] | JobCall[Any]] = [
            self._part(index, item) for index, item in enumerate(self._items)
        ]

    @property
    def _began_here(self) -> bool:
        """Whether items are recorded as steps. Those of jobs say `child`, also where nothing can be started,
        as in a check.
        """
        return self.run.history.family_under(self.position, self.name, len(self._items)) not in ("", "child")

    def _part(self, index: int, item: Any) -> StepCall[Any] | JobCall[Any]:
        position = f"{self.position}.{index}"
        if self._is_local:
            return StepCall(self.run, self.scope, self.task, (item,), position=position)
        text = b""
        if self.run.history.recall(position, JobCall.family, self.name) is None:
            text = self.task.item_codec(self.run.max_bytes).encode(item)
        return JobCall(self.run, self.scope, self.task, text, position)

    def check(self) -> None:
        """Raise NonDeterminismError if another call, or more items, are recorded at this position."""
        history = self.run.history
        if (entry := history.at(self.position)) is not None:
            raise self.run.mismatch(self.position, entry, self.told)
        last = history.highest(self.position)
        found = history.at(f"{self.position}.{last}") if last >= 0 else None
        if last >= len(self.parts) or (last >= 0 and found is None):
            raise self.run.mismatch(
                self.position, history.first_from(f"{self.position}.{last}", 0), self.told
            )

    def start(self, begun: Record | None) -> None:
        """Begin the items that have begun, and further ones up to the limit."""
        del begun
        if not self.parts:
            self.settle([])
            return
        ended = [record for part in self.parts if (record := part.recall()) is not None]
        for record in sorted(ended, key=lambda one: one.number):
            self._counted.add(record.entry.place)
            self._count(is_failed=record.entry.kind == "failed")
        self._begin_more()

    def child_done(self, child: Part) -> None:
        """Let the next item begin, and be done with the last one."""
        self._ended += 1
        if child.position not in self._counted:
            self._counted.add(child.position)
            self._count(is_failed=child.error is not None)
        if not self._is_beginning:
            self._begin_more()

    def _count(self, *, is_failed: bool) -> None:
        """Let one more item begin, because one has ended; or none any more, because it failed."""
        if is_failed and not self._keeps_errors:
            self._stops = True
        elif not self._stops:
            self._allowed = min(self._allowed + 1, len(self.parts))

    def _begin_more(self) -> None:
        self._is_beginning = True
        while self._begun < self._allowed:
            part = self.parts[self._begun]
            self._begun += 1
            part.parent = self
            part.begin()
        self._is_beginning = False
        if self._ended == self._begun:  # nothing is left to run: all have, or one failed
            self._finish()

    def _finish(self) -> None:
        done = self.parts[: self._begun]
        error = next((part.error for part in done if part.error is not None), None)
        if error is None or self._keeps_errors:
            self.settle([part.value if part.error is None else part.error for part in done])
        else:
            note_beside(error, (part.error for part in done))
            self.settle(error=error)

    def close(self) -> None:
        """Forget all items."""
        super().close()
        for part in self.parts[: self._begun]:
            if not part.is_done:
                part.close()

    @property
    def mark(self) -> Mark:
        """How far the last of its items has come."""
        mark = self.scope.mark
        for part in self.parts[: self._begun]:
            mark = mark.merged(part.mark)
        return mark


def _check_known(task: Task[..., Any]) -> None:
    known = find_task(task.key)
    options = (task.function, task.name, task.retry, task.timeout)
    if known is None or (known.function, known.name, known.retry, known.timeout) != options:
        raise DefinitionError(
            f"{task.where} would be run by any worker, which finds it by its module and name and has the "
            "options of its decorator alone; decorate it with @task, without using(...), or map it in this "
            "worker: local=True"
        )
