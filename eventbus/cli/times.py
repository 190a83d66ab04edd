"""Formats times for people, in the output of commands."""

from __future__ import annotations

from datetime import UTC, datetime

from eventbus.model import clock

__all__ = ["moment", "span"]


def moment(unix_ms: int) -> str:
    """Return a Unix time in ms as text in this machine's time zone; `-` for 0."""
    if not unix_ms:
        return "-"
    try:
        return datetime.fromtimestamp(unix_ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # of a damaged record
        return f"{unix_ms} ms"


def span(began_ms: int, ended_ms: int) -> str:
    """Return the time between two Unix times in ms as text. An end of 0 means now."""
    seconds = max(0.0, (ended_ms or clock.now() * 1000) - began_ms) / 1000
    if seconds < 100:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
