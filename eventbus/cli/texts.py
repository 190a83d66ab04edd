"""Texts of others in the output of commands: names, errors and payloads, which may hold anything.

What must hold: no text moves the cursor, changes colours, begins a line or turns the direction of what
follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from eventbus.model.url_redaction import redact


def printable(text: str) -> str:
    """Return the text on one line: white space as single spaces, other characters that do not print as their
    code.
    """
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


def describe_unknown(what: str, name: str, known: Iterable[str], url: str, *, listing: str) -> str:
    """Return that the server of a URL knows no such thing, and the names of the known ones that are close.

    `listing` is the command that lists all; it is named where no name is close.
    """
    return (
        f"there is no {what} {printable(name)} on the server {redact(url)}; "
        f"{close_names(name, known, listing=listing)}"
    )


def close_names(name: str, known: Iterable[str], *, listing: str) -> str:
    """Return which of the known names may be meant; where none is close, the command that lists all."""
    from difflib import get_close_matches  # noqa: PLC0415  (only who mistypes a name needs it)

    close = get_close_matches(name, sorted(known))
    return f"did you mean {' or '.join(map(printable, close))}?" if close else f"`{listing}` lists all"


def _code(each: str) -> str:
    return each.encode("unicode_escape", "surrogatepass").decode("ascii")
