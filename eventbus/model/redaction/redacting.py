"""Hiding values that are shown: what the marks of their type, or the names of their fields, say is hidden.

What must hold: marks of any form, also damaged ones, raise nothing and show nothing that whole ones would
hide. What is shown instead of a value says where the value stands, and nothing of the value: two equal values
look different, and so nobody can find a value by trying.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias, cast

from eventbus.model.redaction.marks import EACH, HIDDEN, ROOT, Marks
from eventbus.model.redaction.places import DOTS

Names: TypeAlias = Callable[[str], bool]
"""Says of the name of a field whether its value is hidden."""

_SECRET_NAME = re.compile(r"pass|secret|token|card|iban|authori[sz]ation|credential|api[-_ ]?key|cvv|cvc|ssn")
_INNOCENT = re.compile(
    r"passe(?:nger|d)|passi(?:ng|ve|on)|passage"
    r"|(?<![a-z])(?:by|com|encom|sur|tres|over)pass(?!word)"
    r"|tokeni[sz]er?s?(?![a-z])|(?<![a-z])token_?(?:count|limit)(?![a-z_])"
    r"|(?<![a-z])(?:max|min|num|total|prompt|completion|input|output)_?tokens(?![a-z_])"
    r"|discard|wildcard|scorecard|postcard|cardi(?:nal|o|gan)|cardboard"
    r"|caliban|(?<=[a-z])(?<!pa)ssn(?=[aeou])"
)
"""What looks like a part of a secret name, and belongs to a usual word."""
_PARTS = ("pass", "secret", "token", "card", "iban", "authori", "credential", "api", "cv", "ssn", "\\u")
"""One of these is in a text that has a secret name; the last one may be a letter of it."""
_LONG_NAME = 64
_HIDDEN_VALUE = re.compile(rf"{DOTS}[0-9a-f]{{8}}( \w+)?")
_DEEPEST = 200


def may_name_secrets(text: str) -> bool:
    """Return whether a JSON text may have a field with a secret name; this is much cheaper than to
    read it.
    """
    lowered = text.lower()
    return any(part in lowered for part in _PARTS)


def is_secret_name(name: str) -> bool:
    """Return whether the name of a field looks like that of a secret."""
    return _has_secret(name) if len(name) <= _LONG_NAME else _has_secret.__wrapped__(name)


@lru_cache(maxsize=4096)
def _has_secret(name: str) -> bool:
    return _SECRET_NAME.search(_INNOCENT.sub(" ", name.lower())) is not None


def hide(value: Any, marks: Marks | None, *, names: Names | None = None, where: str = "") -> Any:
    """Return the JSON value with `•••` and digits in the place of what is hidden.

    `where` says whose value it is, so that one from another job is not taken for it. What is marked goes as a
    whole; of what has a secret name, the names and the structure stay.
    """
    if marks is None and names is None:
        return value
    return _Hiding(marks or [], names).copy(value, start_nodes(marks), where)


def hide_all(value: Any, *, where: str = "") -> Any:
    """Return the JSON value with `•••`, digits and the name of its type for each value but null."""
    return _Hiding([], None, with_types=True).copy(value, set(), where, is_secret=True)


class _Hiding:
    """The copy of one value, without what is hidden."""

    def __init__(self, marks: Marks, names: Names | None, *, with_types: bool = False) -> None:
        self._marks = marks
        self._names = names
        self._with_types = with_types
        self._known: dict[str, bool] = {}

    def copy(
        self, value: Any, nodes: set[int], where: str, *, is_secret: bool = False, depth: int = 0
    ) -> Any:
        if HIDDEN in nodes:
            return shown_at(where)
        if depth > _DEEPEST:
            return "…"
        if isinstance(value, Mapping):
            fields = cast("Mapping[Any, Any]", value)
            return {
                str(name): self.copy(
                    part,
                    next_nodes(self._marks, nodes, str(name)),
                    f"{where}/{_escaped(str(name))}",
                    is_secret=is_secret or self._is_secret(str(name)),
                    depth=depth + 1,
                )
                for name, part in fields.items()
            }
        if isinstance(value, (list, tuple)):
            following = next_nodes(self._marks, nodes, EACH)
            return [
                self.copy(part, following, f"{where}/{place}", is_secret=is_secret, depth=depth + 1)
                for place, part in enumerate(cast("list[Any]", value))
            ]
        if not is_secret or value is None:
            return value
        return f"{shown_at(where)} {type(value).__name__}" if self._with_types else shown_at(where)

    def _is_secret(self, name: str) -> bool:
        if self._names is None:
            return False
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._names(name)
        return known


def _escaped(name: str) -> str:
    """Return a name as in a JSON pointer, so that no two places look alike."""
    return name.replace("~", "~0").replace("/", "~1")


def start_nodes(marks: Marks | None) -> set[int]:
    """Return the nodes of a whole value."""
    if marks is None:
        return set()
    return {ROOT} if len(marks) > ROOT else {HIDDEN}


def next_nodes(marks: Marks, nodes: set[int], name: str) -> set[int]:
    """Return the nodes of a part. One that the marks do not have counts as sensitive."""
    if not nodes:
        return nodes
    found: set[int] = set()
    for node in nodes:
        known = marks[node]
        found.update(known.get(name, ()), known.get(EACH, ()))
    return {node if 0 <= node < len(marks) else HIDDEN for node in found}


def shown_at(where: str) -> str:
    """Return what is shown instead of the value at a place: digits of the place, in each process the same."""
    return f"{DOTS}{hashlib.blake2s(where.encode('utf-8', 'replace'), digest_size=4).hexdigest()}"


def is_hidden(value: Any) -> bool:
    """Return whether it is what people see instead of a value, so that nobody takes it for a value."""
    return isinstance(value, str) and _HIDDEN_VALUE.fullmatch(value) is not None


def holds_hidden(value: Any) -> bool:
    """Return whether it is a text with what people see instead of a value in it, as of a copy that went
    wrong.
    """
    return isinstance(value, str) and DOTS in value and _HIDDEN_VALUE.search(value) is not None


def find_hidden(value: Any, at: str = "$") -> str | None:
    """Return the JSON path of the first text or name in a JSON value that holds what is only shown instead of
    a value; None where there is none.
    """
    if holds_hidden(value):
        return at
    parts: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if any(map(holds_hidden, fields)):
            return at
        parts = [(f"{at}.{name}", part) for name, part in fields.items()]
    elif isinstance(value, list):
        parts = [(f"{at}[{place}]", part) for place, part in enumerate(cast("list[Any]", value))]
    return next((found for path, part in parts if (found := find_hidden(part, path)) is not None), None)
