"""Formats times for people, in the output of commands."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from eventbus.model import clock

_TOLD = re.compile(r"\b(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC\b")


def moment(unix_ms: int) -> str:
    """Return a Unix time in ms as text in this machine's time zone, with its offset; `-` for 0."""
    if not unix_ms:
        return "-"
    try:
        return datetime.fromtimestamp(unix_ms / 1000, UTC).astimezone().isoformat(" ", "seconds")
    except (ValueError, OverflowError, OSError):  # of a damaged record
        return f"{unix_ms} ms"


def in_local_time(text: str) -> str:
    """Return a sentence of the library, whose times are UTC, with the times that `moment` gives."""
    return _TOLD.sub(_in_local_time, text)


def _in_local_time(found: re.Match[str]) -> str:
    try:
        return moment(round(datetime.fromisoformat(f"{found[1]}+00:00").timestamp() * 1000))
    except ValueError:  # a reason that somebody wrote, which only looks like a time
        return found[0]


def span(began_ms: int, ended_ms: int) -> str:
    """Return the time between two Unix times in ms as text. An end of 0 means now."""
    seconds = max(0.0, (ended_ms or clock.now() * 1000) - began_ms) / 1000
    if seconds < 100:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
