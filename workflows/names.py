"""The names of workflows and steps, and the ids and queues that are made of them.

    queue of a workflow         workflow.<name>
    queue of its steps          workflow.<name>.steps
    flow id                     <workflow>~<20 hex>
    member job id               <flow id>/<run>/<step>/<index>
    flow id of a sub-workflow   <member job id>/<workflow>~<index>

Always holds: a name that passed its check holds neither `~` nor `/`, so that each id reads back
as what it was made of, and no process needs a registry to tell whose flow it is. No two
workflows share a queue.
"""

from __future__ import annotations

import re
import secrets

import msgspec

from eventbus import DefinitionError
from eventbus.lowlevel import shown

__all__ = [
    "ID_LENGTH",
    "Member",
    "check_flow_id",
    "check_step_name",
    "check_workflow_name",
    "flow_queue",
    "member_id",
    "nested_flow_id",
    "new_flow_id",
    "parent_of",
    "parse_member",
    "steps_queue",
    "workflow_of",
]

ID_LENGTH = 512
"""What the engine takes as the id of a job."""

_LENGTH = 128
_STEP = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]*")
_WORKFLOW = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")
_STEPS = ".steps"
_NUMBER = r"(?:0|[1-9][0-9]*)"
_MEMBER = re.compile(rf"(.+)/({_NUMBER})/({_STEP.pattern})/({_NUMBER})", re.DOTALL)
_TOP = re.compile(rf"({_WORKFLOW.pattern})~([0-9a-f]{{20}})")
_NESTED = re.compile(rf"({_WORKFLOW.pattern})~({_NUMBER})")


class Member(msgspec.Struct, frozen=True):
    """What the id of a member job says: the flow, its run, the step, and which job of that step."""

    flow_id: str
    run: int
    step: str
    index: int


def check_workflow_name(name: object) -> str:
    """Return `name` if it can name a workflow, such as `"checkout"` or `"order.return"`.

    At most 128 letters, digits, `_`, `.` and `-` (ASCII), a letter or digit first. Raises
    DefinitionError for anything else, and for a name that ends in `.steps`: its queue would
    be that of another workflow's steps.
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

    Raises DefinitionError, which names the workflow, for anything else.
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


def steps_queue(workflow: str) -> str:
    """Return the queue of the step jobs of a workflow."""
    return f"workflow.{workflow}{_STEPS}"


def new_flow_id(workflow: str) -> str:
    """Return a fresh id for a flow of `workflow`."""
    return f"{workflow}~{secrets.token_hex(10)}"


def nested_flow_id(member: str, workflow: str, index: int = 0) -> str:
    """Return the id of the flow of a sub-workflow that the step job `member` starts.

    The same for the same arguments, so that no crash starts it twice. Raises DefinitionError
    when the id would be too long.
    """
    return _fitting(f"{member}/{workflow}~{index}")


def member_id(flow_id: str, run: int, step: str, index: int = 0) -> str:
    """Return the id of the job of `step` in run number `run` of a flow.

    Raises DefinitionError when it would be longer than an id may be.
    """
    return _fitting(f"{flow_id}/{run}/{step}/{index}")


def parse_member(job_id: str) -> Member:
    """Return what the id of a member job says. Raises DefinitionError if it is no such id."""
    member = _read_member(job_id)
    if member is None or _workflow_of(member.flow_id) is None:
        raise DefinitionError(
            "expected the id of a step's job, such as 'checkout~0123456789abcdef0123/1/charge/0', "
            f"got: {shown(job_id)}"
        )
    return member


def check_flow_id(flow_id: object) -> str:
    """Return `flow_id` if it is the id of a flow, of a nested one too. Raises DefinitionError otherwise."""
    if isinstance(flow_id, str) and len(flow_id) <= ID_LENGTH and _workflow_of(flow_id) is not None:
        return flow_id
    raise DefinitionError(
        f"expected the id of a flow, such as 'checkout~0123456789abcdef0123', got: {shown(flow_id)}"
    )


def workflow_of(flow_id: str) -> str:
    """Return the name of the workflow that a flow is a run of. Raises DefinitionError if it is no flow id."""
    return check_flow_id(flow_id).rpartition("/")[2].partition("~")[0]


def parent_of(flow_id: str) -> Member | None:
    """Return the step job that started a nested flow, None for one that was executed by a caller."""
    member = check_flow_id(flow_id).rpartition("/")[0]
    return _read_member(member) if member else None


def _workflow_of(flow_id: str) -> str | None:
    """Return the workflow's name if every part of the id is well formed, from the last to the first."""
    member, _, last = flow_id.rpartition("/")
    name = last.partition("~")[0]
    while member:
        if not _NESTED.fullmatch(last) or (outer := _read_member(member)) is None:
            return None
        member, _, last = outer.flow_id.rpartition("/")
    return name if _TOP.fullmatch(last) else None


def _read_member(job_id: str) -> Member | None:
    found = _MEMBER.fullmatch(job_id) if len(job_id) <= ID_LENGTH else None
    return None if found is None else Member(found[1], int(found[2]), found[3], int(found[4]))


def _fitting(job_id: str) -> str:
    if len(job_id) > ID_LENGTH:
        raise DefinitionError(
            f"the id of a job of a flow would have {len(job_id)} characters, more than {ID_LENGTH}: "
            f"{shown(job_id)}; nest workflows less deep, or give them and their steps shorter names"
        )
    return job_id
