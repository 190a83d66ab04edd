"""`eventbus flows`: the flows of workflows; to list, to look at, to cancel and to retry.

It needs no program: what it tells is what the server has, and a worker that has the workflow goes on with a retry.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import msgspec
import typer
from typer.core import TyperGroup

from eventbus.cli.failures import CommandError, is_debugging
from eventbus.cli.logs import configure_logs
from eventbus.cli.loop import run
from eventbus.cli.session import started
from eventbus.names import shown
from eventbus.provider import EventProvider

if TYPE_CHECKING:
    from workflows import WorkflowProvider

__all__ = ["app"]

T = TypeVar("T")

_Url = Annotated[str | None, typer.Option(help="The server; default EVENTBUS_URL, else ./.eventbus.")]
_Flow = Annotated[str, typer.Argument(metavar="ID", help="The flow's id.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class _Group(TyperGroup):
    """Without a command it lists."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_Group, help="The flows of workflows.", rich_markup_mode=None)


@app.callback()
def flows() -> None:
    """List flows, look at one, cancel or retry it."""


@app.command("list")
def list_flows(
    *,
    workflow: Annotated[str | None, typer.Option(metavar="NAME", help="Of this workflow only.")] = None,
    state: Annotated[
        str | None, typer.Option(metavar="STATE", help="Of this state only: running, failed, ...")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="The newest N.")] = 20,
    as_json: _Json = False,
    url: _Url = None,
) -> int:
    """List the newest flows; with --json an object on a line for each."""
    from workflows.report import FlowState  # noqa: PLC0415  (only these commands need it)

    if state is not None and state not in get_args(FlowState):
        known = ", ".join(get_args(FlowState))
        raise CommandError(f"expected --state to be one of {known}, got: {shown(state)}")
    found = _ask(url, lambda flows: flows.flows(workflow, state=state, limit=limit))
    if as_json:
        sys.stdout.buffer.write(b"".join(msgspec.json.encode(each) + b"\n" for each in found))
        return 0
    from eventbus.cli.flow_views import print_list  # noqa: PLC0415

    print_list(found)
    return 0


@app.command("show")
def show_flow(flow_id: _Flow, *, as_json: _Json = False, url: _Url = None) -> int:
    """Show a flow as a tree: its steps with states, times and errors, sub-workflows, and rollbacks."""
    tree = _ask(url, lambda flows: flows.tree(flow_id))
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(tree) + b"\n")
        return 0
    from eventbus.cli.flow_views import print_tree  # noqa: PLC0415

    print_tree(tree)
    return 0


@app.command("cancel")
def cancel_flow(
    flow_id: _Flow,
    *,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Told to whoever waits for the flow.")] = "",
    url: _Url = None,
) -> int:
    """Stop a flow, and have what it did rolled back; ends when that is recorded."""

    async def cancel(flows: WorkflowProvider) -> str:
        handle = flows.handle(flow_id)
        return "" if await handle.cancel(reason) else (await handle.status()).state

    state = _ask(url, cancel)
    if state:
        raise CommandError(
            f"flow {flow_id} is {state.replace('_', ' ')}, there is nothing to cancel", exit_code=1
        )
    print(f"flow {flow_id} is being cancelled")
    return 0


@app.command("retry")
def retry_flow(
    flow_id: _Flow,
    *,
    from_start: Annotated[bool, typer.Option("--from-start", help="Run all its steps again.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Run only what is not done, or was rolled back.")
    ] = False,
    url: _Url = None,
) -> int:
    """Run a flow that has ended once more: a failed one is resumed, a completed one runs from its start."""
    if from_start and resume:
        raise CommandError("expected either --from-start or --resume, got both")
    chosen = True if resume else False if from_start else None

    async def retry(flows: WorkflowProvider) -> int:
        handle = await flows.retry(flow_id, resume=chosen)
        return (await handle.report()).run

    print(f"flow {flow_id} runs again, for the {_ordinal(_ask(url, retry))} time")
    return 0


def _ask(url: str | None, act: Callable[[WorkflowProvider], Awaitable[T]]) -> T:
    """Run `act` on the flows of a server."""
    configure_logs(None, level=logging.DEBUG if is_debugging() else logging.ERROR)
    return run(_act(EventProvider(url), act))


async def _act(provider: EventProvider, act: Callable[[WorkflowProvider], Awaitable[T]]) -> T:
    from workflows import WorkflowProvider  # noqa: PLC0415

    flows = WorkflowProvider(provider)
    async with started(provider):
        return await act(flows)


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{ending}"
