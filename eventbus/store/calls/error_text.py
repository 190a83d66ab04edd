"""The errors of jobs as groups: the same error with other numbers is one.

It reads the start of a recorded error, because a page of long tracebacks would be megabytes. What must hold:
a text that is cut off, damaged or foreign is a group of its own, and never an error of this module.
"""

from __future__ import annotations

import re

import msgspec

from eventbus.model.redaction.places import blank

HEAD_BYTES = 512
"""So many bytes of a recorded error are read."""

_LONGEST = 200
_TYPE = re.compile(r'"type":"((?:[^"\\]|\\.)*)"')
_MESSAGE = re.compile(r'"message":"((?:[^"\\]|\\.)*)')
_VARIES = re.compile(
    r"0x[0-9a-fA-F]+|\b(?=[0-9a-fA-F-]*\d)[0-9a-fA-F]{4,}(?:-[0-9a-fA-F]{4,})*\b|\d+(?:\.\d+)?"
)


def error_of(head: str) -> str:
    """Return type and message of a recorded error of which only the start may be there; `''` for none.

    What it quotes of hidden values is not in it.
    """
    kind, message = _TYPE.search(head), _MESSAGE.search(head)
    if kind is None:
        return plain(head.strip())
    told = blank(_text(message[1])) if message else ""
    return f"{_text(kind[1])}: {told}" if told else _text(kind[1])


def fold(error: str) -> str:
    """Return an error with `#` for each number and each id made of hexadecimal digits, its first line, 200
    characters at most.
    """
    line = error.strip().partition("\n")[0]
    folded = _VARIES.sub("#", line)
    return folded if len(folded) <= _LONGEST else f"{folded[: _LONGEST - 3]}..."


def is_of(error: str, asked: str) -> bool:
    """Return whether a folded error is the one that somebody asked for: all of it, or its type alone.

    `Type:` asks for those without a message.
    """
    return asked in (error, error.partition(":")[0]) or (asked.endswith(":") and error == asked[:-1])


def _text(raw: str) -> str:
    """Return the text of a JSON string without its quotes. One that is cut off in an escape loses that."""
    for cut in range(7):
        try:
            return plain(msgspec.json.decode(f'"{raw[: len(raw) - cut]}"', type=str))
        except (msgspec.MsgspecError, UnicodeError):
            continue
    return plain(raw)


def plain(text: str) -> str:
    """Return the text with `?` for characters that UTF-8 cannot hold, so that it can be shown and sent."""
    return text.encode(errors="replace").decode()
