"""What the journal of a step graph says: which steps ended and how, in one run of the flow.

What must always hold: a step counts that was recorded in this run, or was kept from the run that
`FlowMessage.kept` names, whole or with some of its items; the last entry of a step is the one that counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from workflows.records.entries import Entry, entries_of_run
from workflows.records.ids import item_name, list_name, split_item
from workflows.records.records import FlowMessage, StepRecord
from workflows.records.report import StepState

ENDED = ("completed", "skipped", "failed")
"""The states of a step whose end is recorded."""
_OF_STEPS = ("step", "failed", "try", "cut", "child", "sleep", "wait", "each")
_OPEN = ("sleep", "wait")


class StepHistory(msgspec.Struct):
    """One step as the journal has it; it is `sleeping` while it waits for a time or a signal. `errors` are
    the records of the attempts that another attempt followed.
    """

    step: str
    state: StepState = "waiting"
    last: Entry = msgspec.field(default_factory=lambda: Entry(kind="step"))
    errors: list[str] = []


class GraphHistory(msgspec.Struct):
    """One run of a graph. `order` names the steps that ended, in the order in which they were recorded.

    `undone` are the outcomes of rollbacks: path -> record of the error, empty on success. `names` are all
    steps of the graph, in the order of definition.
    """

    version: str = ""
    names: Sequence[str] = ()
    is_begun: bool = False
    """The run has recorded something."""
    mode: str = ""
    """`local`, or `spread` if the steps are jobs of their own; empty if that is not decided yet."""
    is_stopped: bool = False
    """An activation that knew of the flow's stop has recorded which steps are in doubt."""
    stopper: str = ""
    """The step that made the flow fail, or `COMPLETED`, as that activation recorded it."""
    steps: dict[str, StepHistory] = {}
    children: dict[str, Entry] = {}
    """The last entry about the job or flow that runs a step elsewhere, by the place of the step."""
    lists: dict[str, Entry] = {}
    """The entry with the items of each step that runs for each item of a list; `steps` and `order` have the
    items, too.
    """
    order: dict[str, None] = {}
    undone: dict[str, str] = {}
    hooks: set[str] = set()

    @property
    def open_children(self) -> dict[str, Entry]:
        """Those of `children` whose ends are not recorded."""
        if not self.children:  # as in most flows
            return {}
        ended = {name for name, step in self.steps.items() if step.state in ENDED or step.last.child}
        return {place: entry for place, entry in self.children.items() if place not in ended}

    @property
    def step_order(self) -> list[str]:
        """The steps that ended, in the order of `order`, without items."""
        return [name for name in self.order if split_item(name)[1] < 0]

    @property
    def failed(self) -> StepHistory | None:
        """The first step whose final failure stops the flow."""
        return next((self.steps[name] for name in self.order if self.steps[name].last.kind == "failed"), None)

    @property
    def is_local(self) -> bool:
        """Whether the journal has the steps of this run."""
        return self.mode == "local"

    def note(self, entry: Entry) -> None:
        """Take over an entry that was recorded meanwhile, about a step."""
        _note_step(self, entry)

    def count_items(self, step: str) -> tuple[int, int]:
        """Return how many items of a step have ended, and how many there are; (0, 0) before it has begun."""
        begun = self.lists.get(step)
        if begun is None:
            return 0, 0
        total = len(msgspec.json.decode(begun.result, type=list[msgspec.Raw]))
        known = [self.steps.get(item_name(step, index)) for index in range(total)]
        return sum(each is not None and each.state in ENDED for each in known), total

    def item_states(self, step: str) -> dict[str, int]:
        """Return how many items of a step are in each state, as far as it is recorded; those of which nothing
        is, wait.
        """
        total = self.count_items(step)[1]
        known = [self.steps.get(item_name(step, index)) for index in range(total)]
        return dict(Counter("waiting" if each is None else each.state for each in known))

    def completed(self) -> list[str]:
        """Return the steps that completed, in the order of their ends; without skipped ones."""
        return [name for name in self.step_order if self.steps[name].state == "completed"]


def read_graph(entries: Iterable[Entry], message: FlowMessage) -> GraphHistory:
    """Return what the entries say about the run of `message`."""
    found = GraphHistory(mode=message.mode if message.bare else "spread")
    for run, entry in entries_of_run(entries, message.run):
        if entry.kind in _OF_STEPS:
            if run == message.run_of(list_name(entry.place) if entry.kind == "each" else entry.place):
                _note_step(found, entry)
        elif run == message.run:
            _note_run(found, entry)
    return found


def record_of(entry: Entry) -> StepRecord:
    """Return the record of a completed or skipped step from its entry."""
    record = StepRecord(result=entry.result, skipped=entry.skipped, traceparent=entry.traceparent)
    if entry.failure:  # the absent value of a record is another object, by which its writer knows it
        record.error = entry.error
    return record


def _note_step(found: GraphHistory, entry: Entry) -> None:
    name = entry.place
    if entry.kind == "child":
        found.children[name] = entry
        return
    step = found.steps.get(name)
    if step is None:
        step = found.steps[name] = StepHistory(name)
    if entry.kind == "each":
        found.lists[name] = entry
        step.state, step.last = "active", entry
        return
    if entry.kind == "try":
        if entry.failure:  # otherwise it was put off
            step.errors.append(entry.failure)
    elif entry.kind not in _OPEN:
        found.order.pop(name, None)  # it was cut, and ran again
        found.order[name] = None
    step.state, step.last = _state_of(entry), entry


def _state_of(entry: Entry) -> StepState:
    if entry.kind == "step" and not entry.failure:
        return "skipped" if entry.skipped else "completed"
    if entry.kind in _OPEN:
        return "sleeping"
    if entry.kind == "cut":
        return "unknown" if entry.is_lost else "cancelled"
    if entry.kind in ("failed", "step"):
        return "unknown" if entry.is_lost else "failed"
    return "delayed"


def _note_run(found: GraphHistory, entry: Entry) -> None:
    if entry.kind in ("run", "spread"):
        found.is_begun = True
        found.mode = "spread" if entry.kind == "spread" else "local"
        found.version, found.names = entry.version, entry.steps
    elif entry.kind == "stop":
        found.is_stopped, found.stopper = True, entry.name
    elif entry.kind == "undo":
        found.undone[entry.place] = entry.failure
    elif entry.kind == "hook":
        found.hooks.add(entry.place)
