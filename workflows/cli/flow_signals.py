"""`eventbus flows signal`, `trigger` and `waiting`: tell a flow what it waits for, and see which flows wait."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from eventbus import DefinitionError, PayloadError
from eventbus.cli.toolkit import (
    CommandError,
    UrlOption,
    load_provider,
    moment,
    open_console,
    shown,
    tell_asked,
)
from eventbus.lowlevel import JobClient
from workflows import WorkflowProvider
from workflows.cli.asking import ask_flows
from workflows.cli.flow_history import registry_of
from workflows.cli.known_workflows import check_known_workflow
from workflows.client.histories import FlowRecord, recorded_flows
from workflows.client.open_waits import open_waits
from workflows.client.sent_triggers import send_trigger_text
from workflows.records.ids import workflow_of
from workflows.records.records import error_text
from workflows.records.status import number_in

__all__ = ["check_place", "list_waiting", "send_signal", "send_trigger"]


_TRIGGER = "!"  # begins the names of triggers, as those of their signals


class Waiting(msgspec.Struct, frozen=True):
    """One line: a flow, the position of the call or the name of the step, and what it waits for.

    `root_id` is the flow that a program started: the same one, or the one that this flow is nested in. Times are Unix times in ms,
    0 for none. A parked flow has a line of its own, without a call: it waits for a worker that can run it, and `parked` says why. A state
    machine that stands has one, too: it waits for a retry, and `error` says why.
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
    flow_id: Annotated[str, typer.Argument(metavar="ID", help="The flow's id.")],
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

    With --app a signal that the flow's function does not declare is refused, and so is a payload that does not fit. To a state
    machine it is a trigger.
    """
    _check_json(payload)
    if app is not None:
        _check(app, flow_id, name, payload)

    async def send(flows: WorkflowProvider) -> bool:
        jobs = flows.provider.jobs
        is_machine = (await flows.report(flow_id)).machine is not None
        if is_machine:
            await send_trigger_text(jobs, flows.handle(flow_id).id, name, payload)
        else:
            await jobs.signal(flows.handle(flow_id).id, name, payload)
        return is_machine

    is_machine = ask_flows(url, send, place=app)
    print(f"{'trigger' if is_machine else 'signal'} {name} is sent to flow {flow_id}")
    return 0


def send_trigger(
    flow_id: Annotated[str, typer.Argument(metavar="ID", help="The flow's id.")],
    transition: Annotated[str, typer.Argument(metavar="TRANSITION", help="The name of the transition.")],
    payload: Annotated[str, typer.Argument(metavar="JSON", help="Its payload.")] = "null",
    *,
    app: Annotated[
        str | None,
        typer.Option(metavar="MODULE:PROVIDER", help="Check the payload by the program's state machine."),
    ] = None,
    url: UrlOption = None,
) -> int:
    """Fire a transition of a state machine that waits for it; it is refused if the place of the machine does not accept it.

    Ends when the trigger is recorded. With --app a payload that does not fit is refused; else the worker judges it.
    """
    _check_json(payload)
    if app is not None:
        _check(app, flow_id, transition, payload)

    async def send(flows: WorkflowProvider) -> None:
        await send_trigger_text(flows.provider.jobs, flows.handle(flow_id).id, transition, payload)

    ask_flows(url, send, place=app)
    print(f"trigger {transition} is sent to flow {flow_id}")
    return 0


def _check_json(payload: str) -> None:
    try:
        msgspec.json.decode(payload)
    except (msgspec.MsgspecError, UnicodeError):
        raise CommandError(f"expected the payload to be JSON, got: {shown(payload)}") from None


def _check(app: str, flow_id: str, name: str, payload: str) -> None:
    """Refuse what the function or the machine of a flow does not declare. Without a declaration anything is accepted."""
    registry = registry_of(load_provider(app), app)
    machine, known = registry.machine(workflow_of(flow_id)), registry.durable(workflow_of(flow_id))
    if known is None and machine is None:
        raise CommandError(f"{app} has no durable function or state machine {workflow_of(flow_id)!r}")
    try:
        if machine is not None:
            transition = machine.find(name)
            if not transition.waits:
                raise CommandError(f"{transition.where} waits for no trigger: it fires by itself")
            transition.decode(payload)
            return
        assert known is not None  # noqa: S101  (one of them is there)
        signal = known.check_signal(name)
        if signal is not None:
            signal.decode(payload)
    except (DefinitionError, PayloadError) as error:
        raise CommandError(str(error)) from None


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
    *,
    workflow: Annotated[str | None, typer.Option(metavar="NAME", help="Of this workflow only.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    url: UrlOption = None,
) -> int:
    """List what the open flows wait for: signals, times, workers and retries; with --json an object on a line.

    Flows that are nested in others are among them.
    """

    async def read(flows: WorkflowProvider) -> list[Waiting]:
        jobs, names = flows.provider.jobs, [workflow] if workflow else []
        found = [line async for flow in recorded_flows(jobs, names) for line in await _lines_of(jobs, flow)]
        if workflow is not None and not found:
            await check_known_workflow(flows, workflow)
        return found

    found = ask_flows(url, read, reads_only=True)
    if as_json:
        if not found:
            tell_asked()
        sys.stdout.buffer.write(b"".join(msgspec.json.encode(line) + b"\n" for line in found))
    elif found:
        open_console().print(_table(found))
    else:
        print("no flow waits")
        tell_asked()
    return 0


async def _lines_of(jobs: JobClient, flow: FlowRecord) -> list[Waiting]:
    if flow.damage:
        print(f"warning: {flow.damage}", file=sys.stderr)
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


def _table(found: list[Waiting]) -> Table:
    has_nested = any(line.root_id != line.flow_id for line in found)
    table = Table(box=None, pad_edge=False)
    for name in ("flow", "call", "waits for", "since", "until", *(["part of"] if has_nested else [])):
        table.add_column(name, no_wrap=True)
    for line in found:
        until = moment(line.until_ms) if line.until_ms else ""
        root = line.root_id if line.root_id != line.flow_id else ""
        texts = (line.flow_id, line.position, _told(line), moment(line.since_ms), until)
        table.add_row(*map(Text, texts), *([Text(root)] if has_nested else []))
    return table
