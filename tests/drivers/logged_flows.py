"""Flows whose steps write into a log, and what the server has of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eventbus import EventProvider
from workflows import StepContext, Workflow, WorkflowProvider
from workflows.records.entries import read_entries

__all__ = ["Log", "MakeProvider", "add_logged", "kinds_of", "members_of", "serve_flows"]

MakeProvider = Callable[..., EventProvider]
Log = list[str]


def serve_flows(
    make_provider: MakeProvider, *workflows: Workflow[Any, Any], **settings: Any
) -> WorkflowProvider:
    """Return a provider of these workflows, which runs no worker yet."""
    flows = WorkflowProvider(make_provider(**settings))
    for each in workflows:
        flows.register(each)
    return flows


def add_logged(workflow: Workflow[Any, Any], name: str, log: Log, **options: Any) -> None:
    """Add a step that writes its name into `log`, with a rollback that writes `undo <name>`."""

    async def run(ctx: StepContext[Any]) -> str:
        log.append(name)
        return name

    async def undo(ctx: StepContext[Any], result: str) -> None:
        log.append(f"undo {result}")

    workflow.step(run, name=name, **options).rollback(undo)


async def kinds_of(flows: WorkflowProvider, flow_id: str) -> list[str]:
    """Return the kind and the place of each entry of a journal."""
    entries = read_entries(flow_id, await flows.provider.jobs.journal(flow_id))
    return [f"{entry.kind} {entry.place}".strip() for entry in entries]


async def members_of(flows: WorkflowProvider, flow_id: str) -> list[str]:
    """Return the members of a flow, by what is behind its id."""
    page = await flows.provider.jobs.look(flow_id)
    return [each.id.removeprefix(flow_id) for each in page.members]
