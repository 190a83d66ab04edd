"""The end of a flow: its hooks are called.

Not here: what a hook is (`hooks`), when it runs, and what follows from an error of `completed` (a
rollback of everything).
"""

from __future__ import annotations

from typing import Any

from eventbus.lowlevel import get_logger
from workflows.attempt import Attempt
from workflows.context import StepContext
from workflows.definition import Workflow
from workflows.errors import FlowError
from workflows.steps import CallSync, call

__all__ = ["run_completed", "run_failed"]

_log = get_logger("workflows")


async def run_completed(workflow: Workflow[Any, Any], ctx: StepContext[Any], call_sync: CallSync) -> str:
    """Return the output of a flow whose steps are all done, as JSON text.

    It is what the `completed` hook returns, None without one. Raises what the hook raises, and
    PayloadError for an output that is not of the declared type.
    """
    hook, value = workflow.completed_hook, None
    if hook is not None:
        value = await call(hook.function, ctx, is_async=hook.is_async, call_sync=call_sync)
    return ctx.codecs.output.encode(value).decode()


async def run_failed(
    workflow: Workflow[Any, Any], ctx: StepContext[Any], error: FlowError, call_sync: CallSync
) -> None:
    """Call the `failed` hook, if there is one. What it raises is logged and changes nothing."""
    hook = workflow.failed_hook
    if hook is None:
        return
    attempt = Attempt(
        lambda: call(hook.function, ctx, error, is_async=hook.is_async, call_sync=call_sync),
        what=f"the failed hook of workflow {workflow.name!r}",
        timeout=None,
    )
    own = (await attempt.run()).error  # whatever it is: the flow's error must reach its caller
    if own is not None:
        _log.error(
            "failed hook raised",
            flow_id=ctx.flow_id,
            workflow=workflow.name,
            error=f"{type(own).__name__}: {own}",
        )
