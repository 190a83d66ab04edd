"""Calling the hooks of a flow at its end.

Not here: the definition of a hook (`definition.hooks`), when it runs, and the consequence of an error of
`completed` (the flow is rolled back).
"""

from __future__ import annotations

from typing import Any

from eventbus.lowlevel import describe, get_logger, log_failure
from workflows.definition.context import StepContext, codecs_of, log_facts
from workflows.definition.flow_tools import CallSync
from workflows.definition.workflow import Workflow
from workflows.errors import FlowError
from workflows.execution.attempt import AttemptRun
from workflows.execution.step_runner import call

_log = get_logger("workflows")


async def run_completed(workflow: Workflow[Any, Any], ctx: StepContext[Any], call_sync: CallSync) -> str:
    """Call the `completed` hook and return the output of the flow, as JSON text.

    Without a hook the output is None. Raises the hook's error, and PayloadError for an output that does not
    fit the declared type.
    """
    hook, value = workflow.completed_hook, None
    if hook is not None:
        value = await call(hook.function, ctx, is_async=hook.is_async, call_sync=call_sync, kind="completed")
    return codecs_of(ctx).output.encode(value).decode()


async def run_failed(
    workflow: Workflow[Any, Any], ctx: StepContext[Any], error: FlowError, call_sync: CallSync
) -> None:
    """Call the `failed` hook, if there is one. Its error is logged and changes nothing."""
    hook = workflow.failed_hook
    if hook is None:
        return
    attempt = AttemptRun(
        lambda: call(hook.function, ctx, error, is_async=hook.is_async, call_sync=call_sync, kind="failed"),
        what=f"the failed hook of workflow {workflow.name!r}",
        timeout=None,
    )
    own = (await attempt.run()).error  # only logged, because the flow's own error must reach its caller
    if own is not None:
        log_failure(_log, "failed hook raised", describe(own, attempts=1), log_facts(ctx))
