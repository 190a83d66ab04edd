"""The linked scripts: parts, what they need and offer, and the limits of Lua."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest
from drivers.lua_scopes import read_scopes

from eventbus.store.scripting.linker import Part, link, parse_part
from eventbus.store.scripting.scripts import load_script, read_part

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
    text = (_LUA / f"{name}.lua").read_text()
    named = re.findall(r"^ *--(?:include|defer \w+:) ([\w ]+)$", text, re.MULTILINE)
    offered = {export for words in named for part in words.split() for export in read_part(part).exports}
    made = set(re.findall(r"^--defer (\w+):", text, re.MULTILINE))
    assert read_scopes(text).undeclared - made <= offered


@pytest.mark.parametrize("name", _PARTS)
def test_a_part_needs_only_what_it_uses(name: str) -> None:
    part = read_part(name)
    used = _named(part.body)
    assert [other for other in part.needs if not used & set(read_part(other).exports)] == []


@pytest.mark.parametrize("name", _PARTS)
def test_a_part_needs_all_that_it_uses(name: str) -> None:
    part = read_part(name)
    known = [*part.exports, *(export for other in part.needs for export in read_part(other).exports)]
    assert read_scopes(f"local {', '.join(known)}\n{part.body}").undeclared == set()


def test_a_part_exports_only_what_others_use() -> None:
    scripts = [path.read_text() for path in sorted(_LUA.glob("*.lua"))]
    unused = {
        f"{name}: {export}"
        for name in _PARTS
        for export in read_part(name).exports
        if not any(export in _named(read_part(other).body) for other in _PARTS if other != name)
        and not any(export in _named(text) for text in scripts)
    }
    assert unused == set()


_SMALL = {
    "a": Part("a", (), ("one", "two"), "local own = 1\nfunction one() return own end\nfunction two() end"),
    "b": Part("b", ("a", "c"), ("three",), "function three() return one() + four() end"),
    "c": Part("c", ("b",), ("four",), "function four() return three and 1 end"),
    "d": Part("d", ("c", "b"), ("five",), "function five() return four() + three() end"),
}


def _link(text: str) -> str:
    return link(text, _SMALL.__getitem__)


def test_a_part_stands_behind_what_it_needs_and_once() -> None:
    source = _link("--include b c\n--include a\nreturn three()\n")
    assert re.findall(r"do -- (\w)", source) == ["a", "c", "b"]
    assert source.startswith("local one, two, four, three\n")
    assert read_scopes(source).undeclared == set()


def test_a_part_of_a_block_is_included_again_outside_of_it() -> None:
    text = "if KEYS[1] then\n  --include a\n  one()\nend\n--include a\nreturn two()\n"
    assert re.findall(r"do -- (\w)", _link(text)) == ["a", "a"]
    assert read_scopes(_link(text)).undeclared == set()


def test_a_deferred_part_offers_what_the_script_uses() -> None:
    source = _link("--include a\n--defer load_rest: b\nload_rest()\nreturn three()\n")
    assert source.startswith("local one, two, three\n")
    assert read_scopes(source).undeclared == set()
    assert read_scopes(source).functions == 5


def test_a_deferred_part_makes_first_what_it_needs_of_another() -> None:
    source = _link("--include a\n--defer load_c: c\n--defer load_d: d\nload_d()\nreturn five()\n")
    assert source.startswith("local one, two, three, four, five\n")
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
    assert parse_part("x", "--needs a b\n--exports c\n-- text\n") == Part(
        "x", ("a", "b"), ("c",), "-- text\n"
    )
