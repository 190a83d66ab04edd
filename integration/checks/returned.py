"""What a durable function may return: the lines that its pieces can tell, and whether it can fail.

Without races it follows from the course. A race is won by any of its parts, which the line `won N` names. How
a flow ended that the function started, its record says: flows have fates of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from apps.drawn.graphs import NEVER, Course
from apps.drawn.pieces import Piece

__all__ = ["Fates", "can_fail", "judge_lines"]


class Fates(NamedTuple):
    """What decides how a flow ends: its course, and the recorded states of the flows that it started, by
    name.
    """

    course: Course
    flows: Mapping[str, set[str]]


def can_fail(piece: Piece, fates: Fates) -> bool:
    """Tell whether a piece may raise."""
    if piece.kind == "catch":
        return False
    if piece.kind == "flow":
        return "failed" in fates.flows.get(piece.flow.name, ())
    is_broken = any(fates.course.acts[name].good == NEVER for name in piece.acts)
    return is_broken or any(can_fail(part, fates) for part in piece.parts)


def judge_lines(body: Piece, lines: Sequence[str], fates: Fates) -> Iterator[str]:
    """Yield what is wrong with the lines that a flow returned. Signals came in the order of their numbers."""
    if len(lines) not in set(_ends(body, lines, 0, fates)):
        yield "its code cannot return that"
    if lines.count("maybe 0") > 1:
        yield "one signal came twice"
    signals = [int(line.split()[1]) for line in lines if line.startswith("go ")]
    twice = [number for number, times in Counter(signals).items() if times > 1]
    if twice or not set(signals) <= set(range(body.count("wait"))):
        yield f"signals {signals} of {body.count('wait')}"
    is_straight = not (body.count("gather") or body.count("race") or body.count("catch"))
    if is_straight and signals != list(range(body.count("wait"))):
        yield f"signals {signals} in another order than they were sent"


def _ends(piece: Piece, lines: Sequence[str], start: int, fates: Fates) -> Iterator[int]:
    """Yield each place where the lines of a piece may end that begin at `start`."""
    kind, rest = piece.kind, lines[start:]
    if kind in ("row", "gather"):
        yield from _ends_of_row(piece.parts, lines, start, fates)
    elif kind == "catch":
        yield from _ends(piece.parts[0], lines, start, fates)
        if rest[:1] == ["caught"] and can_fail(piece.parts[0], fates):
            yield start + 1
    elif kind == "race":
        won = rest[0].partition("won ")[2] if rest else ""
        if won.isdigit() and int(won) < len(piece.parts):
            yield from _ends(piece.parts[int(won)], lines, start + 1, fates)
    elif kind in ("call", "map"):
        wanted = piece.acts
        told = [line.partition(" by ")[0] for line in rest[: len(wanted)]]
        if told == wanted and all(fates.course.acts[name].good != NEVER for name in wanted):
            yield start + len(wanted)
    elif kind == "flow":
        is_completed = "completed" in fates.flows.get(piece.flow.name, ())
        if is_completed and rest[:1] == [piece.flow.name]:
            yield start + 1
    elif kind == "sleep" or (rest and _is_told(piece, rest[0])):
        yield start + (kind != "sleep")


def _ends_of_row(parts: Sequence[Piece], lines: Sequence[str], start: int, fates: Fates) -> Iterator[int]:
    places = {start}
    for part in parts:
        places = {end for place in places for end in _ends(part, lines, place, fates)}
    yield from places


def _is_told(piece: Piece, line: str) -> bool:
    if piece.kind == "limited":
        return line in ("maybe not", "maybe 0")
    return line.startswith("go " if piece.kind == "wait" else "derived ")
