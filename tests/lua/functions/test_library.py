"""The library as text: its names, its flags, and the limits of Lua."""

from __future__ import annotations

import re
from typing import Any

import pytest
from drivers.lua_scopes import read_scopes
from drivers.servers import SCRIPTINGS, Server

from eventbus.store.scripting.library import PREFIX, load_library
from eventbus.store.scripting.linker import list_parts
from eventbus.store.scripting.part_sections import split_part
from eventbus.store.scripting.scripts import list_scripts, load_script, read_part, read_script

_LIBRARY = load_library()
_TEXT = _LIBRARY.source.partition("\n")[2]
_SCRIPTS = list_scripts()


def test_the_library_has_a_function_for_each_script() -> None:
    assert set(_LIBRARY.functions) == set(_SCRIPTS)
    registered = re.findall(r"function_name = '(\w+)'", _LIBRARY.source)
    assert sorted(registered) == sorted(_LIBRARY.functions.values())


def test_its_names_carry_the_digest_of_its_text() -> None:
    assert re.fullmatch(rf"{PREFIX}[0-9a-f]{{16}}", _LIBRARY.name)
    assert _LIBRARY.source.startswith(f"#!lua name={_LIBRARY.name}\n")
    assert all(name.startswith(f"{_LIBRARY.name}_") for name in _LIBRARY.functions.values())


def test_every_name_of_the_library_is_declared() -> None:
    assert read_scopes(_TEXT).undeclared == set()


def test_the_library_has_room_for_60_more_parts_and_10_more_upvalues_in_each_function() -> None:
    """Lua allows 200 locals and 60 upvalues."""
    scopes = read_scopes(_TEXT)
    assert scopes.most_locals <= 200 - 60
    assert scopes.most_upvalues <= 60 - 10


def test_no_directive_is_left() -> None:
    assert re.findall(r"--(?:include|defer|needs|exports|flags)", _LIBRARY.source) == []


@pytest.mark.parametrize("name", _SCRIPTS)
def test_a_scripts_flags_say_what_its_comment_says(name: str) -> None:
    text = read_script(name)
    (flags,) = re.findall(r"^-- flags: (.*)$", text, re.MULTILINE)
    comment = " ".join(line[3:] for line in text.splitlines() if line.startswith("-- "))
    said = {
        "none": "which is one that a full server refuses|first write is one that a full server refuses",
        "no-writes": "Writes nothing",
        "allow-oom": "a full server allows|one that a full server allows",
    }
    assert re.search(said[flags], comment)
    assert "flags" not in load_script(name).fields


@pytest.mark.skipif("functions" not in SCRIPTINGS, reason="this server has no functions")
def test_a_server_shows_the_functions_and_their_flags() -> None:
    server = Server()
    server.start()
    listed: list[Any] = []

    def load(client: Any) -> bool:
        client.execute_command("FUNCTION", "LOAD", _LIBRARY.source)
        listed.extend(client.function_list(withcode=False))
        return True

    server.wait(load)
    server.stop()
    functions = {each[1].decode(): {flag.decode() for flag in each[5]} for each in listed[0][5]}
    expected = {
        _LIBRARY.functions[name]: set(
            re.findall(r"^-- flags: (?!none)(.*)$", read_script(name), re.MULTILINE)
        )
        for name in _SCRIPTS
    }
    assert functions == expected


@pytest.mark.parametrize("name", _SCRIPTS)
def test_a_function_sets_the_state_of_every_part_that_its_script_takes_in(name: str) -> None:
    before = _TEXT.partition(f"function_name = '{_LIBRARY.functions[name]}'")[0]
    call = before.rpartition("local function call()\n")[2]
    for part in list_parts(read_script(name), read_part):
        state = split_part(part).state
        begin = f"OWN.begin_{part.name}()"
        assert (begin in call) == bool(state), begin
        if state:
            written = "\n".join([f"function {begin}", *state, "end"])
            assert re.sub(r"^ *--[^\n]*\n", "", written, flags=re.MULTILINE) in _TEXT


@pytest.mark.parametrize("name", _SCRIPTS)
def test_a_script_reads_no_variable_of_a_deferred_part(name: str) -> None:
    """Until the part is taken in its table is nil in a script; in a function it has what another call
    left.
    """
    text = read_script(name)
    deferred = "".join(re.findall(r"^--defer.*\n", text, re.MULTILINE))
    taken = {part.name for part in list_parts(text.replace(deferred, ""), read_part)}
    variables = {
        field
        for part in list_parts(deferred, read_part)
        if part.name not in taken
        for field in re.findall(rf"^({part.table}\.\w+) =", "\n".join(split_part(part).state), re.MULTILINE)
    }
    assert variables & set(re.findall(r"(?<![.:\w])\w+\.\w+", text)) == set()


_VERBS = frozenset(
    [
        "accept",
        "add",
        "admit",
        "answer",
        "append",
        "ask",
        "await",
        "begin",
        "break",
        "call",
        "cancel",
        "change",
        "choose",
        "claim",
        "clear",
        "close",
        "complete",
        "count",
        "cut",
        "decide",
        "decode",
        "describe",
        "do",
        "drop",
        "encode",
        "end",
        "enqueue",
        "exchange",
        "expire",
        "extend",
        "fail",
        "fetch",
        "find",
        "finish",
        "flush",
        "follow",
        "forget",
        "get",
        "give",
        "hand",
        "harden",
        "hold",
        "join",
        "judge",
        "keep",
        "leave",
        "line",
        "list",
        "load",
        "make",
        "meet",
        "name",
        "note",
        "open",
        "pack",
        "park",
        "peek",
        "place",
        "plant",
        "point",
        "promote",
        "push",
        "put",
        "quarantine",
        "rank",
        "read",
        "recall",
        "refuse",
        "register",
        "release",
        "remove",
        "reply",
        "requeue",
        "rescue",
        "reset",
        "retain",
        "satisfy",
        "say",
        "set",
        "settle",
        "stamp",
        "stop",
        "suspend",
        "sweep",
        "take",
        "tell",
        "try",
        "unlist",
        "unregister",
        "wait",
        "wake",
        "withdraw",
        "write",
    ]
)
_QUESTIONS = ("is_", "has_", "was_", "may_", "waits_", "stops_")
_PROPERTIES = {  # of a hold, a record, a key or the time: what they return
    "Hold": {"entry_of_hand", "place", "slot_of", "time", "token", "worker_of"},
    "plain": {"count", "size"},
    "blame": {"of"},
    "delays": {"again"},
    "heard": {"left_of_grace"},
    "idle": {"turn"},
    "lanes": {"key_of"},
    "lines": {"blames"},
    "Entry": {"job", "of"},
    "shard": {"key"},
    "commands": {"whole"},
    "fields": {"claimed_of", "text_of"},
    "placing": {"line_up", "without_gone"},
    "": {"first_created", "first_rank", "oldest_of", "targets_of"},
}  # fmt: skip


def _is_well_named(table: str, name: str) -> bool:
    if table in ("do_chore", "POLICIES"):  # by the kind of chore, and the policy
        return True
    return (
        name.partition("_")[0] in _VERBS or name.startswith(_QUESTIONS) or name in _PROPERTIES.get(table, ())
    )


def test_a_function_is_named_by_a_verb_or_by_what_it_returns() -> None:
    found = set(re.findall(r"^(?:local )?function (?:(\w+)\.)?(\w+)\(", _TEXT, re.MULTILINE))
    assert len(found) > 200
    assert {".".join(filter(None, each)) for each in found if not _is_well_named(*each)} == set()
