"""The Lua scripts, loaded by name: one file for each operation, with shared parts that `linker.py` puts in.

A script gets one key, the shard's root, and one packed argument: a flat msgpack array of text and
whole numbers. The array is never nested, because Redis' `cmsgpack` has no `bin`, stops at 16 levels
and misreads large unsigned numbers. A script's header names the values that it reads, in order; a
test compares the headers with the lists that `store.py` sends.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from eventbus.store.bounds import write_bounds
from eventbus.store.scripting.linker import ScriptPart, link, parse_part

_NO_SECTIONS = frozenset({"answer", "flags"})
_FIELDS = re.compile(r"^-- (\w+): ([a-z_ ]+)$", re.MULTILINE)

pack: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
"""Pack a flat list of text and whole numbers into one argument."""


@dataclass(frozen=True)
class Script:
    """One script, as the server gets it."""

    name: str
    source: str
    digest: str
    fields: dict[str, list[str]]
    """Section of the header -> the names of the values that the script reads there, in order."""


@cache
def read_part(name: str) -> ScriptPart:
    """Read a shared part of scripts."""
    return parse_part(name, _read("lib", f"{name}.lua"))


def list_scripts() -> list[str]:
    """Return the names of all scripts."""
    folder = files("eventbus.store").joinpath("lua")
    return sorted(each.name.removesuffix(".lua") for each in folder.iterdir() if each.name.endswith(".lua"))


def read_script(name: str) -> str:
    """Read a script's text, without its parts."""
    return _read(f"{name}.lua")


def _read(*path: str) -> str:
    return write_bounds(files("eventbus.store").joinpath("lua", *path).read_text())


@cache
def load_script(name: str, prelude: str = "") -> Script:
    """Read the script `name` with its includes; `prelude` goes before the first line.

    Tests put `#!lua` there, which makes a cluster refuse keys of other slots that were not declared.
    """
    text = read_script(name)
    fields = {match[1]: match[2].split() for match in _FIELDS.finditer(text) if match[1] not in _NO_SECTIONS}
    source = prelude + link(text, read_part)
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest(), fields)
