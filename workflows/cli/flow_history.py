"""`eventbus flows check` and `eventbus flows export`: whether code still does what flows have recorded."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from eventbus import DefinitionError, EventProvider, PayloadError
from eventbus.cli.toolkit import CommandError, UrlOption, ask_server, load_provider, open_console, tell_asked
from workflows import Durable, WorkflowProvider
from workflows.cli.asking import ask_flows
from workflows.cli.known_workflows import check_known_workflow
from workflows.client.histories import FlowRecord, histories_of
from workflows.functions.history_check import FlowHistory, check_history, redacted
from workflows.functions.lint import lint
from workflows.records.ids import workflow_of
from workflows.registry import StepRegistry

__all__ = ["check_flows", "export_flows", "registry_of"]

_FILE_NAME = 200  # characters of an id in the name of its file


class Found(msgspec.Struct, frozen=True):
    """One line: a flow whose code has changed. `position` is empty if the input of the flow does not fit."""

    flow: str
    position: str
    recorded: str
    asked: str


def check_flows(
    place: Annotated[
        str, typer.Argument(metavar="MODULE:PROVIDER", help="Where the program has its provider.")
    ],
    *,
    url: UrlOption = None,
) -> int:
    """Run the durable functions of a program against what their flows have recorded, without effects.

    These are the open flows and the newest ended ones, with those that are nested in others. Ends with 1 if a function does something else. Doubtful calls in the
    code are told as warnings.
    """
    registry = registry_of(load_provider(place), place)
    for durable in registry.durables:
        for line in lint(durable):
            print(f"warning: {line}", file=sys.stderr)

    async def check(provider: EventProvider) -> tuple[int, list[Found]]:
        found, count = list[Found](), 0
        names = {durable.name for durable in registry.durables}
        async for history in histories_of(provider.jobs, names, ended=True):
            if isinstance(history, FlowRecord):
                _warn_of(history)
            elif (known := registry.durable(workflow_of(history.flow_id), history.version)) is not None:
                count += 1
                found += await _check(known, history)
        return count, found

    count, found = ask_server(url, check, reads_only=True, place=place)
    if not found:
        print(f"{count} flows can be replayed")
        if not count:
            tell_asked()
        return 0
    table = Table(box=None, pad_edge=False)
    for name in Found.__struct_fields__:
        table.add_column(name, no_wrap=True)
    for line in found:
        table.add_row(*(Text(str(value)) for value in msgspec.structs.astuple(line)))
    open_console().print(table)
    return 1


def export_flows(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files are put.")],
    *,
    workflow: Annotated[str | None, typer.Option(metavar="NAME", help="Of this function only.")] = None,
    redact: Annotated[bool, typer.Option("--redact", help="Replace all texts in the values by ***.")] = False,
    url: UrlOption = None,
) -> int:
    """Write what flows of durable functions have recorded, a file each, for `workflows.testing.replay`.

    The name of a file is the id of its flow; `+` stands for the `/` in the id of a flow that is nested in another.
    """
    folder.mkdir(parents=True, exist_ok=True)

    async def write(flows: WorkflowProvider) -> int:
        count, names = 0, [workflow] if workflow else []
        async for history in histories_of(flows.provider.jobs, names, ended=True):
            if isinstance(history, FlowRecord):
                _warn_of(history)
                continue
            written = redacted(history) if redact else history
            (folder / _file_of(history.flow_id)).write_bytes(msgspec.json.encode(written))
            count += 1
        if workflow is not None and not count:
            await check_known_workflow(flows, workflow)
        return count

    count = ask_flows(url, write, reads_only=True)
    print(f"{count} flows are written to {folder}")
    if not count:
        tell_asked()
    return 0


def _warn_of(flow: FlowRecord) -> None:
    print(f"warning: flow {flow.flow_id} is left out: {flow.damage}", file=sys.stderr)


def _file_of(flow_id: str) -> str:
    """Return the name of a flow's file; the id of a nested flow has slashes, and may be longer than a file's name."""
    name = flow_id.replace("/", "+")
    if len(name) > _FILE_NAME:
        name = f"{name[:_FILE_NAME]}+{hashlib.sha256(flow_id.encode()).hexdigest()[:16]}"
    return f"{name}.json"


async def _check(durable: Durable[Any, Any], history: FlowHistory) -> list[Found]:
    try:
        error = await check_history(durable, history)
    except (PayloadError, DefinitionError) as unfit:
        return [Found(history.flow_id, "", "its input", str(unfit))]
    return (
        []
        if error is None
        else [Found(history.flow_id, error.position, error.recorded, error.asked or str(error))]
    )


def registry_of(provider: EventProvider, place: str) -> StepRegistry:
    """Return the workflows of a program. Raises CommandError if it has none."""
    module = sys.modules[place.partition(":")[0]]
    for value in vars(module).values():
        if isinstance(value, WorkflowProvider) and value.provider is provider:
            return value._registry  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    raise CommandError(f"module {module.__name__} has no WorkflowProvider of {place}")
