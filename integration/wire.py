"""The protocol between clients and a server, as far as the proxy reads it: frames, and whose call a frame is.

Scripts are known by the files of the Lua folder and by what their headers say they read, so a
script that is added, split or given another field needs no change here.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import msgspec

from eventbus.store.scripts import Script, load_script

__all__ = ["Call", "read_answer", "read_call", "take_frame"]

#: Steps of a job's life -> the count in the head of a script that says whether the call takes this step.
_STEPS = {"claim": "want", "settle": "settles"}


class Call(NamedTuple):
    """One command: a script by its name, another by its first word."""

    name: str
    steps: frozenset[str]
    """Its name, and `claim` or `settle` where the call does that; no `renew` that renews nothing."""


@cache
def _scripts() -> dict[bytes, Script]:
    folder = files("eventbus.store").joinpath("lua")
    names = [each.name.removesuffix(".lua") for each in folder.iterdir() if each.name.endswith(".lua")]
    scripts = [load_script(name) for name in names]
    return {mark.encode(): script for script in scripts for mark in (script.digest, script.source)}


def read_call(frame: bytes) -> Call:
    """Tell what a client's frame asks for."""
    words = _words(frame)
    name = words[0].decode().upper()
    script = _scripts().get(words[1]) if name in ("EVAL", "EVALSHA") else None
    if script is None:
        return Call(name, frozenset({name}))
    packed: list[Any] = msgspec.msgpack.decode(words[4])
    head = dict(zip(script.fields.get("head", ()), packed, strict=False))
    steps = {step for step, count in _STEPS.items() if head.get(count, 0)}
    if head.get("jobs", 1):
        steps.add(script.name)
    return Call(script.name, frozenset(steps))


def take_frame(buffer: bytearray) -> bytes | None:
    """Cut the first whole frame off the front of what came."""
    end = _frame_end(buffer, 0)
    if end < 0:
        return None
    frame = bytes(buffer[:end])
    del buffer[:end]
    return frame


def read_answer(frame: bytes) -> Any:
    """The answer that a frame carries: lists, whole numbers, bytes, None; refusals and words as bytes."""
    return _value(frame, 0)[0]


def _words(frame: bytes) -> list[bytes]:
    words = read_answer(frame)
    return words if isinstance(words, list) else [words]


def _value(frame: bytes, start: int) -> tuple[Any, int]:
    line = frame.index(b"\r\n", start)
    kind, text, end = frame[start : start + 1], frame[start + 1 : line], line + 2
    if kind == b":":
        return int(text), end
    if kind == b"$":
        size = int(text)
        return (None, end) if size < 0 else (frame[end : end + size], end + size + 2)
    if kind == b"*":
        values: list[Any] = []
        for _ in range(int(text)):
            value, end = _value(frame, end)
            values.append(value)
        return values, end
    return text, end


def _frame_end(buffer: bytearray, start: int) -> int:
    """Where the command or reply that begins at `start` ends; -1 if it is not all there yet."""
    line = buffer.find(b"\r\n", start)
    if line < 0:
        return -1
    end = line + 2
    kind = chr(buffer[start])
    if kind == "$":
        size = int(buffer[start + 1 : line])
        end += size + 2 if size >= 0 else 0
    elif kind == "*":
        for _ in range(int(buffer[start + 1 : line])):
            end = _frame_end(buffer, end)
            if end < 0:
                return -1
    return end if end <= len(buffer) else -1
