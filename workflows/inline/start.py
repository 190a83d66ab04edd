"""Starting an inline flow of any kind: checks the caller's arguments and makes the flow from them, and those
inside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from eventbus.lowlevel import Codec, Duration, current, seconds
from workflows.definition.codecs import MAX_VALUE, flow_codecs
from workflows.definition.flow_definition import AnyDefinition
from workflows.definition.flow_tools import FlowData, FlowFacts
from workflows.definition.signal import Signal
from workflows.definition.workflow import Workflow
from workflows.execution.environment import Environment
from workflows.functions.definition import Durable
from workflows.inline.code_flow import CodeFlow
from workflows.inline.durable_flow import InlineDurable
from workflows.inline.flow import InlineFlow
from workflows.inline.inner import Opening, OpenInner
from workflows.inline.machine_flow import InlineMachine
from workflows.inline.triggers import InlineTriggers
from workflows.machines.definition import MachineDefinition
from workflows.records.ids import new_flow_id


def open_inline(
    workflow: Workflow[Any, Any],
    input: Any,  # noqa: A002  (as the workflow calls it)
    *,
    meta: Mapping[str, Any] | None = None,
    timeout: Duration | None = None,
    environment: Environment,
    signals: Sequence[tuple[Signal[Any] | str, Any]] = (),
    triggers: InlineTriggers | None = None,
    is_open: bool = True,
) -> InlineFlow:
    """Return an inline flow of steps that has not begun.

    `timeout` overrides the workflow's timeout; 0 is none. The flow inherits meta and correlation id of the
    caller's context; `meta` overrides single keys. `signals` are in its inbox from the start, and with
    `is_open` others may follow; `triggers` are those of the state machines inside it. Raises DefinitionError
    for a workflow that cannot run, and PayloadError for an input, a meta or a signal that does not fit.
    """
    workflow.check()
    given = flow_codecs(workflow).input.encode(input)
    around = _around(environment)
    flow = InlineFlow(
        workflow,
        given,
        make_facts(workflow, meta),
        around,
        timeout=_limit(workflow, timeout),
        open_inner=opener(around, triggers or InlineTriggers()),
        is_open=is_open,
    )
    for signal, payload in signals:
        flow.send(flow.check_signal(signal), payload)
    return flow


def open_code(
    definition: AnyDefinition,
    input: Any,  # noqa: A002  (as the workflow calls it)
    *,
    meta: Mapping[str, Any] | None = None,
    timeout: Duration | None = None,
    environment: Environment,
    signals: Sequence[tuple[Signal[Any] | str, Any]] = (),
    triggers: InlineTriggers | None = None,
    replays: bool = False,
    is_open: bool = False,
) -> CodeFlow:
    """Return an inline flow of a durable function, or of a state machine, that has not begun. The arguments
    are those of `open_inline`.

    With `replays` a durable function, also one inside it, starts again from its top after each record. With
    `is_open` signals and
    triggers may come while it runs.
    """
    given = flow_codecs(definition).input.encode(input)
    facts, around, limit = make_facts(definition, meta), _around(environment), _limit(definition, timeout)
    open_inner = opener(around, triggers or InlineTriggers(), replays=replays)
    if isinstance(definition, Durable):
        function = InlineDurable(
            definition,
            given,
            facts,
            around,
            timeout=limit,
            open_inner=open_inner,
            signals=signals,
            replays=replays,
        )
        function.is_open = is_open
        return function
    assert isinstance(definition, MachineDefinition), "`open_inline` opens flows of steps"  # noqa: S101
    machine = InlineMachine(
        definition,
        given,
        facts,
        around,
        timeout=limit,
        open_inner=open_inner,
        triggers=triggers or InlineTriggers(),
    )
    machine.is_open = is_open
    return machine


def opener(environment: Environment, triggers: InlineTriggers, *, replays: bool = False) -> OpenInner:
    """Return what makes the flows inside a flow; they share its environment and its triggers."""
    return partial(_open_inner, environment, triggers, replays)


def _open_inner(
    environment: Environment, triggers: InlineTriggers, replays: bool, opening: Opening
) -> InlineFlow | CodeFlow:
    definition, given, timeout = opening.definition, opening.given, opening.timeout
    facts = msgspec.structs.replace(opening.outer, flow_id=opening.id, run=1, data=FlowData())
    open_inner = opener(environment, triggers, replays=replays)
    if isinstance(definition, Durable):
        return InlineDurable(
            definition, given, facts, environment, timeout=timeout, open_inner=open_inner, replays=replays
        )
    if isinstance(definition, Workflow):
        return InlineFlow(definition, given, facts, environment, timeout=timeout, open_inner=open_inner)
    assert isinstance(definition, MachineDefinition)  # noqa: S101  (there are three kinds)
    return InlineMachine(
        definition, given, facts, environment, timeout=timeout, open_inner=open_inner, triggers=triggers
    )


def make_facts(definition: AnyDefinition, meta: Mapping[str, Any] | None = None) -> FlowFacts:
    """Return the facts of a new flow, with what it has of the caller's context. Raises PayloadError for a
    meta that does not fit.
    """
    ambient, flow_id = current(), new_flow_id(definition.name)
    codec = Codec(dict[str, Any], role="meta", owner=definition.name, max_bytes=MAX_VALUE)
    return FlowFacts(
        flow_id=flow_id,
        # Encoded and decoded, so that steps see the values that a distributed flow would give them.
        meta=codec.decode(codec.encode({**(ambient.meta or {}), **(meta or {})})),
        correlation_id=ambient.correlation_id or flow_id,
        tracestate=ambient.tracestate,
    )


def _around(environment: Environment) -> Environment:
    return msgspec.structs.replace(environment, traceparent=current().traceparent)


def _limit(definition: AnyDefinition, timeout: Duration | None) -> float | None:
    return definition.timeout if timeout is None else seconds(timeout, setting="timeout") or None
