"""`eventbus queues history`: what became of the jobs of a queue, as small charts for people and as JSON for
programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, cast

import msgspec
import typer
from rich.table import Table

from eventbus.admin.history import Minute, Step
from eventbus.admin.queue_name import queue_of
from eventbus.cli.controls.known_queues import check_known
from eventbus.cli.options import GroupOption, UrlOption
from eventbus.cli.output import write_lines
from eventbus.cli.toolkit import ask_server, moment, open_console, tell_asked
from eventbus.model.histogram import Histogram
from eventbus.provider import EventProvider

_BARS = " ▁▂▃▄▅▆▇█"
_COLUMNS = 60

_ROWS: tuple[tuple[str, Callable[[Minute], int]], ...] = (
    ("completed", lambda each: each.completed),
    ("failed", lambda each: each.failed),
    ("retried", lambda each: each.retried),
    ("cancelled", lambda each: each.cancelled),
    ("expired", lambda each: each.expired),
    ("stalled", lambda each: each.stalled),
)


def history(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An event, NAME@GROUP, or a queue.")],
    *,
    group: GroupOption = None,
    last: Annotated[str, typer.Option("--last", help="How long ago it begins, such as 30m or 7d.")] = "1h",
    step: Annotated[
        str | None, typer.Option("--step", help="1m or 1h; by the minute for 6 hours and less.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, an object on a line for each minute or hour.")
    ] = False,
    url: UrlOption = None,
) -> None:
    """Show how many of its jobs ended how, how long they waited and ran, and how many wait."""

    async def ask(provider: EventProvider) -> list[Minute]:
        found = await provider.inspector.queues.history(
            name, group, last=last, step=cast("Step | None", step)
        )
        if not any(each.waiting or each.runs.count or any(read(each) for _, read in _ROWS) for each in found):
            await check_known(provider, queue_of(name, group))
        return found

    found = ask_server(url, ask, reads_only=True)
    if as_json:
        write_lines(map(_as_row, found))
    else:
        _print(found)


def sparkline(values: Sequence[int], columns: int = _COLUMNS) -> str:
    """Return a bar for each value, the highest one for the greatest; so many neighbours share one that all
    fit.
    """
    width = -(-len(values) // columns) or 1
    sums = [sum(values[first : first + width]) for first in range(0, len(values), width)]
    top = max(sums, default=0)
    return "".join(_BARS[-(-each * 8 // top)] if each else _BARS[0] for each in sums)


def _as_row(minute: Minute) -> dict[str, object]:
    """Return a minute as a program reads it: of each histogram its count, and percentiles in seconds."""
    row = msgspec.structs.asdict(minute)
    for name in ("waits", "runs"):
        found: Histogram = row[name]
        row[name] = {"count": found.count, "p50": found.p50, "p95": found.p95, "p99": found.p99}
    return row


def _print(found: Sequence[Minute]) -> None:
    waits, runs = (Histogram.total(part) for part in ([m.waits for m in found], [m.runs for m in found]))
    rows = [(label, [read(each) for each in found]) for label, read in _ROWS]
    console = open_console()
    if not (waits.count or runs.count or any(any(values) for _, values in rows)):
        said = f"no job ended since {moment(found[0].at_ms)}, as far as workers have told"
        console.print(said)
        tell_asked()
    else:
        table = Table(box=None, pad_edge=False)
        table.add_column("jobs", no_wrap=True)
        table.add_column("total", justify="right", no_wrap=True)
        table.add_column(f"since {moment(found[0].at_ms)}", no_wrap=True)
        for label, values in rows:
            if label == "completed" or any(values):
                table.add_row(label, str(sum(values)), f"|{sparkline(values)}|")
        console.print(table)
        for label, part in (("waited", waits), ("ran", runs)):
            shown = "   ".join(
                f"{name} {_shown(value)}"
                for name, value in (("p50", part.p50), ("p95", part.p95), ("p99", part.p99))
            )
            console.print(f"{label:<7} {shown}")
    last = next((each for each in reversed(found[-3:]) if each.waiting), None)
    if last is not None:
        console.print(f"waiting {last.waiting}, the oldest for {_shown(last.oldest_ms / 1000)}")


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
