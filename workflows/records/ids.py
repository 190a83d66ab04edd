"""The names of workflows and steps, and the ids and queues that are made from them.

    queue of a workflow         workflow.<name>
    queue of its steps          workflow.<name>.steps
    queue of a limited step     workflow.<name>.steps/<step>
    item of a step              <step>[<number from 0>]
    flow id                     <workflow>~<20 hex>
    member job id               <flow id>/<run>/<step>/<index>
    flow id of a sub-workflow   <member job id>/<workflow>~<index>

What must always hold: a checked name contains neither `~` nor `/`, so that every id can be parsed into its
parts, and no process needs a registry to tell which workflow a flow belongs to. No two workflows share a
queue.
"""

from __future__ import annotations

import re

import msgspec

from eventbus import DefinitionError, UnknownJob
from eventbus.lowlevel import JOB_ID_LENGTH, chance, shown

_LENGTH = 128
_QUEUE_LENGTH = 255
_STEP = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]*")
_WORKFLOW = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")
_STEPS = ".steps"
_NUMBER = r"(?:0|[1-9][0-9]*)"
_MEMBER = re.compile(rf"(.+)/({_NUMBER})/({_STEP.pattern})/({_NUMBER})", re.DOTALL)
_TOP = re.compile(rf"({_WORKFLOW.pattern})~([0-9a-f]{{20}})")
_NESTED = re.compile(rf"({_WORKFLOW.pattern})~({_NUMBER})")


class StepJobId(msgspec.Struct, frozen=True):
    """The parts of a member job's id: the flow, its run, the step, and the number of the step's job."""

    flow_id: str
    run: int
    step: str
    index: int

    @property
    def name(self) -> str:
        """The name of the step, or of its item: the items of an each step have the numbers from 1 on."""
        return item_name(self.step, self.index - 1) if self.index else self.step


def check_workflow_name(name: object) -> str:
    """Return `name` if it can name a workflow, such as `"checkout"` or `"order.return"`.

    A name has 1 to 128 letters, digits, `_`, `.` and `-` (ASCII), and begins with a letter or digit. Raises
    DefinitionError for anything else, and for a name that ends in `.steps`, because its queue would be the
    queue of another workflow's steps.
    """
    if not isinstance(name, str) or len(name) > _LENGTH or not _WORKFLOW.fullmatch(name):
        raise DefinitionError(
            f"expected the name of a workflow of 1 to {_LENGTH} letters, digits, '_', '.' and '-', "
            f"beginning with a letter or digit, got: {shown(name)}"
        )
    if name.endswith(_STEPS):
        raise DefinitionError(
            f"expected the name of a workflow not to end in {_STEPS!r}, which is for the queues of steps, "
            f"got: {shown(name)}"
        )
    return name


def check_step_name(name: object, workflow: str = "") -> str:
    """Return `name` if it can name a step: the pattern `[a-zA-Z0-9][a-zA-Z0-9_-]{0,127}`.

    Raises DefinitionError, naming the workflow, for anything else.
    """
    if isinstance(name, str) and len(name) <= _LENGTH and _STEP.fullmatch(name):
        return name
    owner = f" of workflow {workflow!r}" if workflow else ""
    if isinstance(name, str) and name.startswith("__"):
        reason = "names that begin with '__' are reserved"
    else:
        reason = 'give another with name="..."'
    raise DefinitionError(
        f"expected the name of a step{owner} of 1 to {_LENGTH} letters, digits, '_' and '-', "
        f"beginning with a letter or digit, got: {shown(name)}; {reason}"
    )


def flow_queue(workflow: str) -> str:
    """Return the queue of the root jobs of a workflow."""
    return f"workflow.{workflow}"


def steps_queue(workflow: str, limited: str = "") -> str:
    """Return the queue of the step jobs of a workflow, or the one of its step `limited`, which has a limit of
    its own.

    Raises DefinitionError if the name of the queue would be too long.
    """
    queue = f"workflow.{workflow}{_STEPS}"
    if not limited:
        return queue
    queue = f"{queue}/{limited}"
    if len(queue) > _QUEUE_LENGTH:
        raise DefinitionError(
            f"the queue of step {limited!r} of workflow {workflow!r}, by which it is limited or paused, "
            f"would have a name of {len(queue)} characters, more than {_QUEUE_LENGTH}; give workflow and "
            "step shorter names"
        )
    return queue


def split_queue(queue: str) -> tuple[str, str | None]:
    """Return the workflow of a queue, and None for the queue of its flows, else the limited step or an empty
    text.
    """
    name = queue.removeprefix(flow_queue(""))
    if name.endswith(_STEPS):
        return name.removesuffix(_STEPS), ""
    name, between, step = name.rpartition(f"{_STEPS}/")
    return (name, step) if between else (step, None)


def is_shelf(queue: str) -> bool:
    """Tell whether a queue is that of one step."""
    return f"{_STEPS}/" in queue and queue.startswith(flow_queue(""))


def item_name(step: str, index: int) -> str:
    """Return the name of an item of a step that runs for each item of a list."""
    return f"{step}[{index}]"


def list_name(step: str) -> str:
    """Return the name under which a retry by hand keeps the list of a step's items."""
    return f"{step}[]"


def split_item(name: str) -> tuple[str, int]:
    """Return the step and the number of an item, and -1 for a whole step and for `list_name`."""
    step, bracket, number = name.partition("[")
    return (step, int(number[:-1] or -1)) if bracket else (name, -1)


def new_flow_id(workflow: str) -> str:
    """Return a new id for a flow of `workflow`; it is random."""
    return f"{workflow}~{chance.token(10)}"


def nested_flow_id(member: str, workflow: str, index: int = 0) -> str:
    """Return the id of the flow of a sub-workflow that the step job `member` starts.

    The same arguments always give the same id, so that no crash starts the flow twice. Raises DefinitionError
    if the id would be too long.
    """
    return _fitting(f"{member}/{workflow}~{index}")


def member_id(flow_id: str, run: int, step: str, index: int = 0) -> str:
    """Return the id of the job of `step` in run number `run` of a flow.

    Raises DefinitionError if the id would be too long.
    """
    return _fitting(f"{flow_id}/{run}/{step}/{index}")


def find_member(job_id: str) -> StepJobId | None:
    """Return the parts of a member job's id; None if it is not one."""
    member = read_place(job_id)
    return None if member is None or _workflow_of(member.flow_id) is None else member


def parse_member(job_id: str) -> StepJobId:
    """Return the parts of a member job's id. Raises DefinitionError if it is not one."""
    member = find_member(job_id)
    if member is None:
        raise DefinitionError(
            "expected the id of a step's job, such as 'checkout~0123456789abcdef0123/1/charge/0', "
            f"got: {shown(job_id)}"
        )
    return member


def check_flow_id(flow_id: object) -> str:
    """Return `flow_id` if it is the id of a flow, nested or not.

    Raises UnknownJob for other text, because it may come from outside, and DefinitionError for a value that
    is not a str.
    """
    hint = "the id of a flow, such as 'checkout~0123456789abcdef0123'"
    if not isinstance(flow_id, str):
        raise DefinitionError(f"expected {hint}, got: {shown(flow_id)}")
    if len(flow_id) <= JOB_ID_LENGTH and _workflow_of(flow_id) is not None:
        return flow_id
    raise UnknownJob(flow_id, f"{shown(flow_id)} is no id of a flow; expected {hint}")


def workflow_of(flow_id: str) -> str:
    """Return the name of a flow's workflow. Raises the errors of `check_flow_id`."""
    return check_flow_id(flow_id).rpartition("/")[2].partition("~")[0]


def parent_of(flow_id: str) -> StepJobId | None:
    """Return the step job that started a nested flow; None for a flow that a caller executed."""
    member = starter_of(check_flow_id(flow_id))
    return read_place(member) if member else None


def is_nested(job_id: str, flow_id: str) -> bool:
    """Say whether a member of a flow is the root of a sub-workflow's flow, not a step's job."""
    return "~" in job_id.removeprefix(flow_id)


def starter_of(flow_id: str) -> str:
    """Return the id of the step job that started a nested flow, empty for a flow that a caller executed."""
    return flow_id.rpartition("/")[0]


def _workflow_of(flow_id: str) -> str | None:
    """Return the workflow's name if every part of the id is well formed; None otherwise."""
    member, _, last = flow_id.rpartition("/")
    name = last.partition("~")[0]
    while member:
        if not _NESTED.fullmatch(last) or (outer := read_place(member)) is None:
            return None
        member, _, last = outer.flow_id.rpartition("/")
    return name if _TOP.fullmatch(last) else None


def read_place(job_id: str) -> StepJobId | None:
    """Return the parts of a step job's id; None if it is not one. The flow's id in it is not checked."""
    found = _MEMBER.fullmatch(job_id) if len(job_id) <= JOB_ID_LENGTH else None
    return None if found is None else StepJobId(found[1], int(found[2]), found[3], int(found[4]))


def _fitting(job_id: str) -> str:
    if len(job_id) > JOB_ID_LENGTH:
        raise DefinitionError(
            f"the id of a job of a flow would have {len(job_id)} characters, more than {JOB_ID_LENGTH}: "
            f"{shown(job_id)}; nest workflows less deep, or give them and their steps shorter names"
        )
    return job_id
