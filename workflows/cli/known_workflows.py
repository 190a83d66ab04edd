"""Workflows that nobody knows: a reading command that found no flow asks whether the server has such a
workflow at all.
"""

from __future__ import annotations

from eventbus.cli.toolkit import CommandError, describe_unknown
from workflows import WorkflowProvider
from workflows.records.ids import flow_queue

__all__ = ["check_known_workflow"]

_PREFIX = flow_queue("")


async def check_known_workflow(flows: WorkflowProvider, workflow: str) -> None:
    """Raise CommandError with the server and the names that are close, if no worker serves the workflow and
    it has no flows.
    """
    provider = flows.provider
    queues = {*await provider.inspector.queues.names(), *await provider.jobs.root_queues()}
    names = [name.removeprefix(_PREFIX) for name in queues if name.startswith(_PREFIX)]
    # The queues of steps begin with the name of their workflow, which does not end so itself.
    known = {name.partition(".steps/")[0].removesuffix(".steps") for name in names}
    if workflow not in known:
        said = describe_unknown("workflow", workflow, known, provider.settings.url, listing="eventbus queues")
        raise CommandError(said, exit_code=1)
