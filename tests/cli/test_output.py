"""What others wrote moves no cursor: all output of commands passes one place that cleans it."""

from __future__ import annotations

import ast
import asyncio
import io
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.console import Group
from rich.table import Table
from rich.text import Text
from typer.testing import Result

from eventbus import EventProvider
from eventbus.cli.output import clean_json, say
from eventbus.cli.screen import Screen

_ROOT = Path(__file__).parents[2]
_HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202emoc\nforged line"
_WRITERS = {"output.py", "screen.py", "board.py", "meter.py", "logs.py", "watching.py", "loop.py", "app.py"}
"""The layer itself, the live boards of demo and meter, and those that write or look at nothing of others."""


def test_no_command_writes_past_the_layer_that_cleans() -> None:
    found = list[str]()
    for path in [*_ROOT.glob("eventbus/cli/**/*.py"), *_ROOT.glob("workflows/cli/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            call = ast.unparse(node.func)
            if call == "print" or call.endswith(("stdout.write", "stderr.write", "buffer.write", "echo")):
                found.append(f"{path.name}: {call}")
            if call == "Console":
                found.append(f"{path.name}: {call}")
    assert {each.partition(":")[0] for each in found} <= _WRITERS, found


def test_lines_and_tables_are_cleaned(capsys: pytest.CaptureFixture[str]) -> None:
    say(_HOSTILE, "a plain one")
    out = capsys.readouterr().out
    assert out.count("\n") == 2
    assert not [each for each in out if not each.isprintable() and each != "\n"]

    written = io.StringIO()
    screen = Screen(file=written, width=200, markup=False, emoji=False, highlight=False)
    plain, folded = Table(box=None, pad_edge=False), Table()
    for table in (plain, folded):
        table.add_column("name", no_wrap=table is plain)
        table.add_row(_HOSTILE)
        table.add_row(Text(_HOSTILE, "bold"))
    screen.print(Group(plain, Text(_HOSTILE)), folded, _HOSTILE)
    assert "owned" in written.getvalue()
    assert not [each for each in written.getvalue() if not each.isprintable() and each != "\n"]
    assert written.getvalue().count("\nforged line") == 2  # only where a text of several lines was given


def test_json_is_the_same_value_without_what_does_not_print() -> None:
    value = {"reason": f"{_HOSTILE}\U000e0041ü"}
    raw = clean_json(msgspec.json.encode(value))
    assert raw.decode().isprintable()
    assert "ü" in raw.decode()
    assert msgspec.json.decode(raw) == value
    assert clean_json(b'{"a":1}') == b'{"a":1}'


@pytest.mark.parametrize(
    "command",
    [
        ["queues", "list"],
        ["queues", "orders"],
        ["schedules", "list"],
        ["schedules", "show", "nightly"],
        ["jobs", "list", "a", "--state", "delayed"],
        ["jobs", "why", "JOB"],
        ["jobs", "show", "JOB", "--full"],
        ["jobs", "failures"],
        ["audit"],
        ["operations", "list"],
        ["check"],
        ["top", "--once"],
    ],
    ids=" ".join,
)
def test_no_command_prints_an_escape_sequence_of_others(
    command: list[str], make_provider: Callable[..., EventProvider], invoke: Callable[..., Result]
) -> None:
    async def fill() -> str:
        async with make_provider() as provider:
            await provider.pause("a", reason=_HOSTILE, by=_HOSTILE)
            await provider.schedules.add("a", id="nightly", cron="0 0 1 1 *", payload=_HOSTILE)
            await provider.schedules.get("nightly").pause(_HOSTILE)
            job = provider.emit("a", {"x": _HOSTILE}, delay="1 hour")
            await job.enqueued()
            await provider.inspector.audit.note({"actor": _HOSTILE, "action": "x", "reason": _HOSTILE})
            return job.job_id

    job = asyncio.run(fill())
    for form in ([], ["--json"]):
        result = invoke(*(job if word == "JOB" else word for word in command), *form)
        if result.exit_code == 2:
            assert "--json" in result.stderr, result.stderr
            continue
        out = result.stdout + result.stderr
        assert not [each for each in out if not each.isprintable() and each != "\n"], (command, form)
        assert "\nforged" not in out
