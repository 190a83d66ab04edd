"""`eventbus flows`: lists, shows, follows, cancels, retries and removes the flows of workflows.

Only `check`, `graph` and the option `--app` import the program: the others read everything from the server,
and a worker that has the workflow runs a retry.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, TypeVar, get_args

import typer
from typer.core import TyperGroup

from eventbus import UnknownJob
from eventbus.cli.toolkit import CommandError, UrlOption, say, show_found, shown
from workflows import FlowSummary, WorkflowProvider
from workflows.cli.asking import FlowArgument, JsonOption, WorkflowOption, ask_flows, check_known_workflow
from workflows.cli.flow_graph import draw_graph
from workflows.cli.flow_history import check_flows, export_flows
from workflows.cli.flow_signals import check_place, list_waiting, send_signal, send_trigger
from workflows.cli.flow_views import FLOWS, print_tree
from workflows.cli.following import follow_flow
from workflows.cli.many_flows import cancel_all, retry_all
from workflows.records.report import FlowState

T = TypeVar("T")


class _Group(TyperGroup):
    """Runs `list` if no command is given."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
            args = ["list", *args]
        return super().parse_args(ctx, args)


app: typer.Typer = typer.Typer(cls=_Group, help="The flows of workflows.", rich_markup_mode=None)


@app.callback()
def flows() -> None:
    """List flows, look at one, draw it, cancel or retry it, tell it what it waits for, and check code against
    them.
    """


@app.command("list")
def list_flows(
    *,
    workflow: WorkflowOption = None,
    state: Annotated[
        str | None, typer.Option(metavar="STATE", help="Of this state only: running, failed, ...")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="The newest N.")] = 20,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> int:
    """List the newest flows; with --json an object on a line for each."""
    if state is not None and state not in get_args(FlowState):
        known = ", ".join(get_args(FlowState))
        raise CommandError(f"expected --state to be one of {known}, got: {shown(state)}")

    async def read(flows: WorkflowProvider) -> list[FlowSummary]:
        found = await flows.flows(workflow, state=state, limit=limit)
        if not found:
            await check_known_workflow(flows, workflow)
        return found

    show_found(ask_flows(url, read, reads_only=True), FLOWS.print, as_json=as_json)
    return 0


@app.command("show")
def show_flow(
    flow_id: FlowArgument,
    *,
    full: Annotated[bool, typer.Option("--full", help="Whole inputs, outputs and states.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> int:
    """Show a flow as a tree: input, state and output; its steps with states, times and errors,
    sub-workflows, and rollbacks.

    What is marked as sensitive is hidden; `eventbus jobs show ID --reveal` shows it.
    """
    tree = ask_flows(url, lambda flows: flows.tree(flow_id), reads_only=True)
    show_found(tree, partial(print_tree, is_full=full), as_json=as_json)
    return 0


@app.command("cancel")
def cancel_flow(
    flow_id: FlowArgument,
    *,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Told to whoever waits for the flow.")] = "",
    url: UrlOption = None,
) -> int:
    """Stop a flow, and have what it did rolled back; ends when that is recorded."""
    return _change(
        url,
        flow_id,
        lambda flows: flows.handle(flow_id).cancel(reason),
        done="is being cancelled",
        refused=", there is nothing to cancel",
    )


@app.command("retry")
def retry_flow(
    flow_id: FlowArgument,
    *,
    from_start: Annotated[bool, typer.Option("--from-start", help="Run all its steps again.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Run only what is not done, or was rolled back.")
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE", help="Of a state machine that stands with an error: move it there first."
        ),
    ] = None,
    app: Annotated[
        str | None,
        typer.Option(metavar="MODULE:PROVIDER", help="Check the place by the program's state machine."),
    ] = None,
    url: UrlOption = None,
) -> int:
    """Run a flow that has ended once more: a failed one is resumed, a completed one runs from its start.

    A state machine that stands with an error runs again the transition that failed. With --target and without
    --app its worker judges the place: `eventbus flows show` says if it refused.
    """
    if from_start and resume:
        raise CommandError("expected either --from-start or --resume, got both")
    if app is not None and target is not None:
        check_place(app, flow_id, target)
    chosen = True if resume else False if from_start else None

    async def retry(flows: WorkflowProvider) -> tuple[int, bool]:
        before = 0
        with suppress(UnknownJob):  # else `retry` says what is wrong
            before = (await flows.report(flow_id)).run
        handle = await flows.retry(flow_id, resume=chosen, target=target)
        run = (await handle.report()).run
        return run, run == before

    run, is_open = ask_flows(url, retry, place=app)
    what = "goes on at its place" if target is None else f"is told to go on at place {target}"
    say(f"flow {flow_id} {what if is_open else f'runs again, for the {_ordinal(run)} time'}")
    return 0


@app.command("remove")
def remove_flow(flow_id: FlowArgument, *, url: UrlOption = None) -> int:
    """Remove a flow that has ended, with its steps and sub-workflows."""
    return _change(
        url,
        flow_id,
        lambda flows: flows.remove(flow_id),
        done="is removed",
        refused=", and is not removed; cancel it first",
    )


def _change(
    url: str | None,
    flow_id: str,
    change: Callable[[WorkflowProvider], Awaitable[bool]],
    *,
    done: str,
    refused: str,
) -> int:
    """Change a flow, and say so. If its state does not allow it, the command fails with the state."""

    async def ask(flows: WorkflowProvider) -> str:
        return "" if await change(flows) else (await flows.handle(flow_id).status()).state

    if state := ask_flows(url, ask):
        raise CommandError(f"flow {flow_id} is {state.replace('_', ' ')}{refused}", exit_code=1)
    say(f"flow {flow_id} {done}")
    return 0


app.command("retry-all")(retry_all)
app.command("cancel-all")(cancel_all)
app.command("follow")(follow_flow)
app.command("signal")(send_signal)
app.command("trigger")(send_trigger)
app.command("waiting")(list_waiting)
app.command("graph")(draw_graph)
app.command("check")(check_flows)
app.command("export")(export_flows)


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{ending}"
