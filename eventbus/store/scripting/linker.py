"""The linker of the Lua scripts: it puts the parts that a script names into the script's text.

A part is a file `lua/lib/NAME.lua`. Its first lines say what it needs and what it offers:

    --needs shard placing        the parts whose tables it uses
    --exports endings            its table, named after it, if others may use anything of it

All that others may use is a field of that table (`endings.write`); all else in the file is its own. So a part
costs one of the 200 locals that Lua allows, however much it offers.

A script takes parts in where it says so, with all that they need, each part once:

    --include settle claim           here
    --defer load_trees: trees telling    in a function `load_trees`, which makes their functions when
                                         it is called

A script pays for each function that it makes, whether it calls it or not, so what few calls need is deferred,
or included in a block that few calls enter. What such a block includes is known in that block alone. The
lines of `--defer` stand behind the first `--include`; one that needs parts of an earlier one makes these
first.

What must always hold: parts stand behind those that they need, and each is a block of its own, so that only
tables count towards the locals. The tables of one directive are declared before its parts. So two parts may
call each other.

The same files make a library of server functions, which makes no function anew. There a part's table and
whatever has a name in capitals is set once; any other variable or field of a part is set anew by each call
that takes the part in (`functions.part_sections`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

_DIRECTIVE = re.compile(r"( *)--(?:include|defer (\w+):) ([\w ]+)\n?")
_HEADER = re.compile(r"--(needs|exports) ([\w ]+)\n")
_COMMENT_OR_TEXT = re.compile(r"--[^\n]*|'(?:[^'\\\n]|\\.)*'")
_NAME = re.compile(r"(?<![.:\w])[A-Za-z_]\w*")


@dataclass(frozen=True)
class ScriptPart:
    """A shared part of scripts: the parts that it needs, the table that it offers, and its Lua text."""

    name: str
    needs: tuple[str, ...]
    table: str | None
    body: str


def parse_part(name: str, text: str) -> ScriptPart:
    """Read a part's file."""
    header: dict[str, str] = {}
    while match := _HEADER.match(text):
        header[match[1]] = match[2]
        text = text[match.end() :]
    return ScriptPart(name, tuple(header.get("needs", "").split()), header.get("exports"), text)


Place: TypeAlias = Callable[[list[str], list[ScriptPart]], str]
"""Maps tables to declare and parts to take in to the text that stands where a script takes them in."""


def link(text: str, read: Callable[[str], ScriptPart], place: Place | None = None) -> str:
    """Return a script's text with its parts; `read` gives a part by its name.

    With `place`, its text stands where the text of the parts would.
    """
    return _Linker(text, read, place or _place_text).link()


def list_parts(text: str, read: Callable[[str], ScriptPart]) -> list[ScriptPart]:
    """Return all parts that a script takes in anywhere, each behind those that it needs."""
    directives = (match for line in text.splitlines(keepends=True) if (match := _DIRECTIVE.fullmatch(line)))
    return _Linker("", read, _place_text).find(" ".join(each[3] for each in directives))


class _Linker:
    """One script being linked."""

    def __init__(self, text: str, read: Callable[[str], ScriptPart], place: Place) -> None:
        self._lines = text.splitlines(keepends=True)
        self._read = read
        self._place = place
        self._included: list[tuple[int, str]] = []
        """The parts that are known where the linker is: the depth of the block that includes them, and the
        name.
        """
        directives = [match for line in self._lines if (match := _DIRECTIVE.fullmatch(line))]
        taken = {part.name for each in directives if not (each[1] or each[2]) for part in self.find(each[3])}
        self._deferred: dict[str, list[ScriptPart]] = {}
        """The function that makes them -> the parts that it makes, without those that came earlier."""
        for each in directives:
            if each[2]:
                self._deferred[each[2]] = [part for part in self.find(each[3]) if part.name not in taken]
                taken.update(part.name for part in self._deferred[each[2]])
        self._entries = self._find_entries()

    def link(self) -> str:
        return "".join(self._link_line(line) for line in self._lines)

    def find(self, names: str) -> list[ScriptPart]:
        """Return the named parts and all that they need; each behind those that it needs, except in a
        circle.
        """
        found: dict[str, ScriptPart] = {}
        entered: set[str] = set()

        def enter(name: str) -> None:
            if name in entered:
                return
            entered.add(name)
            part = self._read(name)
            for needed in part.needs:
                enter(needed)
            found[name] = part

        for name in names.split():
            enter(name)
        return list(found.values())

    def _link_line(self, line: str) -> str:
        depth = len(line) - len(line.lstrip(" "))
        if line.strip():
            self._included = [each for each in self._included if each[0] <= depth]
        match = _DIRECTIVE.fullmatch(line)
        if match is None:
            return line
        if match[2]:
            return self._defer(match[2])
        known = {name for _, name in self._included}
        parts = [part for part in self.find(match[3]) if part.name not in known]
        tables = _list_tables(parts)
        if not self._included:  # the first parts: the script, and whatever is deferred, use these
            tables += self._entries
        self._included += [(depth, part.name) for part in parts]
        return self._place(tables, parts)

    def _defer(self, name: str) -> str:
        """Write the function that makes parts, once; it first makes the deferred parts that these need."""
        parts = self._deferred[name]
        needed = {each for part in parts for each in part.needs}
        first = [
            other
            for other, made in self._deferred.items()
            if needed & {part.name for part in made} and other != name
        ]
        inner = [each for each in _list_tables(parts) if each not in self._entries]
        return (
            f"local is_{name}_done = false\nlocal function {name}()\n"
            f"if is_{name}_done then return end\nis_{name}_done = true\n"
            f"{''.join(f'{other}() ' for other in first)}\n{self._place(inner, parts)}end\n"
        )

    def _find_entries(self) -> list[str]:
        """Return the tables of deferred parts that the script uses, or deferred parts of another function."""
        script = "".join(line for line in self._lines if not _DIRECTIVE.fullmatch(line))
        entries: list[str] = []
        for name, parts in self._deferred.items():
            others = [part.body for other, made in self._deferred.items() if other != name for part in made]
            used = find_names("\n".join([script, *others]))
            entries += [table for table in _list_tables(parts) if table in used]
        return entries


def _list_tables(parts: list[ScriptPart]) -> list[str]:
    return [part.table for part in parts if part.table]


def _place_text(tables: list[str], parts: list[ScriptPart]) -> str:
    declared = f"local {', '.join(tables)}\n" if tables else ""
    return declared + "".join(f"do -- {part.name}\n{part.body.rstrip()}\nend\n" for part in parts)


def find_names(text: str) -> set[str]:
    """Return the names in a Lua text, without those behind a dot, comments and literal text."""
    return set(_NAME.findall(_COMMENT_OR_TEXT.sub("", text)))
