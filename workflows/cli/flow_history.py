"""`eventbus flows check` and `eventbus flows export`: whether code still does what flows have recorded."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import tempfile
from collections import Counter
from collections.abc import Generator
from errno import EISDIR
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from eventbus import EventProvider
from eventbus.cli.toolkit import (
    CommandError,
    Listing,
    Row,
    UrlOption,
    ask_server,
    load_provider,
    say,
    tell_asked,
)
from workflows import WorkflowProvider
from workflows.cli.asking import ask_flows, check_known_workflow
from workflows.client.flow_check import CheckedFlow, Mismatch, check_release
from workflows.client.histories import FlowRecord, histories_of
from workflows.functions.history_check import redacted
from workflows.functions.lint import lint
from workflows.records.ids import workflow_of
from workflows.registry import StepRegistry

_FILE_NAME = 200  # characters of an id in the name of its file


def check_flows(
    place: Annotated[
        str, typer.Argument(metavar="MODULE:PROVIDER", help="Where the program has its provider.")
    ],
    *,
    url: UrlOption = None,
) -> int:
    """Check whether a program can go on with the flows in the server, without effects: before it is deployed.

    Its durable functions are run against what their open flows and the newest ended ones have recorded. Of
    state machines each open
    flow must find its place there, what it waits for and what it may have to undo; of graphs and pipelines,
    the steps that it has
    recorded. Flows that are nested in others are read, too. Ends with 1 if something differs. Doubtful calls
    in the code, and
    open flows in a version that the program does not have, are told as warnings.
    """
    registry = registry_of(load_provider(place), place)
    for durable in registry.durables:
        for line in lint(durable):
            say(f"warning: {line}", err=True)

    async def check(provider: EventProvider) -> list[CheckedFlow]:
        return [flow async for flow in check_release(registry, provider.jobs)]

    checked = ask_server(url, check, reads_only=True, place=place)
    found = [line for flow in checked for line in flow.mismatches]
    for flow in checked:
        if flow.damage:
            _warn_of(flow.flow, flow.damage)
    foreign = Counter((workflow_of(flow.flow), flow.version) for flow in checked if flow.version)
    for (workflow, version), count in sorted(foreign.items()):
        say(
            f"warning: {count} open flows of workflow {workflow} have version {version}, which this program "
            "does not have; let workers of the release that began them run until they have ended",
            err=True,
        )
    if not found:
        count = sum(not (flow.damage or flow.version) for flow in checked)
        say(f"{count} flows can be replayed")
        if not count:
            tell_asked()
        return 0
    Listing(_row, "flow, position, recorded, asked", none="").print(found)
    return 1


def _row(line: Mismatch) -> Row:
    return tuple(map(Text, (line.flow, line.position, line.recorded, line.asked)))


def export_flows(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files are put.")],
    *,
    workflow: Annotated[str | None, typer.Option(metavar="NAME", help="Of this function only.")] = None,
    redact: Annotated[bool, typer.Option("--redact", help="Replace all texts in the values by ***.")] = False,
    url: UrlOption = None,
) -> int:
    """Write what flows of durable functions have recorded, a file each, for `workflows.testing.replay`.

    The name of a file is the id of its flow; `+` stands for the `/` in the id of a flow that is nested in
    another. If the command fails, it leaves no file and no folder of its own.
    """

    async def write(flows: WorkflowProvider) -> int:
        count, names = 0, [workflow] if workflow else []
        async for history in histories_of(flows.provider.jobs, names, ended=True):
            if isinstance(history, FlowRecord):
                _warn_of(history.flow_id, history.damage)
                continue
            written = redacted(history) if redact else history
            (beside / _file_of(history.flow_id)).write_bytes(msgspec.json.encode(written))
            count += 1
        if not count:
            await check_known_workflow(flows, workflow)
        return count

    with _all_or_nothing(folder) as beside:
        count = ask_flows(url, write, reads_only=True)
    say(f"{count} flows are written to {folder}")
    if not count:
        tell_asked()
    return 0


@contextlib.contextmanager
def _all_or_nothing(folder: Path) -> Generator[Path]:
    """Yield a folder whose files are put into `folder` at the end, which is made if it is missing.

    If an error leaves this block, nothing is put there, and what was made for it is removed.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".export-", dir=folder) as beside:
            yield Path(beside)
            files = list(Path(beside).iterdir())
            for file in files:
                if (folder / file.name).is_dir():  # the one reason that only some files would be put there
                    raise IsADirectoryError(
                        EISDIR, "a folder stands in the place of a file", str(folder / file.name)
                    )
            for file in files:
                file.replace(folder / file.name)
    except BaseException:
        for path in made:
            with contextlib.suppress(OSError):  # somebody has put something there meanwhile
                path.rmdir()
        raise


def _warn_of(flow_id: str, damage: str) -> None:
    say(f"warning: flow {flow_id} is left out: {damage}", err=True)


def _file_of(flow_id: str) -> str:
    """Return the name of a flow's file; the id of a nested flow has slashes, and may be longer than a file's
    name.
    """
    name = flow_id.replace("/", "+")
    if len(name) > _FILE_NAME:
        name = f"{name[:_FILE_NAME]}+{hashlib.sha256(flow_id.encode()).hexdigest()[:16]}"
    return f"{name}.json"


def registry_of(provider: EventProvider, place: str) -> StepRegistry:
    """Return the workflows of a program. Raises CommandError if it has none."""
    module = sys.modules[place.partition(":")[0]]
    for value in vars(module).values():
        if isinstance(value, WorkflowProvider) and value.provider is provider:
            return value._registry  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    raise CommandError(f"module {module.__name__} has no WorkflowProvider of {place}")
