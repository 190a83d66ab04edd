"""The Gantt of a flow: plain numbers, of which a template makes SVG. A row is a step, a bar its last attempt.

Rollbacks have no times in the server, so they are a list beside it, in their order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from eventbus.dashboard.desk.flows.flow import states_of
from eventbus.model import clock

_WIDTH = 800
_ROW = 22
_MOST = 200


class Bar(NamedTuple):
    """One step. `x` and `width` are in units of the drawing."""

    step: str
    state: str
    y: int
    x: float
    width: float
    begin_ms: int
    end_ms: int


class Drawing(NamedTuple):
    """All bars; `left_out` is how many steps are only in the table."""

    bars: list[Bar]
    height: int
    width: int
    left_out: int


def draw(report: dict[str, Any]) -> Drawing | None:
    """Return the drawing of a flow's report; None if no step has begun."""
    steps = [(name, step) for name, step in report["steps"].items() if step["started_ms"]]
    if not steps:
        return None
    now = round(clock.now() * 1000)
    first = min(step["started_ms"] for _, step in steps)
    last = max(step["ended_ms"] or step["started_ms"] for _, step in steps)
    if any(not step["ended_ms"] for _, step in steps):
        last = max(last, report["ended_ms"] or now)
    states = states_of(report)
    scale = _WIDTH / max(last - first, 1)
    bars: list[Bar] = []
    for place, (name, step) in enumerate(sorted(steps, key=lambda each: each[1]["started_ms"])[:_MOST]):
        end = step["ended_ms"] or last
        width = max((end - step["started_ms"]) * scale, 2.0)
        x = min((step["started_ms"] - first) * scale, _WIDTH - width)
        bars.append(
            Bar(
                name,
                states[name],
                place * _ROW,
                round(max(x, 0), 1),
                round(width, 1),
                step["started_ms"],
                step["ended_ms"],
            )
        )
    return Drawing(bars, len(bars) * _ROW, _WIDTH, max(len(steps) - _MOST, 0))
