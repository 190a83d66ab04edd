"""The part of the Redis protocol that the proxy reads: frames, and the call that a frame belongs to.

The names and fields of scripts come from the Lua files and their headers, so a script that is added,
split or given another field needs no change here.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import msgspec

from eventbus.store.scripting.library import load_library
from eventbus.store.scripting.scripts import Script, load_script

__all__ = ["Call", "read_answer", "read_call", "read_claims", "take_frame"]

#: Steps of a job's life -> the count in the head of a script that says whether a call includes this step.
_STEPS = {"claim": "want", "settle": "settles"}
_CLAIM_FIELDS = 8


class Call(NamedTuple):
    """One command: the name of a script, or the first word of another command."""

    name: str
    steps: frozenset[str]
    """The name, and `claim` or `settle` if the call does that; a `renew` without leases has no step.

    Calls of flows have further steps: `<state> <unit>` for each settle, where the unit is a step or, for a
    root, its workflow; `acknowledge`, `save <name>` and `spawn` for a checkpoint, `adds` if it goes on;
    `plant` for a chunk of a graph and `open` for its last chunk. A turn has `append <place>` for each job
    that appends to its journal there, and `entry <kind> <place>` for each entry of a flow's journal, such as
    `entry step charge`; without a place, `entry stop`. A signal has `signal <unit>`, by the job that it is
    sent to.
    """


@cache
def _scripts() -> dict[bytes, Script]:
    folder = files("eventbus.store").joinpath("lua")
    names = [each.name.removesuffix(".lua") for each in folder.iterdir() if each.name.endswith(".lua")]
    scripts = [load_script(name) for name in names]
    functions = load_library().functions
    return {
        mark.encode(): script
        for script in scripts
        for mark in (script.digest, script.source, functions[script.name])
    }


def read_call(frame: bytes) -> Call:
    """Tell what a client's frame asks for."""
    words = _words(frame)
    name = words[0].decode().upper()
    script = _scripts().get(words[1]) if name in ("EVAL", "EVALSHA", "FCALL") else None
    if script is None:
        return Call(name, frozenset({name}))
    packed: list[Any] = msgspec.msgpack.decode(words[5])
    head = dict(zip(script.fields.get("head", ()), packed, strict=False))
    steps = {step for step, count in _STEPS.items() if head.get(count, 0)}
    if head.get("jobs", 1):
        steps.add(script.name)
    if script.name in _TREE_STEPS:
        rows = _read_rows(script, packed)
        steps.update(_TREE_STEPS[script.name](rows))
    return Call(script.name, frozenset(steps))


def read_claims(frame: bytes) -> frozenset[str]:
    """Return `claimed <unit>` for each job of a flow in the answer to a turn."""
    answer = read_answer(frame)
    ids = answer[5][::_CLAIM_FIELDS] if isinstance(answer, list) else []
    return frozenset(f"claimed {_unit(each.decode())}" for each in ids)


def _read_rows(script: Script, packed: list[Any]) -> dict[str, list[dict[str, Any]]]:
    """Return section -> its rows, without the sections whose count is neither in the head nor in rows of
    appends.
    """
    names = script.fields["head"]
    head = dict(zip(names, packed, strict=False))
    rows, place = {"head": [head]}, len(names)
    for section, fields in script.fields.items():
        if section == "head":
            continue
        counts = [head] if section in head else rows.get("appends", [])
        if any(section not in each for each in counts):
            continue
        width, count = len(fields), sum(each[section] for each in counts)
        found = [packed[place + i * width : place + (i + 1) * width] for i in range(count)]
        rows[section] = [dict(zip(fields, each, strict=True)) for each in found]
        place += width * count
    return rows


def _turn_steps(rows: dict[str, list[dict[str, Any]]]) -> set[str]:
    steps = {f"{each['state']} {_unit(each['id'])}" for each in rows["settles"]}
    steps |= {f"append {each['place']}" for each in rows["appends"]}
    return steps | {name for each in rows["entries"] if (name := _entry(each["text"]))}


def _entry(text: str) -> str:
    """Return the name of what an entry of a flow records; empty for entries of other jobs."""
    try:
        entry = msgspec.json.decode(text, type=_Entry)
    except msgspec.MsgspecError:
        return ""
    return f"entry {entry.kind} {entry.place}".rstrip() if entry.kind else ""


class _Entry(msgspec.Struct, rename={"kind": "k", "place": "p"}):
    kind: str = ""
    place: str = ""


def _checkpoint_steps(rows: dict[str, list[dict[str, Any]]]) -> set[str]:
    (head,) = rows["head"]
    steps = {f"save {_NUMBER.sub(':', each['name'])}" for each in rows["saves"]}
    steps |= {"adds"} if rows["rows"] and not head["waits"] else set()
    return (
        steps | ({"acknowledge"} if head["acknowledges"] else set()) | ({"spawn"} if head["waits"] else set())
    )


def _graph_steps(rows: dict[str, list[dict[str, Any]]]) -> set[str]:
    return {"open" if each["is_last"] else "plant" for each in rows["trees"]}


def _unit(job: str) -> str:
    """Return the step of a member of a flow, the workflow of a root, or else the job."""
    parts = job.split("/")
    return parts[-1].partition("~")[0] if "~" in parts[-1] else parts[-2] if len(parts) > 1 else job


def _signal_steps(rows: dict[str, list[dict[str, Any]]]) -> set[str]:
    return {f"signal {_unit(each['id'])}" for each in rows["head"]}


_NUMBER = re.compile(r":\d+:")
_TREE_STEPS = {
    "turn": _turn_steps,
    "checkpoint": _checkpoint_steps,
    "graph": _graph_steps,
    "signal": _signal_steps,
}


def take_frame(buffer: bytearray) -> bytes | None:
    """Cut the first whole frame off the received bytes."""
    end = _frame_end(buffer, 0)
    if end < 0:
        return None
    frame = bytes(buffer[:end])
    del buffer[:end]
    return frame


def read_answer(frame: bytes) -> Any:
    """Decode the answer in a frame: lists, integers, bytes, None; errors and simple strings become bytes."""
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
    """Return where the command or reply that begins at `start` ends; -1 if it is still incomplete."""
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
