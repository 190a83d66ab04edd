"""The tables of the fields of a record, compared with the scripts in both directions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from models.records import CORE, FLAGS, MORE, STATES, decode

_LUA = Path(str(files("eventbus.store").joinpath("lua")))
_BYTES = {"plain", "flag", "codec"}
"""The files that know the bytes of a record."""
_NUMBERS = {"hold", "limit_keys", "limits", "slots", "windows"}
"""Those that know bytes of holds, and of the numbers of limits."""


def _texts() -> Iterator[tuple[str, str]]:
    for path in sorted(_LUA.rglob("*.lua")):
        yield path.stem, re.sub(r"--[^\n]*", "", path.read_text())


def _arguments(text: str) -> list[str]:
    """Split what follows an opening bracket at its commas, up to the closing one."""
    parts, depth, quoted = [""], 0, False
    for character in text:
        quoted ^= character == "'"
        depth += 0 if quoted else (character in "({[") - (character in ")}]")
        if depth < 0:
            break
        if character == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _literals(arguments: list[str]) -> set[str]:
    return {each[1:-1] for each in arguments if re.fullmatch(r"'[a-z]+'", each)}


def _found(text: str) -> set[str]:
    """The fields that a text writes."""
    found: set[str] = set()
    for match in re.finditer(r"\bchange\(", text):
        found |= _literals(_arguments(text[match.end() :])[1::2])
    for match in re.finditer(r"'HSET', shard\.key\('more', [^)]*\), ", text):
        found |= _literals(_arguments(text[match.end() :])[::2])
    for match in re.finditer(r"'HINCRBY', shard\.key\('more', [^)]*\), '(\w+)'", text):
        found.add(match[1])
    found |= set(re.findall(r"\bset\('([a-z]+)'", text))  # a list of fields that grows
    for match in re.finditer(r"local more = \{", text):
        found |= _literals(_arguments(text[match.end() :])[::2])
    for match in re.finditer(r"for field, value in pairs\(\{|for _, field in ipairs\(\{", text):
        found |= {
            each
            for part in _arguments(text[match.end() :])
            for each in re.findall(r"^'?([a-z]+)'?(?: =|$)", part)
        }
    return found


def _written() -> dict[str, set[str]]:
    writers: dict[str, set[str]] = defaultdict(set)
    for name, text in _texts():
        for field in _found(text) - CORE.keys():
            writers[field].add(name)
    for name, text in _texts():
        if name == "fields":
            assert "field == 'attempts'" in text
            writers["attempts"].add(name)
    return writers


def test_the_table_names_every_field_that_a_script_writes_with_its_writers_and_no_other() -> None:
    stated = {field: set(writers.split()) for field, (_, writers) in MORE.items()}
    assert _written() == stated


def test_no_script_reads_or_removes_a_field_that_the_tables_do_not_name() -> None:
    text = "\n".join(text for _, text in _texts())
    known = CORE.keys() | MORE.keys()
    read = set(re.findall(r"\b(?:record|known|lease|other)\.(\w+)", text))
    read |= set(re.findall(r"\b(?:fetch|peek)\([^()]*(?:\[[^]]*\])?\)(?: or \{\})?\)\.(\w+)", text))
    for match in re.finditer(r"\bclear\(", text):
        removed = _literals(_arguments(text[match.end() :])[1:])
        assert removed <= known
        read |= removed
    made_here = {"id", "blame", "hold", "lease", "holder", "is_removed", "time", "place"}
    """What scripts note beside the fields while they work."""
    assert read - known - made_here == set()
    shown = " ".join(text.partition("local FIELDS = ")[2].partition("}")[0] for _, text in _texts())
    shown += " ".join(re.findall(r"local COUNTS = \{([^}]*)\}", text))
    assert MORE.keys() - read - _literals(re.findall(r"'\w+'", shown)) == set(), "nobody reads it"


def test_the_bytes_are_known_to_three_files_alone() -> None:
    for name, text in _texts():
        if name in _BYTES:
            continue
        assert not re.search(r"job_root[^\n]*SETRANGE|'SETRANGE'", text), f"{name} writes bytes of a record"
        assert "struct.unpack" not in text or name in _NUMBERS, f"{name} reads bytes"


def test_states_and_flags_are_those_of_the_scripts() -> None:
    texts = dict(_texts())
    flags = re.search(r"FLAG = \{([^}]*)\}", texts["flag"])
    assert flags
    assert {name: int(bit) for name, bit in re.findall(r"(\w+) = (\d+)", flags[1])} == FLAGS
    names = re.search(r"local NAMES = \{([^}]*)\}", texts["codec"])
    assert names
    assert re.findall(r"'([a-z-]+)'", names[1]) == list(STATES.values())
    core = re.search(r"string.gmatch\('([a-z_ ]+)'", texts["codec"])
    assert core
    assert set(core[1].split()) == CORE.keys()


def test_the_scan_sees_what_it_must() -> None:
    assert _written()["due"] >= {"enqueuing", "delays", "planting"}
    assert _arguments("a, f(b, 'c,d'), { e, g }) rest") == ["a", "f(b, 'c,d')", "{ e, g }"]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\x30\x00",
        b"\x27\x00" + bytes(12),
        b"\x20\x40" + bytes(9) + b"\x40" + bytes(64),
        b"\x20\x00\x00",
    ],
)
def test_what_is_no_record_is_no_record(text: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        decode(text)
