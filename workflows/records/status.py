"""The state of a flow, read from the record of its root job: the only place that maps one to the other.

the root is added, no worker has seen the flow                          pending
a worker has it, or will; or other jobs of the flow run                 running
it rests until a time comes, or somebody sends a signal or a trigger    waiting
it is parked: no worker that runs knows its version                     waiting
it has a stop                                                           rolling_back
it has ended                                                            completed | failed | cancelled
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from eventbus.lowlevel import TreeMember, TreePage
from workflows.errors import Rollback
from workflows.records.records import decode_message, error_text
from workflows.records.report import FlowStatus

_UNSEEN = ("waiting", "delayed", "waiting-children")


class _Failure(msgspec.Struct):
    """The part of a flow's failure that its state needs; absent fields have their default."""

    type: str = ""
    rollback: Rollback = "none"


def status_of(root: Mapping[str, str], *, is_seen: bool = True) -> FlowStatus:
    """Return the state of the flow whose root job has these fields.

    `is_seen` tells whether a worker has claimed any job of the flow; see `is_seen_in`.
    """
    state = root.get("state", "")
    if state == "completed":
        return FlowStatus("completed")
    if state == "failed" or state == "cancelled":  # noqa: PLR1714  (narrows the type)
        return FlowStatus(state, _rollback(root))
    if root.get("stop"):
        return FlowStatus("rolling_back")
    # What was claimed once and is due later sleeps.
    is_due = number_in(root, "due") <= number_in(root, "now") or root.get("attempts") or root.get("claimed")
    if root.get("pending") or not is_due or not is_seen:
        return FlowStatus("pending")
    return FlowStatus("waiting" if state == "parked" or _is_asleep(root, state) else "running")


def _is_asleep(root: Mapping[str, str], state: str) -> bool:
    """Tell whether nothing is done for a flow until a time comes, or somebody acts: whether its root rests
    and waits for that.

    A root that rests for other jobs (`waited`) waits for nobody: they run. A function that waits for a
    signal beside them does.
    A state machine that rests is waiting, whatever for. The root of a graph whose steps are jobs rests while
    they run.
    """
    if state not in ("delayed", "waiting-children"):
        return False
    try:
        message = decode_message(root.get("body", ""))
    except (msgspec.MsgspecError, UnicodeError):
        return False
    if message.machine or (message.durable and root.get("listens")):
        return True
    is_alone = message.durable or (message.bare and root.get("on") == "wake")
    return is_alone and not root.get("waited")


def is_seen_in(page: TreePage, members: Sequence[TreeMember]) -> bool:
    """Tell whether a worker has claimed any job of a flow, from its root and the first of its `members`.

    If the root adds the steps itself (in a bare flow, and in a retry by hand), the root is claimed first.
    Otherwise the steps are claimed first. All of them are due at the same moment and are claimed in the order
    in which they were added, so the record of the first member is enough, however many steps there are.
    """
    root = page.root
    is_claimed = any(root.get(field) for field in ("attempts", "stalls", "claimed"))
    if is_claimed or page.saved or root.get("state") not in ("waiting", "delayed", "waiting-children"):
        return True
    if number_in(root, "run") > 1:
        return False
    if not members:
        return root.get("state") == "waiting-children"  # it waits for members, but their list is lost
    step = members[0]
    return bool(step.claimed or step.attempts or step.stalls) or step.state not in _UNSEEN


def error_in(root: Mapping[str, str], state: str) -> str:
    """Return the text of the error of the flow whose root job has these fields, or why it is parked; empty
    otherwise.
    """
    if root.get("state") == "parked":
        return root.get("why", "")
    return error_text(root.get("text", "")) if state in ("failed", "cancelled") else ""


def number_in(fields: Mapping[str, str], name: str) -> int:
    """Return a number of a record; 0 if it is absent or damaged."""
    text = fields.get(name, "")
    return int(text) if text.isdecimal() else 0


def _rollback(root: Mapping[str, str]) -> Rollback:
    """Return the outcome of the rollbacks; incomplete if a stopped flow recorded none (its workers died)."""
    try:
        said = msgspec.json.decode(root.get("text", ""), type=_Failure)
    except (msgspec.MsgspecError, UnicodeError):
        said = _Failure()
    if said.type in ("StepError", "FlowTimeout", "FlowCancelled"):
        return said.rollback
    return "incomplete" if root.get("stop") else "none"
