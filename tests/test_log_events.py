"""The table of log events in `docs/logs.md` has every event that the code logs, with its logger, level and
fields, and no other.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from eventbus.engine import rescuer

_ROOT = Path(__file__).parent.parent
_LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
_AGAIN = "trying again"


class _Event(NamedTuple):
    """What one event has in all places that log it."""

    loggers: set[str]
    levels: set[str]
    fields: set[str]


class _Source:
    """The events of one file."""

    def __init__(self, path: Path) -> None:
        self._tree = ast.parse(path.read_text())
        self._owners = {child: node for node in ast.walk(self._tree) for child in ast.iter_child_nodes(node)}
        self._logger = ""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_log":
                assert isinstance(node.value, ast.Call)
                self._logger = ast.literal_eval(node.value.args[0])

    def list_events(self) -> Iterator[tuple[str, str, set[str], set[str]]]:
        """Yield name, logger, levels and fields of each event that is logged."""
        for node in ast.walk(self._tree):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            place, _, method = called.rpartition(".")
            named = {word.arg for word in node.keywords if word.arg} - {"exc_info"}
            if place == "_log" and method in _LEVELS and ast.unparse(node.args[0]) != "message":
                for name in self._names(node.args[0]):
                    yield name, self._logger, {"error" if method == "exception" else method}, named
            elif called == "note_unexpected":
                for name in self._names(node.args[0]):
                    yield name, "eventbus.emission", {"error"}, set()
            elif called == "log_failure":
                for name in self._names(node.args[1]):
                    is_again = name.endswith(_AGAIN)
                    levels = {"warning"} if is_again else {"error"} | ({"info"} & self._answers(named))
                    yield name, self._logger, levels, {"error"} | ({"retry_in"} if is_again else set())

    def _answers(self, named: set[str]) -> set[str]:
        return {"info"} if "is_answer" in named else set()

    def _names(self, node: ast.expr) -> list[str]:
        """Return the texts that an expression may be."""
        match node:
            case ast.Constant(str(text)):
                return [text]
            case ast.IfExp():
                return [*self._names(node.body), *self._names(node.orelse)]
            case ast.Subscript(ast.Name("_VERDICTS")):
                return list(rescuer._VERDICTS.values())  # pyright: ignore[reportPrivateUsage]
            case ast.Attribute(ast.Name("self"), name):  # an option of the class, or of who makes one
                return [text for each in _find_options(name.lstrip("_")) for text in self._names(each)]
            case ast.Name(name):
                return [text for each in self._find_assigned(node, name) for text in self._names(each)]
            case _:
                raise AssertionError(f"what is logged here cannot be told: {ast.unparse(node)}")

    def _find_assigned(self, node: ast.AST, name: str) -> list[ast.expr]:
        while not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node = self._owners[node]
        return [
            each.value
            for each in ast.walk(node)
            if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == name
        ]


def _find_options(name: str) -> list[ast.expr]:
    """Return what the option of an `Availability` is: its default, and what its makers say."""
    found: list[ast.expr] = []
    for place in ("availability", "retrying"):
        tree = ast.parse((_ROOT / f"eventbus/store/connection/{place}.py").read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Availability":
                found += [word.value for word in node.keywords if word.arg == name]
            elif isinstance(node, ast.FunctionDef) and node.name == "__init__" and place == "availability":
                defaults = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                found += [default for each, default in defaults if each.arg == name and default]
    assert len(found) > 1, name
    return found


def _read_code() -> dict[str, _Event]:
    events: dict[str, _Event] = defaultdict(lambda: _Event(set(), set(), set()))
    for package in ("eventbus", "workflows"):
        for path in sorted((_ROOT / package).rglob("*.py")):
            for name, logger, levels, fields in _Source(path).list_events():
                events[name].loggers.add(logger)
                events[name].levels.update(levels)
                events[name].fields.update(fields)
    return dict(events)


def _read_page() -> dict[str, _Event]:
    events: dict[str, _Event] = {}
    for line in (_ROOT / "docs/logs.md").read_text().splitlines():
        columns = [each.strip() for each in line.split("|")[1:-1]]
        if len(columns) == 5 and columns[0].startswith("`"):
            name, loggers, levels, fields = (re.findall("`([^`]+)`", each) for each in columns[:4])
            assert name[0] not in events, f"{name[0]} stands twice in the table"
            events[name[0]] = _Event(set(loggers), set(re.findall(r"\w+", columns[2])), set(fields))
            assert not levels, "levels stand without backticks"
            assert columns[4], f"{name[0]} says nothing"
    return events


def test_the_table_of_log_events_is_what_the_code_logs() -> None:
    code, page = _read_code(), _read_page()
    assert len(code) > 60
    assert page.keys() == code.keys()
    for name, event in code.items():
        assert page[name] == event, name
