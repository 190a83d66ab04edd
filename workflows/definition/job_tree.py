"""The jobs of a flow, as the tree that is added to the server: pure, the same wherever it is made.

A caller adds a whole flow, a worker adds the steps of a flow that was added bare, and a step adds the root of
a sub-workflow's flow. What must always hold: ids follow from the flow's id, its run and the steps' names alone, so that
adding the same flow again adds nothing.
"""

from __future__ import annotations

from typing import Any

from eventbus.lowlevel import JOIN, Member, Tree
from workflows.definition.plan import FlowPlan
from workflows.definition.workflow import Workflow
from workflows.records.ids import flow_queue, member_id, steps_queue
from workflows.records.records import FlowMessage, encode_message

__all__ = ["last_members", "members_of", "nested_root", "tree_of"]


def tree_of(
    workflow: Workflow[Any, Any],
    flow_id: str,
    message: FlowMessage,
    *,
    delay: float,
    key: str = "",
    print: str = "",  # noqa: A002  (as `Tree` calls it)
    meeting: int = JOIN,
) -> Tree:
    """Return a new flow with all its steps. `delay` in seconds; `key`, `print` and `meeting` as `Tree` has them."""
    return Tree(
        flow_id,
        flow_queue(workflow.name),
        encode_message(message),
        members_of(workflow, flow_id, message, delay=delay),
        last_members(workflow, flow_id, message),
        priority=message.priority,
        delay=delay,
        timeout=message.timeout or 0.0,
        key=key,
        print=print,
        meeting=meeting,
    )


def nested_root(workflow: Workflow[Any, Any], flow_id: str, message: FlowMessage) -> Member:
    """Return the root of the flow of a sub-workflow, which adds its steps itself when it runs."""
    return Member(
        flow_id,
        flow_queue(workflow.name),
        body=encode_message(message),
        priority=message.priority,
        on="wake",
        up="wake",
        is_root=True,
        timeout=message.timeout or 0.0,
    )


def members_of(
    workflow: Workflow[Any, Any], flow_id: str, message: FlowMessage, *, delay: float = 0.0
) -> list[Member]:
    """Return the jobs of a flow's steps, without those that a retry by hand kept: these exist already.

    `delay` in seconds is for the steps that need no other.
    """
    queue, run = steps_queue(workflow.name), message.run
    return [
        Member(
            member_id(flow_id, run, node.step),
            queue,
            needs=[member_id(flow_id, run, needed) for needed in node.needs],
            priority=message.priority,
            delay=0.0 if node.needs else delay,
        )
        for node in _plan_of(workflow, message).nodes
    ]


def last_members(workflow: Workflow[Any, Any], flow_id: str, message: FlowMessage) -> list[str]:
    """Return the ids of the jobs that no other job of the flow needs: its root waits for these."""
    last = _plan_of(workflow, message).last
    return [member_id(flow_id, message.run, step) for step in last]


def _plan_of(workflow: Workflow[Any, Any], message: FlowMessage) -> FlowPlan:
    """Return the plan of what is left to run."""
    return workflow.plan.without(message.kept) if message.kept else workflow.plan
