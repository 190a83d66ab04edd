"""Hiding what is marked as sensitive: in values that are shown, and in texts that may quote them.

What must hold: marks of any form, also damaged ones, raise nothing and show nothing that whole ones would hide.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec

from eventbus.model.redaction.forms import forms_of
from eventbus.model.redaction.marks import EACH, HIDDEN, ROOT, Marks

__all__ = [
    "find_hidden",
    "forms_in",
    "hide",
    "hide_at_cuts",
    "hide_in_text",
    "is_hidden",
    "sensitive_forms",
    "sensitive_texts",
    "shown_instead",
]

_KEY = secrets.token_bytes(16)
"""So that nobody finds a short value by trying all of them."""
_LEAST = 3
"""Characters of a value that is looked for in texts; a shorter one would be found everywhere."""
_FEW = 16
"""So many values are looked for one by one."""
_CUT = re.compile(r"(\n\.\.\. \d+ characters left out \.\.\.\n|\.\.\.\Z)")
"""What stands in a text where a part was left out: in its middle, or at its end."""
_DOTS = "•••"
_HIDDEN_VALUE = re.compile(rf"{_DOTS}[0-9a-f]{{8}}( \w+)?")


def hide(value: Any, marks: Marks | None) -> Any:
    """Return the JSON value with `•••` and a digest in the place of what is sensitive."""
    return value if marks is None else _hidden(value, marks, _start(marks))


def sensitive_forms(value: Any, marks: Marks | None) -> dict[str, str]:
    """Return the forms in which errors quote the texts and numbers that are sensitive in a JSON value, each with that value."""
    if marks is None:
        return {}
    plain = {text for text in _found(value, marks, _start(marks)) if len(text) >= _LEAST}
    return {form: text for text in sorted(plain) for form in forms_of(text) if len(form) >= _LEAST}


def sensitive_texts(value: Any, marks: Marks | None) -> list[str]:
    """Return the texts and numbers that are sensitive in a JSON value, longest first, in the forms in which errors quote them."""
    return sorted(sensitive_forms(value, marks), key=len, reverse=True)


def hide_in_text(text: str, secrets_: Sequence[str]) -> str:
    """Return the text with `•••` instead of each of these values, also of those that it has in part at a cut.

    It has no digits, because it is kept and shown by other processes, in which the same value has other ones.
    """
    for each in forms_in(text, secrets_):
        text = text.replace(each, _DOTS)
    return hide_at_cuts(text, secrets_)


def forms_in(text: str, forms: Sequence[str]) -> list[str]:
    """Return those of the forms, each of three characters or more, that stand in the text, in their order.

    A payload may have thousands of sensitive values, and a text mostly repeats none. So the text is taken apart once.
    """
    if len(forms) < _FEW:
        return [form for form in forms if form in text]
    parts = {text[place : place + _LEAST] for place in range(len(text) - _LEAST + 1)}
    return [form for form in forms if form[-_LEAST:] in parts and form[:_LEAST] in parts and form in text]


def hide_at_cuts(text: str, secrets_: Sequence[str]) -> str:
    """Return the text without the parts of these values that stand where it was cut: in its middle, or at its end.

    Whoever cuts a text marks the place by `...`. A few letters that only look like a part of a value may go, too.
    """
    if not secrets_ or "..." not in text:
        return text
    parts = _CUT.split(text)  # texts, with the marks of cuts between them
    for place in range(1, len(parts), 2):
        before, after = parts[place - 1], parts[place + 1]
        if kept := max((_overlap(before, each) for each in secrets_), default=0):
            parts[place - 1] = before[:-kept] + _DOTS
        if kept := max((_overlap(each, after) for each in secrets_), default=0):
            parts[place + 1] = _DOTS + after[kept:]
    return "".join(parts)


def _overlap(left: str, right: str) -> int:
    """Return how many characters at the end of `left` are the beginning of `right`, but not all of either of them."""
    start = max(0, len(left) - len(right) + 1)
    while right and (start := left.find(right[0], start)) >= 0:
        if right.startswith(left[start:]):
            return len(left) - start
        start += 1
    return 0


def _start(marks: Marks) -> set[int]:
    return {ROOT} if len(marks) > ROOT else {HIDDEN}


def _hidden(value: Any, marks: Marks, nodes: set[int]) -> Any:
    if HIDDEN in nodes:
        return shown_instead(value)
    if not nodes:
        return value
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {name: _hidden(part, marks, _next(marks, nodes, name)) for name, part in fields.items()}
    if isinstance(value, list):
        following = _next(marks, nodes, EACH)
        return [_hidden(part, marks, following) for part in cast("list[Any]", value)]
    return value


def _found(value: Any, marks: Marks, nodes: set[int]) -> Iterator[str]:
    is_hidden = HIDDEN in nodes
    if not nodes:
        return
    if isinstance(value, dict):
        for name, part in cast("dict[str, Any]", value).items():
            yield from _found(part, marks, nodes if is_hidden else _next(marks, nodes, name))
    elif isinstance(value, list):
        following = nodes if is_hidden else _next(marks, nodes, EACH)
        for part in cast("list[Any]", value):
            yield from _found(part, marks, following)
    elif is_hidden and value is not None and not isinstance(value, bool):
        yield str(value)


def _next(marks: Marks, nodes: set[int], name: str) -> set[int]:
    """Return the nodes of a part. One that the marks do not have counts as sensitive."""
    found: set[int] = set()
    for node in nodes:
        known = marks[node]
        found.update(known.get(name, ()), known.get(EACH, ()))
    return {node if 0 <= node < len(marks) else HIDDEN for node in found}


def shown_instead(value: Any) -> str:
    """Return what this process shows instead of a value: equal digits for equal values, by a key that nobody else has."""
    data = (value if isinstance(value, str) else _json(value)).encode("utf-8", "replace")
    return f"{_DOTS}{hashlib.blake2s(data, key=_KEY, digest_size=4).hexdigest()}"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def is_hidden(value: Any) -> bool:
    """Return whether it is what people see instead of a value, so that nobody takes it for a value."""
    return isinstance(value, str) and _HIDDEN_VALUE.fullmatch(value) is not None


def find_hidden(value: Any, at: str = "$") -> str | None:
    """Return the JSON path of the first part of a JSON value that is only shown instead of one; None where there is none."""
    if is_hidden(value):
        return at
    parts: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        parts = [(f"{at}.{name}", part) for name, part in cast("dict[str, Any]", value).items()]
    elif isinstance(value, list):
        parts = [(f"{at}[{place}]", part) for place, part in enumerate(cast("list[Any]", value))]
    return next((found for path, part in parts if (found := find_hidden(part, path)) is not None), None)
