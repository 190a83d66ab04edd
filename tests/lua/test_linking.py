"""The linked scripts: parts, what they need and offer, and the limits of Lua."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest
from drivers.lua_scopes import read_scopes

from eventbus.store.scripting.linker import ScriptPart, link, parse_part
from eventbus.store.scripting.scripts import load_script, read_part, read_script

_LUA = Path(str(files("eventbus.store").joinpath("lua")))
_SCRIPTS = sorted(path.stem for path in _LUA.glob("*.lua"))
_PARTS = sorted(path.stem for path in (_LUA / "lib").glob("*.lua"))


def _named(text: str) -> set[str]:
    return set(re.findall(r"(?<![.:\w])[A-Za-z_]\w*", re.sub(r"--[^\n]*|'[^'\n]*'", "", text)))


@pytest.mark.parametrize("name", _SCRIPTS)
def test_every_name_of_a_script_is_declared(name: str) -> None:
    assert read_scopes(load_script(name).source).undeclared == set()


@pytest.mark.parametrize("name", _SCRIPTS)
def test_a_script_has_room_for_60_more_locals_and_10_more_upvalues_in_each_function(name: str) -> None:
    scopes = read_scopes(load_script(name).source)
    assert scopes.most_locals <= 200 - 60
    assert scopes.most_upvalues <= 60 - 10


@pytest.mark.parametrize("name", _SCRIPTS)
def test_a_linked_script_has_no_directive_left(name: str) -> None:
    assert re.findall(r"^ *--(?:include|defer|needs|exports).*", load_script(name).source, re.MULTILINE) == []


def test_every_part_is_needed_by_a_script() -> None:
    texts = [path.read_text() for path in sorted(_LUA.rglob("*.lua"))]
    wanted = {
        name
        for text in texts
        for words in re.findall(r"^ *--(?:include|needs|defer \w+:) ([\w ]+)$", text, re.MULTILINE)
        for name in words.split()
    }
    assert wanted == set(_PARTS)


@pytest.mark.parametrize("name", _SCRIPTS)
def test_a_script_names_all_parts_that_it_uses(name: str) -> None:
    text = read_script(name)
    named = re.findall(r"^ *--(?:include|defer \w+:) ([\w ]+)$", text, re.MULTILINE)
    offered = {read_part(part).table for words in named for part in words.split()}
    made = set(re.findall(r"^--defer (\w+):", text, re.MULTILINE))
    assert read_scopes(text).undeclared - made <= offered


@pytest.mark.parametrize("name", _PARTS)
def test_a_part_needs_only_what_it_uses(name: str) -> None:
    part = read_part(name)
    used = _named(part.body)
    assert [other for other in part.needs if read_part(other).table not in used] == []


@pytest.mark.parametrize("name", _PARTS)
def test_a_part_needs_all_that_it_uses(name: str) -> None:
    part = read_part(name)
    known = {part.table, *(read_part(other).table for other in part.needs)} - {None}
    assert read_scopes(part.body).undeclared <= known


@pytest.mark.parametrize("name", _PARTS)
def test_a_part_offers_one_table_at_most_which_has_its_name(name: str) -> None:
    """So a part costs one of the 200 locals of the library, and a reader knows the file of each name."""
    table = read_part(name).table
    assert table is None or table.lower() == name
    assert read_part(name).body.count(f"\n{table} = {{") == (table is not None)


def test_the_tables_of_parts_have_what_is_used_of_them_and_nothing_else() -> None:
    tables = {read_part(name).table: read_part(name).body for name in _PARTS if read_part(name).table}
    texts = [read_part(name).body for name in _PARTS] + [
        path.read_text() for path in sorted(_LUA.glob("*.lua"))
    ]
    code = "\n".join(re.sub(r"--[^\n]*|'(?:[^'\\\n]|\\.)*'", "''", text) for text in texts)
    wrong: dict[str, set[str]] = {}
    for table, body in tables.items():
        offered = set(re.findall(rf"^(?:function )?{table}\.(\w+)(?: =|\()", body, re.MULTILINE))
        (written,) = re.findall(rf"^{table} = (\{{.*\}}|\{{\n(?: .*\n)+\}})", body, re.MULTILINE)
        offered |= set(re.findall(r"(?:^|[{,]) *([A-Z_]+) = ", written, re.MULTILINE))
        uses = re.findall(rf"(function )?(?<![.:\w]){table}\.(\w+)( =(?!=))?", code)
        used = {field for is_function, field, is_set in uses if not is_function and not is_set}
        if used != offered:
            wrong[str(table)] = used ^ offered
    assert wrong == {}


_SMALL = {
    "a": ScriptPart(
        "a", (), "a", "a = {}\nlocal own = 1\nfunction a.one() return own end\nfunction a.two() end"
    ),
    "b": ScriptPart("b", ("a", "c"), "b", "b = {}\nfunction b.three() return a.one() + c.four() end"),
    "c": ScriptPart("c", ("b",), "c", "c = {}\nfunction c.four() return b and 1 end"),
    "d": ScriptPart("d", ("c", "b"), "d", "d = {}\nfunction d.five() return c.four() + b.three() end"),
}


def _link(text: str) -> str:
    return link(text, _SMALL.__getitem__)


def test_a_part_stands_behind_what_it_needs_and_once() -> None:
    source = _link("--include b c\n--include a\nreturn b.three()\n")
    assert re.findall(r"do -- (\w)", source) == ["a", "c", "b"]
    assert source.startswith("local a, c, b\n")
    assert read_scopes(source).undeclared == set()


def test_a_part_of_a_block_is_included_again_outside_of_it() -> None:
    text = "if KEYS[1] then\n  --include a\n  a.one()\nend\n--include a\nreturn a.two()\n"
    assert re.findall(r"do -- (\w)", _link(text)) == ["a", "a"]
    assert read_scopes(_link(text)).undeclared == set()


def test_a_deferred_part_offers_what_the_script_uses() -> None:
    source = _link("--include a\n--defer load_rest: b\nload_rest()\nreturn b.three()\n")
    assert source.startswith("local a, b\n")
    assert read_scopes(source).undeclared == set()
    assert read_scopes(source).functions == 5


def test_a_deferred_part_makes_first_what_it_needs_of_another() -> None:
    source = _link("--include a\n--defer load_c: c\n--defer load_d: d\nload_d()\nreturn d.five()\n")
    assert source.startswith("local a, b, c, d\n")
    assert "load_c() \n" in source
    assert re.findall(r"do -- (\w)", source) == ["a", "b", "c", "d"]
    assert read_scopes(source).undeclared == set()


def test_what_nothing_declares_is_found() -> None:
    assert read_scopes("local a = { b = 1, c }\nreturn a.d, e").undeclared == {"c", "e"}
    assert read_scopes("do local a = 1 end\nfor i = 1, 2 do b(i) end\nreturn a, i").undeclared == {
        "a",
        "b",
        "i",
    }
    assert read_scopes("local function f(x) return x, y end").undeclared == {"y"}


def test_locals_and_upvalues_are_counted() -> None:
    scopes = read_scopes(
        "local a, b\ndo local c end\nlocal d\nlocal function f() return a, function() return b, a end end"
    )
    assert (scopes.most_locals, scopes.most_upvalues, scopes.functions) == (4, 2, 2)


def test_a_header_is_no_part_of_the_text() -> None:
    assert parse_part("x", "--needs a b\n--exports c\n-- text\n") == ScriptPart(
        "x", ("a", "b"), "c", "-- text\n"
    )
