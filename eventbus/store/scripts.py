"""The Lua scripts: one file an operation, shared parts by `--include`, loaded by name.

A script gets one key, the shard's root, and one packed argument: a flat msgpack array
of text and whole numbers, never nested (Redis' `cmsgpack` has no `bin`, stops at 16
levels and misreads large unsigned numbers). Its header names what it reads, in order;
a test holds the headers against the callers' lists in `store.py`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import msgspec

__all__ = ["Script", "load_script", "pack"]

_INCLUDE = re.compile(r"^--include (\w+)\n", re.MULTILINE)
_FIELDS = re.compile(r"^-- (\w+): ([a-z_ ]+)$", re.MULTILINE)

pack = msgspec.msgpack.Encoder().encode
"""Pack a flat list of text and whole numbers as one argument."""


@dataclass(frozen=True)
class Script:
    """One script as the server gets it."""

    name: str
    source: str
    digest: str
    fields: dict[str, list[str]]
    """What the header says it reads: section -> names in order."""


def _expand(text: str) -> str:
    folder = files("eventbus.store").joinpath("lua", "lib")
    return _INCLUDE.sub(lambda match: folder.joinpath(f"{match[1]}.lua").read_text(), text)


@cache
def load_script(name: str, prelude: str = "") -> Script:
    """Read the script `name` with its includes. `prelude` goes before the first line
    (tests put `#!lua` there, which makes a cluster refuse undeclared foreign slots).
    """
    text = files("eventbus.store").joinpath("lua", f"{name}.lua").read_text()
    fields = {match[1]: match[2].split() for match in _FIELDS.finditer(text) if match[1] != "answer"}
    source = prelude + _expand(text)
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest(), fields)
