"""The forms in which errors quote a value that is text in JSON.

A value of JSON text may be bytes, a date, a duration or a UUID in the program, which prints it in another
way. Its type is not known here, so the forms of all types are made whose JSON the text may be. What must
hold: no text raises an error.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from uuid import UUID

import msgspec

__all__ = ["forms_of"]


def forms_of(text: str) -> set[str]:
    """Return the text as it is, and as `str`, `repr`, `isoformat` and JSON write what it may stand for. None
    is empty.
    """
    found = {text, *_quoted(text)}
    for forms in (_of_bytes, _of_time, _of_duration, _of_uuid):
        try:
            found.update(forms(text))
        except (ValueError, OverflowError, binascii.Error, msgspec.MsgspecError):
            continue  # it is no text of this type
    found.discard("")
    return found


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
