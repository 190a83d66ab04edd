"""The command `python -m benchmarks`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from benchmarks import machine, page, table
from benchmarks.programs import ROOT
from benchmarks.rounds import Plan, run
from benchmarks.server import MODES
from benchmarks.sides import SIDES
from benchmarks.works import WORKS

SMALL_COUNT = 1000

_PLACES = ("--output", "--server")

_T = TypeVar("_T")


def _chosen(given: str, known: dict[str, _T], option: str) -> list[_T]:
    names = [name.strip() for name in given.split(",") if name.strip()] or list(known)
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"expected some of {', '.join(known)}, got: {name}", param_hint=option)
    return [value for name, value in known.items() if name in names]


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
    only: Annotated[str, typer.Option(help="Works, with commas.")] = "",
    sides: Annotated[str, typer.Option(help="Sides, with commas.")] = "",
    aof: Annotated[bool | None, typer.Option(help="Only with, or only without, the AOF.")] = None,
    small: Annotated[bool, typer.Option(help="A smoke run: one round of few jobs, no page.")] = False,
    server: Annotated[str, typer.Option(help="The server's program.")] = "redis-server",
    write: Annotated[bool, typer.Option(help="Write the page.")] = True,
    output: Annotated[Path, typer.Option(help="The page.")] = ROOT / "docs" / "benchmarks.md",
) -> None:
    """Measure this library, its peers and the floor, and show the figures side by side.

    Ends with exit code 1 if our side or the floor could not run; a peer may be missing.
    """
    if small:
        count, rounds_, write = min(count, SMALL_COUNT), 1, False
    plan = Plan(
        sides=_chosen(sides, {side.name.lower(): side for side in SIDES}, "--sides"),
        works=_chosen(only, {work.name: work for work in WORKS}, "--only"),
        modes=[mode for mode in MODES if aof is None or mode.startswith("AOF") == aof],
        count=count,
        rounds=rounds_,
        program=server,
    )
    console = Console()
    other = machine.OtherLoad()
    with console.status("") as status:
        results = run(plan, status.update)
    facts = machine.facts(results.server, plan.sides, other.share())
    table.show(console, results, facts)
    if write:
        page.write(output, page.section(results, facts, _command(sys.argv[1:])))
    if not results.is_ours_whole():
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
