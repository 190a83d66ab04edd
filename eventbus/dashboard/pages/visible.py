"""Texts as pages show them. Everything that the server keeps is hostile: names, ids, errors, payloads.

What must always hold: a character that moves or hides others (control, ANSI, direction) is shown as its code;
a text is cut before it makes a page large.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import msgspec
from markupsafe import Markup

LONGEST = 64 * 1024
"""How many characters of one text a page shows."""

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def visible(value: Any) -> Any:
    """Return a value as a text without hidden characters; what is HTML already stays. Templates show nothing
    around it.
    """
    if isinstance(value, Markup):
        return value
    text = value if isinstance(value, str) else "" if value is None else str(value)
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}… ({len(text)} characters)"
    return _HIDDEN.sub(_code, text)


def json_text(value: Any) -> str:
    """Return a value as JSON for people, cut."""
    try:
        raw = msgspec.json.encode(value, enc_hook=str)
        if len(raw) > LONGEST:  # laid out, it would be larger still
            return (
                f"{raw[: LONGEST - 200].decode(errors='replace')}… ({len(raw)} bytes; the API has them all)"
            )
        return msgspec.json.format(raw, indent=2).decode()
    except (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError) as error:
        return f"cannot be shown: {type(error).__name__}"


def moment(unix_ms: int) -> str:
    """Return a Unix time in ms in UTC; `-` for 0."""
    if not unix_ms:
        return "-"
    try:
        return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # a damaged record
        return f"{unix_ms} ms"


def span(begin_ms: int, end_ms: int) -> str:
    """Return the time between two Unix times in ms, in two units at most; `-` if one is 0."""
    if not begin_ms or not end_ms:
        return "-"
    milliseconds = max(end_ms - begin_ms, 0)
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    seconds = milliseconds // 1000
    if seconds < 60:
        return f"{milliseconds / 1000:.1f} s"
    for size, unit, smaller, of in ((86400, "d", "h", 3600), (3600, "h", "min", 60), (60, "min", "s", 1)):
        if seconds >= size:
            return f"{seconds // size} {unit} {seconds % size // of} {smaller}"
    return f"{seconds} s"


def _code(match: re.Match[str]) -> str:
    return f"\\u{{{ord(match[0]):x}}}"
