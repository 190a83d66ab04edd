"""Texts with places: what a text quotes of hidden values stands between two marks, in the text itself.

    a text of an error + the values that it may quote -> the text with places, which is recorded
    whoever may see everything   <- `plain`: the text as it was
    everybody else               <- `blank`: the text with `•••` in each place

The places are found once, by the worker that records the text, because it alone has the payload of that
moment: a payload may be edited later. The marks are two characters that Unicode keeps free for a program's
own use, so no text of people has them. They travel with the text: through cuts, through the message of a flow
that quotes the error of its step, and through any record that holds it.

What must hold:
- a text of somebody else loses these characters before it is searched, so nobody opens or closes a place;
- a text that was cut behind the beginning of a place shows nothing from there on;
- the work is bounded by the text, which was cut before, and by the values, which are few (`hidden_values`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby, islice

DOTS = "•••"
"""What people see in a place."""

_START, _END = "\ufdd0", "\ufdd1"
_PLACE = re.compile(f"{_START}([^{_START}{_END}]*)(?:{_END}|$)")
_MARKS = {ord(_START): None, ord(_END): None}
_CUT = re.compile(r"\n\.\.\. \d+ characters left out \.\.\.\n|\.\.\.\Z")
"""What stands in a text where a part was left out: in its middle, or at its end."""
_SHOWN, _HIDDEN, _GONE = 0, 1, 2
_GRAM = 3
"""Characters of the shortest value that is looked for."""
_FEW = 16
"""So many values are looked for one by one."""
_MOST, _MOST_CUTS = 5000, 8
"""A text that quotes hidden values at more places, or that looks as if it was cut more often, is hidden as a
whole: people can write what stands at a cut, too.
"""


def plain(text: str) -> str:
    """Return the text as it was recorded, without marks."""
    return text.translate(_MARKS) if _START in text or _END in text else text


def blank(text: str) -> str:
    """Return the text with `•••` in each of its places."""
    return plain(_PLACE.sub(DOTS, text)) if _START in text else plain(text)


def find_hidden_in(text: str) -> set[str]:
    """Return what stands in the places of a text."""
    return {found for found in _PLACE.findall(text) if found}


def hide_whole(text: str) -> str:
    """Return the text as one place."""
    return f"{_START}{plain(text)}{_END}" if text else text


def record_places(text: str, hidden: Sequence[str], gone: Sequence[str] = ()) -> str:
    """Return the text with a place around each of the `hidden` values, and `•••` instead of each that is
    `gone`.

    Its own places stay. Parts of a value that stand where the text was cut are a value, too.
    """
    if not (hidden or gone):
        return text
    whole, kinds = _read(text)
    is_changed = False
    for kind, values in ((_HIDDEN, hidden), (_GONE, gone)):
        for number, (start, end) in enumerate(_find(whole, values)):
            is_changed = True
            if number == _MOST:
                kinds[:] = bytes([kind]) * len(whole)
                break
            kinds[start:end] = bytes([kind]) * (end - start)
    return _write(whole, kinds) if is_changed else text


def _read(text: str) -> tuple[str, bytearray]:
    """Return a text without marks, and for each of its characters what becomes of it."""
    if _START not in text:
        whole = plain(text)
        return whole, bytearray(len(whole))
    parts, kinds, end = list[str](), bytearray(), 0
    for place in _PLACE.finditer(text):
        for part, kind in ((plain(text[end : place.start()]), _SHOWN), (place[1], _HIDDEN)):
            parts.append(part)
            kinds += bytes([kind]) * len(part)
        end = place.end()
    rest = plain(text[end:])
    return "".join([*parts, rest]), kinds + bytes(len(rest))


def _write(whole: str, kinds: bytearray) -> str:
    parts, start = list[str](), 0
    for kind, run in groupby(kinds):
        end = start + sum(1 for _ in run)
        part = whole[start:end]
        parts.append(part if kind == _SHOWN else f"{_START}{part}{_END}" if kind == _HIDDEN else DOTS)
        start = end
    return "".join(parts)


def _find(text: str, values: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield where the values stand in a text: the first character, and the one behind the last."""
    for value in _in(text, values):
        start = text.find(value)
        while start >= 0:
            yield start, start + len(value)
            start = text.find(value, start + len(value))
    if values and "..." in text:
        yield from _find_at_cuts(text, values)


def _in(text: str, values: Sequence[str]) -> list[str]:
    """Return those of the values, each of three characters or more, that stand in the text.

    There may be hundreds of values, and a text mostly repeats none. So the text is taken apart once.
    """
    if len(values) < _FEW:
        return [value for value in values if value in text]
    grams = {text[place : place + _GRAM] for place in range(len(text) - _GRAM + 1)}
    return [value for value in values if value[-_GRAM:] in grams and value[:_GRAM] in grams and value in text]


def _find_at_cuts(text: str, values: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the parts of values that stand where the text was cut. A few letters that only look like one may
    go, too.
    """
    cuts, last = list(islice(_CUT.finditer(text), _MOST_CUTS + 1)), 0
    if len(cuts) > _MOST_CUTS:
        yield 0, len(text)
        return
    for cut in cuts:
        before, after = text[last : cut.start()], text[cut.end() :]
        if kept := max(_overlap(before, value) for value in values):
            yield cut.start() - kept, cut.start()
        if kept := max(_overlap(value, after) for value in values):
            yield cut.end(), cut.end() + kept
        last = cut.end()


def _overlap(left: str, right: str) -> int:
    """Return how many characters at the end of `left` are the beginning of `right`."""
    start = max(0, len(left) - len(right))
    while right and (start := left.find(right[0], start)) >= 0:
        if right.startswith(left[start:]):
            return len(left) - start
        start += 1
    return 0
