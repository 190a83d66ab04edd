"""What a library makes once, and what each call makes anew: told from each other by the text of the parts."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest
from drivers.lua_scopes import read_scopes

from eventbus.store.scripting.linker import ScriptPart, find_names
from eventbus.store.scripting.part_sections import NAMES, Sections, split_part
from eventbus.store.scripting.scripts import list_scripts, read_part, read_script

_LUA = Path(str(files("eventbus.store").joinpath("lua")))
_PARTS = sorted(path.stem for path in (_LUA / "lib").glob("*.lua"))
_SECTIONS = {name: split_part(read_part(name)) for name in _PARTS}
_CONSTANTS = {name for sections in _SECTIONS.values() for name in sections.fixed}
_WORDS = frozenset(
    re.findall(r"\w+", "and do end false for function if in local nil not or return then true else elseif")
)


def _split(body: str) -> Sections:
    return split_part(ScriptPart("x", (), None, body))


def test_a_variable_is_state_and_a_name_in_capitals_is_a_constant() -> None:
    sections = _split("local seen = {}\nleft, right = 3, {}\nlocal MOST = 5\nWIDTHS = {\n  a = 1,\n}\n")
    assert sections.loaded == ["local seen", "local MOST"]
    assert sections.state == ["seen = {}", "left, right = 3, {}"]
    assert sections.constants == ["MOST = 5", "WIDTHS = {\n  a = 1,\n}"]
    assert sections.fixed == {"MOST", "WIDTHS"}


def test_a_table_of_functions_is_made_once_and_so_are_its_fields_in_capitals() -> None:
    sections = _split("plain = {}\nplain.KNOWN = {}\nfunction plain.read(x)\n  return x\nend\n")
    assert sections.loaded == ["plain = {}", "function plain.read(x)\n  return x\nend"]
    assert sections.constants == ["plain.KNOWN = {}"]
    assert sections.fixed == {"plain"}


def test_another_field_of_a_table_of_functions_is_state() -> None:
    sections = _split(
        "lines = {}\nlines.unlisted = {} -- for the call\nlines.AT = shard.at\nfunction lines.read() end\n"
    )
    assert sections.loaded == ["lines = {}", "function lines.read() end"]
    assert sections.state == ["lines.unlisted = {} -- for the call", "lines.AT = shard.at"]


def test_a_table_of_functions_may_be_written_with_constants_and_nothing_else() -> None:
    sections = _split("book = {\n  PAUSED = 1, -- a flag\n}\nfunction book.read() end\n")
    assert sections.loaded == ["book = {}", "function book.read() end"]
    assert "pairs(fields) do book[name] = field end" in sections.constants[0]
    for field in ("ROOT = shard.root", "changed = {}"):
        with pytest.raises(ValueError, match="no constants"):
            _split(f"book = {{ {field} }}\nfunction book.read() end\n")


@pytest.mark.parametrize(
    "value",
    ["'of ' .. shard.root", "KEYS[1]", "shard.key('a', 'b')", "redis.call('TIME')", "{ a = args.at }"],
)
def test_a_name_in_capitals_is_state_where_its_value_may_differ_in_each_call(value: str) -> None:
    sections = _split(f"TEXT = {value}\n")
    assert (sections.constants, sections.state, sections.fixed) == ([], [f"TEXT = {value}"], set())


@pytest.mark.parametrize(
    "value", ["FLAG.MORE + 1", "{ [0] = true, at = MOST }", "string.rep('root', 2)", "{}"]
)
def test_a_name_in_capitals_is_a_constant_where_its_value_has_only_constants(value: str) -> None:
    assert _split(f"TEXT = {value}\n").constants == [f"TEXT = {value}"]


def test_a_name_without_a_value_is_state_unless_it_is_a_function() -> None:
    sections = _split("local go_on\nlocal last\nfunction go_on() last = 1 end\n")
    assert sections.loaded == ["local go_on", "local last", "function go_on() last = 1 end"]
    assert sections.state == ["last = nil"]


def test_a_step_of_each_call_may_end_it() -> None:
    sections = _split(
        "local book = redis.call('GET', 'x')\nif not book then return redis.error_reply('NO') end\n"
    )
    assert sections.ends_call
    assert len(sections.state) == 2
    assert not _split("local a = 1\nfunction f()\n  if a then return a end\nend\n").ends_call


@pytest.mark.parametrize(
    "text", ["while true do\n  x()\nend\n", "begin()\n", "return 1\n", "x\n", "goto x\n"]
)
def test_a_statement_of_no_known_kind_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no known kind"):
        _split(text)


@pytest.mark.parametrize("name", _PARTS)
def test_a_part_declares_each_of_its_names_once(name: str) -> None:
    declared = re.findall(
        r"^local (?:function )?(\w+(?:, \w+)*)", "\n".join(_SECTIONS[name].loaded), re.MULTILINE
    )
    names = [each for words in declared for each in words.split(", ")]
    assert sorted(names) == sorted({*names})
    assert not {*names} & {*NAMES, "OWN", "KEYS", "ARGV"}


@pytest.mark.parametrize("name", _PARTS)
def test_a_constant_is_made_of_constants_alone(name: str) -> None:
    """It is set once, so what is different in each call has no place in it."""
    text = "\n".join(_SECTIONS[name].constants)
    own = {name for each in re.findall(r"\bfor ([\w, ]+) (?:in|=)", text) for name in each.split(", ")} | set(
        re.findall(r"(\w+) =(?!=)", text)
    )
    assert find_names(text) - _CONSTANTS - set(NAMES) - _WORDS - own == set()
    assert find_names(text) & {"KEYS", "ARGV", "shard", "args", "redis"} == set()


_PLACE = r"[A-Za-z_]\w*(?:\.\w+|\[[^\]\n]*\])*"
_ASSIGNMENT = re.compile(
    rf"(?:^ *|\b(?:then|else|do|end|repeat) |\) )({_PLACE}(?:, {_PLACE})*) =(?!=)", re.MULTILINE
)
_FILLING = re.compile(r"(?:table\.(?:insert|remove|sort)|tables\.push)\((\w+)")


def _fresh_fields() -> list[str]:
    """The fields of tables of functions that each call sets anew."""
    found: list[str] = []
    for sections in _SECTIONS.values():
        for statement in sections.state:
            found += re.findall(r"^(\w+\.\w+) = ", statement)
    return found


_FRESH = re.compile("|".join(rf"\b{re.escape(each)}\b" for each in _fresh_fields()))


def _writes(text: str) -> set[str]:
    """The constants that a text sets, or sets a field of, or gives to what changes its first argument."""
    code = re.sub(r"--[^\n]*|'(?:[^'\\\n]|\\.)*'", "''", text)
    code = _FRESH.sub("fresh", code) if _FRESH.pattern else code
    places = [each for places in _ASSIGNMENT.findall(code) for each in re.split(r", (?![^\[]*\])", places)]
    written = {re.split(r"[.\[]", each)[0] for each in places} | set(_FILLING.findall(code))
    own = (
        r"\blocal (?:\w+, )*NAME\b|\bfunction\b[^(\n]*\([^)]*\bNAME\b"  # a local or a parameter of that name
    )
    return {name for name in written & _CONSTANTS if not re.search(own.replace("NAME", name), code)}


def test_no_function_and_no_script_changes_a_constant() -> None:
    texts = {
        name: "\n".join(each for each in sections.loaded if "function" in each)
        for name, sections in _SECTIONS.items()
    }
    texts |= {f"{name} of all": read_script(name) for name in list_scripts()}
    assert {name: writes for name, text in texts.items() if (writes := _writes(text))} == {}


def test_a_change_of_a_constant_is_found() -> None:
    assert _writes("function f() FLAG.MORE = 2 end") == {"FLAG"}
    assert _writes("x = 1\nFLAG[a] = 2") == {"FLAG"}
    assert _writes("if x then a.b, FLAG[a.b] = 1, 2 end") == {"FLAG"}
    assert _writes("table.insert(FLAG, 1)") == {"FLAG"}
    assert _writes("if FLAG.MORE == 2 then x = { a = FLAG.MORE, b = 2 } end") == set()


@pytest.mark.parametrize("name", _PARTS)
def test_each_variable_of_a_part_is_set_by_each_call(name: str) -> None:
    """Read anew from the text, by another reader than that of the linker."""
    body = read_part(name).body
    top = [
        line
        for line in body.splitlines()
        if re.match(r"[A-Za-z_]", line) and not re.match(r"(local )?function|end\b|for |if ", line)
    ]
    named = {
        each
        for line in top
        for each in re.sub(r"^local ", "", line.split(" = ")[0].split(" --")[0]).split(", ")
    }
    functions = set(re.findall(r"^(?:local )?function (\w+)", body, re.MULTILINE))
    variables = {each for each in named if not each.isupper() and "." not in each and each not in functions}
    variables |= {each for each in named if re.search(r"\.(?![A-Z_]+$)", each)}  # fields of its table
    variables -= set(re.findall(r"^function (\w+)\.", body, re.MULTILINE))
    set_anew = {each for line in _SECTIONS[name].state for each in line.split(" = ")[0].split(", ")}
    assert variables <= set_anew
    assert read_scopes(body).functions == read_scopes("\n".join(_SECTIONS[name].loaded)).functions
