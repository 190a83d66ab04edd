"""The library of server functions: all scripts and their parts in one text, which the server loads once.

A server makes each function of a script anew in each call of it. It makes those of a library when it loads
the library, so a call (`FCALL`) costs only what it does. Servers have libraries since Redis 7.0 and Valkey
7.2.

    unknown -> loaded (`FUNCTION LOAD`) -> made (the first call sets constants) -> called, again and again

What must always hold:
- nothing is written twice: the library is made of the same files as the scripts, and an `EVAL` of a
  script does what the call of its function does;
- no call sees what another one left. All that a part keeps for one call is set anew where the call takes
  the part in, in the order in which the script would make it (`part_sections` tells state from constants);
- names carry the digest of the text, so that releases live side by side in one server;
- a full server begins what frees it, and refuses what fills it. A script is let through or refused
  by its first write. The server asks a function's flags instead, before it begins: `allow-oom` where
  the first write of the script is one that a full server allows, `no-writes` where there is none,
  and nothing where that write is refused. What is refused before it begins is sent as a script then,
  so that it may still find that it has nothing to write. So does a replica refuse all but
  `no-writes`. No other flag is wanted: a replica that has lost its primary refuses a script, too.

Crash windows:
    library-lost         the server came back empty, or somebody flushed its functions: it refuses the
                         call, and gets the library again (`connection.functions`)
    ended-with-an-error  the state of the call stays as it was until the next call sets it anew
    ended-while-making   the constants are made again by the next call

Measured with Redis 7.0: one library of all takes 4 ms to load and 0.5 MB. A library for each script would
take 23 ms in all and 1.3 MB, as the scripts by themselves do, for each has its own copy of the parts. The
table of each part is a local of the library, of which Lua allows 200; a test says so in time. The server
finds the names that it gives to a function (`string`, `redis`) by a slow way, so each block takes those that
it uses by a local.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from eventbus.store.scripting.linker import ScriptPart, find_names, link, list_parts
from eventbus.store.scripting.part_sections import NAMES, Sections, split_part
from eventbus.store.scripting.scripts import list_scripts, read_part, read_script

PREFIX = "eventbus_"
"""The beginning of the name of each library."""

_FLAGS = re.compile(r"^-- flags: ([a-z-]+)$", re.MULTILINE)
_COMMENT_LINE = re.compile(r"^ *--[^\n]*\n", re.MULTILINE)
_DIGITS = 16
_UNNAMED = "NAME_OF_THE_LIBRARY"
"""Stands for the library's name, which has a digest of the text, until that is complete."""


@dataclass(frozen=True)
class Library:
    """One library, as the server gets it."""

    name: str
    source: str
    functions: dict[str, str]
    """Script -> the name of its function."""


@cache
def load_library() -> Library:
    """Make the library of all scripts."""
    scripts = {name: read_script(name) for name in list_scripts()}
    parts = {part.name: part for text in scripts.values() for part in list_parts(text, read_part)}
    sections = {name: split_part(part) for name, part in parts.items()}
    tables = [part.table for part in parts.values() if part.table]
    text = "".join([
        "local KEYS, ARGV\n",
        _write_own(),
        f"local {', '.join(tables)}\n",
        *(_write_part(name, each) for name, each in sections.items()),
        *(_write_function(name, script, sections) for name, script in scripts.items()),
        _write_making(["part_" + name for name in sections] + ["script_" + name for name in scripts]),
    ])  # fmt: skip
    text = _COMMENT_LINE.sub("", text)
    name = PREFIX + hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:_DIGITS]
    source = f"#!lua name={name}\n{text.replace(_UNNAMED, name)}"
    return Library(name, source, {script: f"{name}_{script}" for script in scripts})


def _write_own() -> str:
    """Write the one name that is the library's own: a table, for locals are scarce."""
    given = ", ".join(f"{name} = {name}" for name in NAMES)
    return (
        "local OWN = { is_made = false, register = redis.register_function }\n"
        f"function OWN.take_given() OWN.given = {{ {given} }} end\n"
    )


def _write_part(name: str, sections: Sections) -> str:
    """Write a block that makes the functions of a part, and the steps of its first call and of each call."""
    text = "\n".join(sections.loaded)
    taken, making = _take_names("\n".join([text, *sections.constants, *sections.state]))
    steps = [
        *_write_step(f"OWN.make_part_{name}", [*making, *sections.constants]),
        *_write_step(f"OWN.begin_{name}", sections.state),
    ]
    return "\n".join([f"do -- {name}", *taken, text, *steps, "end\n"])


def _write_function(name: str, text: str, sections: dict[str, Sections]) -> str:
    """Write the function of a script, and its registration."""

    def place(_: list[str], parts: Iterable[ScriptPart]) -> str:
        return "".join(_begin(part.name, sections[part.name]) for part in parts)

    body = link(text, read_part, place)
    taken, making = _take_names(body)
    flag = _FLAGS.search(text)
    flags = f"'{flag[1]}'" if flag and flag[1] != "none" else ""
    return "\n".join([
        f"do -- {name}", *taken, f"local function call()\n{body.rstrip()}\nend",
        *_write_step(f"OWN.make_script_{name}", making),
        (
            f"OWN.register{{ function_name = '{_UNNAMED}_{name}', flags = {{ {flags} }}, "
            "callback = function(keys, values)"
        ),
        "if not OWN.is_made then OWN.make() end\nKEYS, ARGV = keys, values\nreturn call()\nend }\nend\n",
    ])  # fmt: skip


def _write_making(steps: list[str]) -> str:
    """Write what the first call does."""
    calls = "\n".join(f"if OWN.make_{step} then OWN.make_{step}() end" for step in steps)
    return f"function OWN.make()\nOWN.take_given()\n{calls}\nOWN.is_made = true\nend\n"


def _write_step(name: str, statements: list[str]) -> list[str]:
    return [f"function {name}()", *statements, "end"] if statements else []


def _take_names(text: str) -> tuple[list[str], list[str]]:
    """Return the declaration of the names in a text that the server gives, and what sets them."""
    used = find_names(text)
    names = [name for name in NAMES if name in used]
    if not names:
        return [], []
    return [f"local {', '.join(names)}"], [
        f"{', '.join(names)} = {', '.join(f'OWN.given.{each}' for each in names)}"
    ]


def _begin(name: str, sections: Sections) -> str:
    """Write what stands where a call takes a part in."""
    if sections.ends_call:
        return f"do local answer = OWN.begin_{name}() if answer then return answer end end\n"
    return f"OWN.begin_{name}()\n" if sections.state else ""
