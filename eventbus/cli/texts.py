"""Texts of others in the output of commands: names, errors and payloads, which may hold anything.

What must hold: no text moves the cursor, changes colours, begins a line or turns the direction of what follows.
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["json_text", "printable", "visible"]


def printable(text: str) -> str:
    """Return the text on one line: white space as single spaces, other characters that do not print as their code."""
    return visible(" ".join(text.split()))


def visible(text: str) -> str:
    """Return the text with each character that does not print as its code."""
    return "".join(each if each.isprintable() else _code(each) for each in text)


def json_text(value: Any, *, most: int | None = None) -> str:
    """Return a value as JSON on one line, cut to `most` characters with a word about the rest."""
    text = visible(msgspec.json.encode(value).decode())
    if most is None or len(text) <= most:
        return text
    return f"{text[:most]}... ({len(text) - most} characters more)"


def _code(each: str) -> str:
    return each.encode("unicode_escape", "surrogatepass").decode("ascii")
