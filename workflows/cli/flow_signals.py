"""`eventbus flows signal`, `trigger` and `waiting`: tell a flow what it waits for, and see which
flows wait.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
import typer

from eventbus import DefinitionError, PayloadError
from eventbus.cli.toolkit import (
    CommandError,
    Listing,
    Row,
    UrlOption,
    load_provider,
    moment,
    say,
    show_found,
    shown,
)
from eventbus.lowlevel import JobClient
from workflows import WorkflowProvider
from workflows.cli.asking import FlowArgument, JsonOption, WorkflowOption, ask_flows, check_known_workflow
from workflows.cli.flow_history import registry_of
from workflows.client.histories import FlowRecord, read_record, recorded_flows
from workflows.client.open_waits import open_waits
from workflows.client.sent_signals import check_json
from workflows.records.ids import workflow_of
from workflows.records.records import error_text
from workflows.records.status import number_in

_TRIGGER = "!"  # begins the names of triggers, as those of their signals


class Waiting(msgspec.Struct, frozen=True):
    """One line: a flow, the position of the call or the name of the step, and what it waits for.

    `root_id` is the flow that a program started: the same one, or the one that this flow is nested in. Times
    are Unix times in ms, 0 for none. A parked flow has a line of its own, without a call: it waits for a
    worker that can run it, and `parked` says why. A state machine that stands has one, too: it waits for a
    retry, and `error` says why.
    """

    flow_id: str
    root_id: str
    position: str
    waits_for: str
    since_ms: int
    until_ms: int
    parked: str = ""
    error: str = ""


def send_signal(
    flow_id: FlowArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the signal.")],
    payload: Annotated[str, typer.Argument(metavar="JSON", help="Its payload.")] = "null",
    *,
    app: Annotated[
        str | None,
        typer.Option(metavar="MODULE:PROVIDER", help="Check name and payload by the program's functions."),
    ] = None,
    url: UrlOption = None,
) -> int:
    """Send a signal to a flow, which keeps it until it waits for it; ends when that is recorded.

    A signal that the flow's workflow does not declare is refused, as far as a worker has told what it
    declares; with --app also a payload that does not fit. Where nobody waits for it now the command says so,
    and what the flow waits for. To a state machine it is a trigger.
    """
    value = _read_json(payload)
    if app is not None:
        _check(app, flow_id, name, value)

    async def send(flows: WorkflowProvider) -> str:
        jobs = flows.provider.jobs
        flow = await read_record(jobs, flows.handle(flow_id).id)
        waited = [entry.name for entry in await open_waits(jobs, flow) if entry.kind == "wait"]
        with _refusals():
            await flows.signal(flow_id, name, value)
        if flow.message.machine:
            return f"trigger {name} is sent to flow {flow_id}"
        said = f"signal {name} is sent to flow {flow_id}"
        if name in waited:
            return said
        return f"{said}, which keeps it: nobody waits for it now; {_said_waits(waited)}"

    say(ask_flows(url, send, place=app))
    return 0


def send_trigger(
    flow_id: FlowArgument,
    transition: Annotated[str, typer.Argument(metavar="TRANSITION", help="The name of the transition.")],
    payload: Annotated[str, typer.Argument(metavar="JSON", help="Its payload.")] = "null",
    *,
    app: Annotated[
        str | None,
        typer.Option(metavar="MODULE:PROVIDER", help="Check the payload by the program's state machine."),
    ] = None,
    url: UrlOption = None,
) -> int:
    """Fire a transition of a state machine that waits for it; it is refused if the place of the machine does
    not accept it.

    Ends when the trigger is recorded. With --app a payload that does not fit is refused; else the worker
    judges it.
    """
    value = _read_json(payload)
    if app is not None:
        _check(app, flow_id, transition, value)

    async def send(flows: WorkflowProvider) -> None:
        with _refusals():
            await flows.handle(flow_id).trigger(transition, value)

    ask_flows(url, send, place=app)
    say(f"trigger {transition} is sent to flow {flow_id}")
    return 0


@contextmanager
def _refusals() -> Generator[None]:
    """Have a name or a payload that is refused here count as a wrong command line."""
    try:
        yield
    except (DefinitionError, PayloadError) as error:
        raise CommandError(str(error)) from None


def _said_waits(names: Sequence[str]) -> str:
    kinds = sorted(set(names))
    return f"the flow waits for signal {' and '.join(kinds)}" if kinds else "the flow waits for no signal now"


def _read_json(payload: str) -> Any:
    try:
        return msgspec.json.decode(payload)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise CommandError(f"expected the payload to be JSON, got: {shown(payload)}") from None


def _check(app: str, flow_id: str, name: str, payload: Any) -> None:
    """Refuse what the workflow of a flow does not declare. Without a declaration anything is accepted."""
    workflow = workflow_of(flow_id)
    with _refusals():
        is_known = check_json(registry_of(load_provider(app), app), workflow, name, payload)
    if not is_known:
        raise CommandError(f"{app} has no workflow {workflow!r}")


def check_place(app: str, flow_id: str, place: str) -> None:
    """Refuse a place that the state machine of a flow does not have. Raises CommandError."""
    machine = registry_of(load_provider(app), app).machine(workflow_of(flow_id))
    if machine is None:
        raise CommandError(f"{app} has no state machine {workflow_of(flow_id)!r}")
    if place not in machine.out_of:
        raise CommandError(
            f"{machine.where} has no place {shown(place)}; its places: {', '.join(map(repr, machine.places))}"
        )


def list_waiting(
    *, workflow: WorkflowOption = None, as_json: JsonOption = False, url: UrlOption = None
) -> int:
    """List what the open flows wait for: signals, times, workers and retries; with --json an object on a
    line.

    Flows that are nested in others are among them.
    """

    async def read(flows: WorkflowProvider) -> list[Waiting]:
        jobs, names = flows.provider.jobs, [workflow] if workflow else []
        found = [line async for flow in recorded_flows(jobs, names) for line in await _lines_of(jobs, flow)]
        if not found:
            await check_known_workflow(flows, workflow)
        return found

    found = ask_flows(url, read, reads_only=True)
    show_found(found, _LISTING.print, as_json=as_json)
    return 0


async def _lines_of(jobs: JobClient, flow: FlowRecord) -> list[Waiting]:
    if flow.damage:
        say(f"warning: {flow.damage}", err=True)
        return []
    found: list[Waiting] = []
    if flow.fields.get("state") == "parked":
        created, why = number_in(flow.fields, "created"), flow.fields.get("why", "")
        found.append(Waiting(flow.flow_id, flow.root_id, "", "", created, 0, why))
    for entry in await open_waits(jobs, flow):
        signal = entry.name if entry.kind == "wait" else ""
        if flow.message.machine and signal:
            signal = f"{_TRIGGER}{signal}"
        error = f"{entry.name}: {error_text(entry.failure)}" if entry.kind == "failed" else ""
        times = (entry.started_ms, entry.due_ms)
        found.append(Waiting(flow.flow_id, flow.root_id, entry.place, signal, *times, error=error))
    return found


def _told(line: Waiting) -> str:
    if line.parked:
        return f"another worker: {' '.join(line.parked.split())}"
    if line.error:
        return f"a retry, {' '.join(line.error.split())}"
    if line.waits_for.startswith(_TRIGGER):
        return f"trigger {line.waits_for.removeprefix(_TRIGGER)}"
    return f"signal {line.waits_for}" if line.waits_for else "a time"


def _row(line: Waiting) -> Row:
    until = moment(line.until_ms) if line.until_ms else ""
    root = line.root_id if line.root_id != line.flow_id else ""
    return line.flow_id, line.position, _told(line), moment(line.since_ms), until, root


_LISTING = Listing(
    _row, "flow, call, waits for, since, until, part of", none="no flow waits", optional="part of"
)
