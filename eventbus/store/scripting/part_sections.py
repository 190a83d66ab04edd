"""The sections of a part of scripts: what a library makes when it is loaded, at its first call, and in each
call.

A script makes all that its parts are anew in each call. A library makes the functions of a part once, when
the server loads it. So the other statements of the part must be told from them:

    loaded      functions, the table that they are fields of (`lines = {}`), and the declarations of
                all other names
    constants   names in capitals whose value has only constants in it, such fields of the table
                (`plain.SMALL`, or `book = { PAUSED = 1 }`), and loops that fill either: set by the
                first call. While a library loads the server has nothing of Lua but its grammar, so
                even `string.gmatch` must wait
    state       all else, also the other fields of the table (`lines.unlisted = {}`): it is set anew
                by each call that takes the part in, in the place where the call does so

What must always hold: what is not known to be a constant is state. So a part that somebody adds a variable to
keeps nothing of one call for the next, and neither does a call that ended with an error, for the next one
sets it again. Nobody changes a constant; a test reads all functions for that. Statements stand in the first
column, and what belongs to them is indented, or begins with what closes it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from eventbus.store.scripting.linker import ScriptPart, find_names

NAMES = (
    "redis", "cmsgpack", "cjson", "struct", "bit", "string", "math", "table", "tonumber", "tostring", "type",
    "ipairs", "pairs", "next", "unpack", "pcall", "error", "select",
)  # fmt: skip
"""What the server gives a function, but not a library that loads."""

_CONTINUED = re.compile(r"\s|end\b|else|until\b|[})\]]")
_FUNCTION = re.compile(r"(local )?function ([A-Za-z_]\w*)(\.\w+)?\(")
_ASSIGNMENT = re.compile(r"(local )?([A-Za-z_]\w*(?:, [A-Za-z_]\w*)*)(?: = (.*))?", re.DOTALL)
_FIELD = re.compile(r"([A-Za-z_]\w*)\.(\w+) = (.*)", re.DOTALL)
_CAPITALS = re.compile(r"[A-Z][A-Z0-9_]*")
_FIELD_NAME = re.compile(r"(\w+) =(?!=)")
_INNER_TABLE = re.compile(r"(?<=.)\{[^{}]*\}", re.DOTALL)
_EMPTY_TABLE = re.compile(r"\{\s*\}(?: *--[^\n]*)?")
_OF_ANY_CALL = (frozenset(NAMES) - {"redis"}) | {"and", "false", "nil", "not", "or", "true"}


@dataclass(frozen=True)
class Sections:
    """One part of scripts, as a library has it."""

    loaded: list[str] = field(default_factory=list[str])
    constants: list[str] = field(default_factory=list[str])
    state: list[str] = field(default_factory=list[str])
    fixed: set[str] = field(default_factory=set[str])
    """The names of the constants, and of the tables that functions are fields of."""
    ends_call: bool = False
    """Whether its state may end the call with an answer (`guard.lua`)."""


def split_part(part: ScriptPart) -> Sections:
    """Split a part. Raises ValueError for a statement of no known kind."""
    statements = _read_statements(part.body)
    functions = [match for each in statements if (match := _FUNCTION.match(each))]
    tables = {match[2] for match in functions if match[3]}
    named = {match[2] for match in functions if not match[3]}
    ends_call = any(each.startswith("if ") and " return " in each for each in statements)
    sections = Sections(fixed=set(tables), ends_call=ends_call)
    for statement in statements:
        _sort(statement, sections, tables, named)
    return sections


def _sort(statement: str, sections: Sections, tables: set[str], named: set[str]) -> None:
    if _FUNCTION.match(statement):
        sections.loaded.append(statement)
    elif statement.startswith("if "):
        sections.state.append(statement)
    elif statement.startswith("for "):
        sections.constants.append(statement)
    elif (match := _FIELD.fullmatch(statement)) and match[1] in tables:
        is_constant = _CAPITALS.fullmatch(match[2]) and _is_of_any_call(match[3])
        (sections.constants if is_constant else sections.state).append(statement)
    elif match := _ASSIGNMENT.fullmatch(statement):
        _sort_assignment(match, sections, tables, named)
    else:
        raise ValueError(f"a part of the scripts has a statement of no known kind: {statement!r}")


def _sort_assignment(match: re.Match[str], sections: Sections, tables: set[str], named: set[str]) -> None:
    names = match[2].split(", ")
    if match[3] is None and not match[1]:
        raise ValueError(f"a part of the scripts has a statement of no known kind: {match[0]!r}")
    if match[2] in tables:
        sections.loaded.append(f"{match[1] or ''}{match[2]} = {{}}")
        if match[3] is not None and not _EMPTY_TABLE.fullmatch(match[3]):
            sections.constants.append(_set_fields(match[2], match[3]))
        return
    if match[1]:
        sections.loaded.append(f"local {match[2]}")
    if names == [each for each in names if each in named] and match[3] is None:
        return  # declared before its functions are
    value = f"{match[2]} = {'nil' if match[3] is None else match[3]}"
    if all(_CAPITALS.fullmatch(name) for name in names) and _is_of_any_call(match[3] or "nil"):
        sections.constants.append(value)
        sections.fixed.update(names)
    else:
        sections.state.append(value)


def _set_fields(table: str, value: str) -> str:
    """Set the constants that a table of functions is written with. Raises ValueError for anything else."""
    names = _FIELD_NAME.findall(_INNER_TABLE.sub("", value))
    if not (all(map(_CAPITALS.fullmatch, names)) and _is_of_any_call(value)):
        raise ValueError(
            f"the table {table} of a part is written with fields that are no constants: {value!r}"
        )
    return f"do\nlocal fields = {value}\nfor name, field in pairs(fields) do {table}[name] = field end\nend"


def _is_of_any_call(value: str) -> bool:
    """Return whether a value is made of other constants alone, so that it is the same in each call."""
    names = find_names(_FIELD_NAME.sub("", value)) - _OF_ANY_CALL
    return all(_CAPITALS.fullmatch(name) and name not in ("KEYS", "ARGV") for name in names)


def _read_statements(body: str) -> list[str]:
    """Return the statements of a part, without comments that stand between them."""
    statements: list[str] = []
    for line in body.splitlines():
        if line.startswith("--") or not line.strip():
            continue
        if _CONTINUED.match(line):
            statements[-1] += f"\n{line}"
        else:
            statements.append(line)
    return statements
