"""What is read for people may be damaged: another type of key, bytes that are no text, numbers that are none.

Whoever looks at many things must not lose all of them by one. So looks pass here, at the border of the
store: what is no text is
shown by its bytes, what is no number is told as such, and a key of another type is as one that is not there.
What must always
hold: all text that a look answers can be encoded, and its numbers fit into 53 bits.

Not here: calls that write, and the records of jobs (`admin.jobs`). These need the very bytes that the server
has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

_WHOLE = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]*)?", re.ASCII)


def readable(answer: Any) -> Any:
    """Return an answer of the server with the code of each byte that is no UTF-8 in its place."""
    if isinstance(answer, str):
        return answer if answer.isascii() else _text(answer)
    if isinstance(answer, (list, tuple)):
        return [readable(part) for part in cast("list[Any]", answer)]
    if isinstance(answer, dict):
        pairs = cast("dict[Any, Any]", answer)
        return {readable(name): readable(value) for name, value in pairs.items()}
    return answer


def is_number(text: Any) -> bool:
    """Return whether a text, or what is absent, is a number that `number` returns as it is."""
    return text in (None, "") or _WHOLE.fullmatch(str(text)) is not None


def number(text: Any, damaged: int = 0) -> int:
    """Return a whole number that stands as text; 0 for what is absent, and `damaged` for what is none."""
    if text in (None, ""):
        return 0
    return int(str(text).partition(".")[0]) if is_number(text) else damaged


def number_in(fields: Mapping[str, str], name: str) -> int:
    """Return a count or a time of a record; 0 for what is absent, and for what is none."""
    text = fields.get(name, "")
    return int(text) if text.isdecimal() else 0


def _text(answer: str) -> str:
    try:
        answer.encode()
    except UnicodeEncodeError:
        return answer.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return answer
