"""The command `python -m benchmarks`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from benchmarks.own.lab import SMALL_COUNT
from benchmarks.own.rows import ROWS
from benchmarks.processes.programs import ROOT
from benchmarks.processes.server import MODES
from benchmarks.report import machine, page, table
from benchmarks.rounds import Plan, run
from benchmarks.sides import SIDES, Side
from benchmarks.works import WORKS

_PLACES = ("--output", "--server")
_NONE = "none"
_PAGE = ROOT / "docs" / "benchmarks.md"

_T = TypeVar("_T")


def _chosen(given: str, known: Mapping[str, _T], option: str) -> list[_T]:
    """Return the values of the names given with commas, all of them if none is given."""
    names = [name.strip().lower() for name in given.split(",") if name.strip()] or list(known)
    for name in names:
        if name not in known and name != _NONE:
            raise typer.BadParameter(f"expected some of {', '.join(known)}, got: {name}", param_hint=option)
    return [value for name, value in known.items() if name in names]


def _sides(peers: str) -> list[Side]:
    """Return our side and the floor, which are always there, and the peers asked for."""
    chosen = _chosen(peers, {side.name.lower(): side for side in SIDES if side.peer}, "--peers")
    return [side for side in SIDES if not side.peer or side in chosen]


def _command(argv: Sequence[str]) -> str:
    """Return the command line without the places of this machine."""
    words = ["python", "-m", "benchmarks"]
    hidden = False
    for word in argv:
        if not hidden and word.partition("=")[0] not in _PLACES:
            words.append(word)
        hidden = word in _PLACES
    return " ".join(words)


def main(
    *,
    count: Annotated[int, typer.Option(min=20, help="Jobs of a full-sized work.")] = 50_000,
    rounds_: Annotated[int, typer.Option("--rounds", min=1, help="Rounds; medians are shown.")] = 3,
    only: Annotated[str, typer.Option(help="Works and rows of our own, with commas.")] = "",
    peers: Annotated[
        str, typer.Option(help="Peers, with commas, or none; our side and the floor always run.")
    ] = "",
    aof: Annotated[bool | None, typer.Option(help="Only with, or only without, the AOF.")] = None,
    small: Annotated[
        bool, typer.Option(help="A smoke run: one round of few jobs; no page, unless --output names one.")
    ] = False,
    server: Annotated[str, typer.Option(help="The server's program.")] = "redis-server",
    write: Annotated[bool, typer.Option(help="Write the page.")] = True,
    output: Annotated[Path | None, typer.Option(help="The page, else docs/benchmarks.md.")] = None,
) -> None:
    """Measure this library, its peers and the floor, and show the figures side by side.

    Ends with exit code 1 if our side or the floor could not run; a peer may be missing.
    """
    if small:
        count, rounds_, write = min(count, SMALL_COUNT), 1, write and output is not None
    known = {each.name: each for each in (*WORKS, *ROWS)}
    chosen = _chosen(only, known, "--only")
    plan = Plan(
        sides=_sides(peers),
        works=[work for work in WORKS if work in chosen],
        rows=[row for row in ROWS if row in chosen],
        modes=[mode for mode in MODES if aof is None or mode.startswith("AOF") == aof],
        count=count,
        rounds=rounds_,
        program=server,
    )
    console = Console()
    other, began = machine.OtherLoad(), monotonic()
    with console.status("") as status:
        results = run(plan, status.update if console.is_terminal else lambda _: None)
    facts = machine.facts(results.server, plan.sides, other.share(), monotonic() - began)
    table.show(console, results, facts)
    if write:
        page.write(output or _PAGE, page.section(results, facts, _command(sys.argv[1:])))
    if not results.is_ours_whole():
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
