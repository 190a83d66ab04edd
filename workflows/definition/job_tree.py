"""The jobs of a flow, as the tree that is added to the server: pure, the same wherever it is made.

A caller adds a whole flow, a worker adds the steps of a flow that was added bare, and a step adds the root of
a sub-workflow's flow. What must always hold: ids follow from the flow's id, its run and the steps' names
alone, so that adding the same flow again adds nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from eventbus.lowlevel import JOIN, Duration, Member, Policy, Tree
from workflows.definition.flow_definition import FlowKind
from workflows.definition.plan import FlowPlan
from workflows.definition.workflow import Workflow
from workflows.records.ids import flow_queue, member_id, steps_queue, workflow_of
from workflows.records.records import FlowMessage, encode_message, hidden_in


def tree_of(
    workflow: Workflow[Any, Any] | None,
    flow_id: str,
    message: FlowMessage,
    *,
    delay: float,
    key: str = "",
    print: str = "",  # noqa: A002  (as `Tree` calls it)
    meeting: int = JOIN,
    require_worker: bool = False,
    keeps: tuple[Duration | None, Duration | None] = (None, None),
) -> Tree:
    """Return a new flow: a root alone if there is no `workflow` or it is `bare`, else with all its steps.

    `delay` in seconds; `key`, `print`, `meeting` and `require_worker` as `Tree` has them; `keeps` are its
    `keep_completed` and `keep_failed`.
    """
    return Tree(
        flow_id,
        flow_queue(workflow_of(flow_id)),
        encode_message(message),
        [] if workflow is None or message.bare else members_of(workflow, flow_id, message, delay=delay),
        [] if workflow is None or message.bare else last_members(workflow, flow_id, message),
        priority=message.priority,
        delay=delay,
        timeout=message.timeout or 0.0,
        key=key,
        print=print,
        meeting=meeting,
        require_worker=require_worker,
        keep_completed=keeps[0],
        keep_failed=keeps[1],
    )


def nested_message(
    outer: FlowMessage,
    *,
    flow_id: str,
    job_id: str,
    given: bytes,
    version: str,
    timeout: float | None,
    traceparent: str,
    types_: tuple[Any, ...],
    kind: FlowKind,
) -> FlowMessage:
    """Return the message of a flow that the flow `flow_id` with the message `outer` starts.

    `job_id` is the job of the step that starts it, `given` its input as JSON, and `timeout` the effective
    one. `types_` are those of its input, its output and its state, and `kind` is that of its definition.
    """
    return FlowMessage(
        input=msgspec.Raw(given),
        version=version,
        meta=outer.meta,
        correlation_id=outer.correlation_id or flow_id,
        causation_id=job_id,
        traceparent=traceparent,
        tracestate=outer.tracestate,
        timeout=timeout,
        bare=True,
        priority=outer.priority,
        baggage=outer.baggage,
        durable=kind == "function",
        machine=kind == "machine",
        hidden=hidden_in(*types_),
    )


def nested_root(workflow: str, flow_id: str, message: FlowMessage, *, up: Policy = "wake") -> Member:
    """Return the root of a nested flow, which runs or adds its steps itself. `up` as `Member` has it."""
    return Member(
        flow_id,
        flow_queue(workflow),
        body=encode_message(message),
        priority=message.priority,
        on="wake",
        up=up,
        is_root=True,
        timeout=message.timeout or 0.0,
    )


def child_job(workflow: str, job_id: str, message: FlowMessage, *, step: str = "") -> Member:
    """Return a job in the steps queue of a workflow, which a root adds while it runs; `message` is the job's
    own.

    `step` is a step with a concurrency of its own, whose jobs have another queue.
    """
    return Member(
        job_id,
        steps_queue(workflow, step),
        body=encode_message(message),
        priority=message.priority,
        up="ignore",
    )


def members_of(
    workflow: Workflow[Any, Any], flow_id: str, message: FlowMessage, *, delay: float = 0.0
) -> list[Member]:
    """Return the jobs of a flow's steps, without those that a retry by hand kept: these exist already.

    `delay` in seconds is for the steps that need no other.
    """
    queue, run = steps_queue(workflow.name), message.run
    limited = {name: steps_queue(workflow.name, name) for name in workflow.limited}
    return [
        Member(
            member_id(flow_id, run, node.step),
            limited.get(node.step, queue),
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
