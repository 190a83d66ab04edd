"""What commands write for people and programs: lines, JSON, and the console for tables.

Every text of others passes here on its way to a terminal: names, reasons, errors, payloads. What must always
hold: no such text
moves the cursor, changes colours, begins a line or turns the direction of what follows, whoever prints it.
So a command writes
by these functions alone, and a test looks for those that do not. Not here: the log, and the live boards of
demo and meter.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

import msgspec

from eventbus.cli.texts import visible


class _Asked:
    """The server that the last command line has asked."""

    server: str = ""


def note_asked(server: str) -> None:
    """Keep the name of the server that the command asks, for `tell_asked`."""
    _Asked.server = server


def tell_asked() -> None:
    """Say on standard error which server had nothing of what was asked for, and how to ask another one."""
    if _Asked.server:
        say(f"asked {_Asked.server}; --url and --prefix name another server", err=True)


def tell_old_name(old: str, new: str) -> None:
    """Say on standard error that the command line has an old name, which goes with the next release."""
    say(f"note: {old} is deprecated: use {new}", err=True)


def say(*lines: str, err: bool = False, flush: bool = False) -> None:
    """Write each text as a line of its own, an empty one for none, to standard output or with `err` to
    standard error.

    What does not print, also a line break within a text, is written as its code.
    """
    stream = sys.stderr if err else sys.stdout
    stream.write("".join(f"{visible(line)}\n" for line in lines or ("",)))
    if flush or err:
        stream.flush()


def write_json(value: object) -> None:
    """Write a value as JSON on one line."""
    write_lines([value])


def write_lines(values: Iterable[object]) -> None:
    """Write JSON, an object on a line for each value. Without any, standard error says who was asked."""
    lines = [clean_json(msgspec.json.encode(value)) + b"\n" for value in values]
    if not lines:
        tell_asked()
    sys.stdout.buffer.write(b"".join(lines))
    sys.stdout.buffer.flush()


def clean_json(raw: bytes) -> bytes:
    """Return the same value in JSON that has no character which does not print: each is escaped.

    As JSON allows.
    """
    text = raw.decode("utf-8", "surrogatepass")
    if text.isprintable():
        return raw
    # Outside of its strings there is none of these, because it was written here, on one line.
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text).encode()
