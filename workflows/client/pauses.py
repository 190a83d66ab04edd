"""The pauses and limits of workflows: a provider of workflows orders them for the queue of a workflow, or of
one step.
"""

from __future__ import annotations

from typing import Any

from eventbus import DefinitionError, EventProvider, Limit
from eventbus.lowlevel import Duration
from workflows.definition.checks.options import check_limit
from workflows.definition.flow_definition import AnyWorkflow, definition_of
from workflows.definition.step import Step
from workflows.definition.workflow import Workflow
from workflows.distributed.paused_steps import may_pause
from workflows.functions.definition import Durable
from workflows.machines.definition import MachineDefinition
from workflows.records.ids import check_step_name, check_workflow_name, flow_queue, steps_queue
from workflows.registry import StepRegistry


class FlowPauses:
    """The part of a provider of workflows that pauses them and sets their limits."""

    provider: EventProvider
    _registry: StepRegistry

    async def pause(
        self,
        workflow: AnyWorkflow[Any, Any] | str,
        *,
        step: Step[Any, Any] | str | None = None,
        reason: str = "",
        by: str | None = None,
        call_timeout: Duration | None = None,
    ) -> None:
        """Pause a workflow, of which the name is enough: no worker begins its flows, or goes on with one,
        until `resume`.

        A flow that a worker runs now goes on to its end, or until it waits without a worker; jobs of spread
        steps run. Flows can be started, cancelled and sent signals.

        With `step`, pause this step alone: no worker begins an attempt of it, or an item, later than a second
        after this returns. What runs ends, other steps go on, and flows wait for the step without a worker.
        Its rollback still runs.

        `reason`, `by` and the time are kept and shown, as by `EventProvider.pause`. Raises DefinitionError
        for a step that runs no function of its own, and for a name that a registered workflow does not have;
        StoreError, ProviderStopped.
        """
        queue = self._queue_of(workflow, step)
        await self.provider.pause(queue, reason=reason, by=by, call_timeout=call_timeout)

    async def resume(
        self,
        workflow: AnyWorkflow[Any, Any] | str,
        *,
        step: Step[Any, Any] | str | None = None,
        call_timeout: Duration | None = None,
    ) -> None:
        """Let workers run the flows of a paused workflow, or a paused `step`, again. Does nothing if it is
        not paused.

        Raises as `pause`.
        """
        await self.provider.resume(self._queue_of(workflow, step), call_timeout=call_timeout)

    async def set_limit(
        self,
        workflow: AnyWorkflow[Any, Any] | str,
        limit: Limit | None,
        *,
        step: Step[Any, Any] | str | None = None,
        call_timeout: Duration | None = None,
    ) -> None:
        """Set the limit of a workflow, or of a `step` that was defined with a limit or a concurrency, in the
        whole fleet.

        It holds over what the definition says, and over restarts; None takes it back. A limit of a workflow
        counts the flows that workers run, and not those that wait without one. Raises DefinitionError,
        StoreError, ProviderStopped.
        """
        queue = self._queue_of(workflow, step)
        check_limit(limit, f"queue {queue!r}")
        if limit is not None and step is not None and (found := self._find(workflow, step)) is not None:
            _check_has_queue(found)
        await self.provider.set_limit(queue, limit, call_timeout=call_timeout)

    def _queue_of(self, workflow: AnyWorkflow[Any, Any] | str, step: Step[Any, Any] | str | None) -> str:
        if isinstance(workflow, str):
            name = check_workflow_name(workflow)
        else:
            name = definition_of(workflow, "a workflow, unless it is a name,").name
        if step is None:
            return flow_queue(name)
        found = self._find(workflow, step)
        if found is not None and not may_pause(found):
            what = "only waits" if found.workflow is None else f"runs workflow {found.workflow.name!r}"
            instead = "the workflow" if found.workflow is None else "that one"
            raise DefinitionError(f"{found.where} {what}, and has no attempts to hold back; pause {instead}")
        return steps_queue(name, check_step_name(step, name) if isinstance(step, str) else step.name)

    def _find(
        self, workflow: AnyWorkflow[Any, Any] | str, step: Step[Any, Any] | str
    ) -> Step[Any, Any] | None:
        """Return a step by itself or its name; None if this process does not know the workflow."""
        known = workflow if isinstance(workflow, str) else definition_of(workflow, "a workflow")
        name = known if isinstance(known, str) else known.name
        if isinstance(known, Durable) or self._registry.durable(name) is not None:
            raise DefinitionError(
                f"durable function {name!r} has tasks and no steps; "
                "pause the function, or the events that its tasks emit"
            )
        if isinstance(known, MachineDefinition) or self._registry.machine(name) is not None:
            raise DefinitionError(f"state machine {name!r} has transitions and no steps; pause the machine")
        if isinstance(known, str):
            if not self._registry.has(name):
                return step if isinstance(step, Step) else None
            known = self._registry.workflow(name)
        assert isinstance(known, Workflow)  # noqa: S101  (the other kinds have no steps)
        return known.find(step)


def _check_has_queue(step: Step[Any, Any]) -> None:
    if not step.has_queue:
        raise DefinitionError(
            f"{step.where} was defined without a limit, so its attempts are not counted in the server; "
            "define it with limit=Limit(...), which can be changed from then on"
        )
