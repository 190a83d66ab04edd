"""Schedules of flows: each slot of a schedule starts one flow of a workflow or of a durable function.

`provider.schedules` has the schedules of flows and of events alike: it lists them, changes them and removes
them. What must always hold: the flow of a slot follows from the schedule and the slot alone, so it exists
once.
"""

from __future__ import annotations

from typing import Any, TypeVar, Unpack

import msgspec

from eventbus import EventProvider, Schedule, ScheduleKeywords
from eventbus.lowlevel import Duration, RootForm, ScheduledRoot
from workflows.client.definitions import Definitions
from workflows.definition.flow_definition import AnyWorkflow
from workflows.definition.workflow import Workflow
from workflows.functions.definition import Durable
from workflows.machines.definition import MachineDefinition
from workflows.records.ids import flow_queue
from workflows.records.records import FlowMessage, encode_message, hidden_in

I = TypeVar("I")  # noqa: E741  (input)


class FlowSchedules:
    """Makes schedules that start flows.

        flows.schedules.cron(  # declared
            "0 3 * * *", report, id="nightly", tz="Europe/Berlin", input=Report("all")
        )
        await flows.schedules.add(report, id="nightly:acme", cron="0 3 * * *", input=Report("acme"))

    The workflow is registered before. The options, and when a declared one is made, are those of
    `provider.schedules`, which also finds, pauses, lists and removes the schedules made here. The meta of a
    flow has the `schedule` and the `slot`, in Unix ms, beside what `meta` says. A flow has the workflow's
    timeout. A flow of a durable function or of a state machine has the version that is registered when the
    schedule is made; for a workflow the worker that starts the flow chooses it. Each method raises
    DefinitionError for options that cannot be, and for a workflow that is not registered here, and
    PayloadError for an input of another type.
    """

    def __init__(self, provider: EventProvider, definitions: Definitions) -> None:
        self._provider = provider
        self._definitions = definitions

    def cron(
        self,
        cron: str,
        workflow: AnyWorkflow[I, Any],
        *,
        id: str,  # noqa: A002
        input: I,  # noqa: A002  (as the workflow calls it)
        **options: Unpack[ScheduleKeywords],
    ) -> None:
        """Declare a schedule that starts a flow at the times of a cron expression."""
        self._provider.schedules.cron(cron, self._root(workflow, input), id=id, **options)

    def every(
        self,
        every: Duration,
        workflow: AnyWorkflow[I, Any],
        *,
        id: str,  # noqa: A002
        input: I,  # noqa: A002  (as the workflow calls it)
        **options: Unpack[ScheduleKeywords],
    ) -> None:
        """Declare a schedule that starts a flow each `every`, at least 0.1 s, counted from `start` or its
        first worker.
        """
        self._provider.schedules.every(every, self._root(workflow, input), id=id, **options)

    async def add(
        self,
        workflow: AnyWorkflow[I, Any],
        *,
        id: str,  # noqa: A002
        input: I,  # noqa: A002  (as the workflow calls it)
        cron: str = "",
        every: Duration | None = None,
        **options: Unpack[ScheduleKeywords],
    ) -> Schedule:
        """Make a schedule at run time, or change the one of this `id`; return it. Give exactly one of `cron`
        and `every`.

        The ids that its `trigger` and `backfill` return are those of flows. Raises also StoreError and
        ProviderStopped.
        """
        root = self._root(workflow, input)
        return await self._provider.schedules.add(root, id=id, cron=cron, every=every, **options)

    def _root(self, given_workflow: AnyWorkflow[Any, Any], given: Any) -> ScheduledRoot:
        workflow = self._definitions.registered(given_workflow)
        given = self._definitions.encode_input(workflow, given)
        is_graph = isinstance(workflow, Workflow)
        timeout = None if workflow.timeout is None else workflow.timeout + self._provider.settings.lease
        message = FlowMessage(
            input=msgspec.Raw(given),
            version="" if is_graph else workflow.version,
            timeout=timeout,
            bare=True,
            durable=isinstance(workflow, Durable),
            machine=isinstance(workflow, MachineDefinition),
            hidden=hidden_in(workflow.input, workflow.output, getattr(workflow, "state", None)),
        )
        form = RootForm(
            meta="m",
            key="k",
            chain="c",
            timeout=round((timeout or 0.0) * 1000),
            traceparent="t",
            tracestate="s",
            baggage="g",
        )
        return ScheduledRoot(workflow.name, flow_queue(workflow.name), encode_message(message).encode(), form)
