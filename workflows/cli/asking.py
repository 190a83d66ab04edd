"""Asking a server about its flows, for the commands of `eventbus flows`, and what these take alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from eventbus import EventProvider
from eventbus.cli.toolkit import CommandError, ask_server, describe_unknown
from workflows import WorkflowProvider
from workflows.records.ids import flow_queue

T = TypeVar("T")

FlowArgument = Annotated[str, typer.Argument(metavar="ID", help="The flow's id.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
WorkflowOption = Annotated[str | None, typer.Option(metavar="NAME", help="Of this workflow only.")]

_PREFIX = flow_queue("")


def ask_flows(
    url: str | None,
    act: Callable[[WorkflowProvider], Awaitable[T]],
    *,
    reads_only: bool = False,
    place: str | None = None,
) -> T:
    """Run `act` on the flows of a server, of that of the program at `place` if one is given; see
    `ask_server`.
    """

    async def ask(provider: EventProvider) -> T:
        return await act(WorkflowProvider(provider))

    return ask_server(url, ask, reads_only=reads_only, place=place)


async def check_known_workflow(flows: WorkflowProvider, workflow: str | None) -> None:
    """Raise CommandError with the server and the names that are close, if no worker serves the workflow and
    it has no flows.

    A reading command that found no flow of one workflow asks so whether the server has it at all.
    """
    if workflow is None:
        return
    provider = flows.provider
    queues = {*await provider.inspector.queues.names(), *await provider.jobs.root_queues()}
    names = [name.removeprefix(_PREFIX) for name in queues if name.startswith(_PREFIX)]
    # The queues of steps begin with the name of their workflow, which does not end so itself.
    known = {name.partition(".steps/")[0].removesuffix(".steps") for name in names}
    if workflow not in known:
        said = describe_unknown("workflow", workflow, known, provider.settings.url, listing="eventbus queues")
        raise CommandError(said, exit_code=1)
