"""The table of the fields of a record, compared with the scripts in both directions."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from eventbus.store.record_fields import FIELDS

_LUA = Path(str(files("eventbus.store").joinpath("lua")))
_RECORD = re.compile(r"job_root \.\. |key\('job'|name$")
"""The key of a record, as scripts write it; `name` is one in the few scripts that look at one job."""


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


def _calls(text: str, *commands: str) -> Iterator[tuple[str, list[str]]]:
    """The commands on a record, each with its arguments behind the key."""
    for match in re.finditer(rf"(?:call|try)\(\s*'({'|'.join(commands)})',\s", text):
        key, *rest = _arguments(text[match.end() :])
        if _RECORD.match(key):
            yield match[1], rest


def _literals(arguments: list[str]) -> set[str]:
    return {each[1:-1] for each in arguments if re.fullmatch(r"'[a-z]+'", each)}


def _written() -> dict[str, set[str]]:
    writers: dict[str, set[str]] = defaultdict(set)
    for name, text in _texts():
        found = {field for _, rest in _calls(text, "HSET") for field in _literals(rest[::2])}
        found |= {field for _, rest in _calls(text, "HINCRBY") for field in _literals(rest[:1])}
        found |= set(re.findall(r"\bset\('([a-z]+)'", text))  # a list of fields that grows
        for match in re.finditer(r"local fields = \{", text):
            found |= _literals(_arguments(text[match.end() :])[::2])
        for field in found:
            writers[field].add(name)
    return writers


def test_the_table_names_every_field_that_a_script_writes_with_its_writers_and_no_other() -> None:
    stated = {field: set(writers.split()) for field, (_, writers) in FIELDS.items() if writers}
    assert _written() == stated


def test_no_script_reads_or_removes_a_field_that_the_table_does_not_name() -> None:
    read = {
        field
        for _, text in _texts()
        for _, rest in _calls(text, "HGET", "HMGET", "HDEL")
        for field in _literals(rest)
    }
    assert read - FIELDS.keys() == set()
    lists = " ".join(text.partition("local FIELDS = ")[2].partition("}")[0] for _, text in _texts())
    assert FIELDS.keys() - read - _literals(re.findall(r"'\w+'", lists)) == set(), "nobody reads it"


def test_the_scan_sees_what_it_must() -> None:
    assert _written()["state"] >= {"settle", "enqueue", "announce"}
    assert _arguments("a, f(b, 'c,d'), { e, g }) rest") == ["a", "f(b, 'c,d')", "{ e, g }"]
