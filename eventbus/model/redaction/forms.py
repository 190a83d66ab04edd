"""The forms in which errors quote a value that is text in JSON.

A value of JSON text may be bytes, a date, a duration or a UUID in the program, which prints it in another
way. Its type is not known here, so the forms of all types are made whose JSON the text may be. What must
hold: no text raises an error.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from typing import Any
from uuid import UUID

import msgspec

_SPECIAL = re.compile(r"[\\'\"]")


def forms_of(text: str) -> set[str]:
    """Return the text as it is, and as `str`, `repr`, `isoformat` and JSON write what it may stand for. None
    is empty.
    """
    found = {text} if _is_plain(text) else {text, *_quoted(text)}
    for looks_so, forms in _OTHERS:
        if looks_so(text) is None:
            continue  # this is cheaper than the error of a reader
        try:
            found.update(forms(text))
        except (ValueError, OverflowError, binascii.Error, msgspec.MsgspecError):
            continue  # it is no text of this type
    found.discard("")
    return found


def _is_plain(text: str) -> bool:
    """Return whether each way of quoting leaves the text as it is."""
    return text.isascii() and text.isprintable() and _SPECIAL.search(text) is None


def _quoted(text: str) -> Iterator[str]:
    yield from (repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])


def _of_bytes(text: str) -> Iterator[str]:
    data = base64.b64decode(text, validate=True)
    yield from (repr(data)[2:-1], data.hex())
    try:
        plain = data.decode()
    except UnicodeError:
        return
    yield from (plain, *_quoted(plain))


def _of_time(text: str) -> Iterator[str]:
    if "-" not in text and ":" not in text:
        return  # `1230` is rather a number than a time
    read: tuple[Callable[[str], datetime | date | time], ...] = (
        datetime.fromisoformat,
        date.fromisoformat,
        time.fromisoformat,
    )
    for each in read:
        try:
            value = each(text)
        except ValueError:
            continue
        if isinstance(value, datetime) and len(text) <= len("2026-03-01"):
            continue  # a date, which every release of Python reads as its midnight, too
        yield from (str(value), value.isoformat())
        # Without the zone: each library has classes of its own for that.
        bare = value.replace(tzinfo=None) if isinstance(value, (datetime, time)) else value
        yield from (str(bare), bare.isoformat(), repr(bare)[:-1])


def _of_duration(text: str) -> Iterator[str]:
    value = msgspec.convert(text, timedelta)
    yield from (str(value), repr(value), str(value.total_seconds()))


def _of_uuid(text: str) -> Iterator[str]:
    value = UUID(text)
    yield from (str(value), value.hex)


_OTHERS: tuple[tuple[Callable[[str], Any], Callable[[str], Iterator[str]]], ...] = (
    (re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}(?:==|[A-Za-z0-9+/]=))?\Z").match, _of_bytes),
    (re.compile(r"T?\d.*[-:]", re.DOTALL).match, _of_time),
    (re.compile(r"[-+]?P", re.IGNORECASE).match, _of_duration),
    (re.compile(r"[0-9A-Fa-f-]{32,36}\Z|\{|urn:").match, _of_uuid),
)
"""What a text of another type looks like, and its forms."""
