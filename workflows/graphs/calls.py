"""The calls in the code of a durable function, in the order of the code: read from its source, not by running
it.

What must always hold: a function without source, or with code that this does not know, has fewer nodes and
raises nothing. A node is named by what is called; a second call of the same gets a number.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from workflows.definition.signal import Signal
from workflows.definition.task import Task
from workflows.definition.workflow import Workflow
from workflows.functions.definition import Durable
from workflows.graphs.graph import GraphNode, NodeKind
from workflows.graphs.lanes import Fork, Row

_KINDS: dict[str, NodeKind] = {
    "step": "step",
    "map": "each",
    "flow": "flow",
    "emit": "emit",
    "wait_for": "wait",
    "sleep": "sleep",
}
_GROUPS = ("gather", "race")


def calls_of(function: Callable[..., Any]) -> tuple[list[GraphNode], Row]:
    """Return the calls of the context in a function as nodes, and how they follow each other."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):  # no source to read
        return [], []
    code = next((node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)), None)
    if code is None or not code.args.args:
        return [], []
    reader = _Reader(code.args.args[0].arg, _names_in(function))
    row = reader.read_block(code.body)
    return reader.nodes, row


def _names_in(function: Callable[..., Any]) -> dict[str, Any]:
    """Return what the names in the code of a function stand for: globals, and what it closes over."""
    found: dict[str, Any] = dict(getattr(function, "__globals__", {}))
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        try:
            found[name] = cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    return found


class _Reader:
    """Reads one function whose context is named `context`."""

    def __init__(self, context: str, known: Mapping[str, Any]) -> None:
        self.nodes: list[GraphNode] = []
        self._context = context
        self._known = known
        self._seen: Counter[str] = Counter()

    def read_block(self, statements: list[ast.stmt]) -> Row:
        """Return the calls of statements that follow each other."""
        return [lane for statement in statements for lane in self._read(statement)]

    def _read(self, node: ast.AST) -> Row:
        if isinstance(node, ast.If):
            return [*self._read(node.test), *self._fork([node.body, node.orelse])]
        if isinstance(node, ast.IfExp):
            return [*self._read(node.test), *_fork([self._read(node.body), self._read(node.orelse)])]
        if isinstance(node, ast.Match):
            return [*self._read(node.subject), *self._fork([case.body for case in node.cases])]
        if isinstance(node, (ast.Try, ast.TryStar)):
            handled = self._fork([[], *(handler.body for handler in node.handlers)])
            return [
                *self.read_block(node.body),
                *handled,
                *self.read_block(node.orelse),
                *self.read_block(node.finalbody),
            ]
        if isinstance(node, ast.Call):
            return self._read_call(node)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            return []
        return [lane for child in ast.iter_child_nodes(node) for lane in self._read(child)]

    def _read_call(self, call: ast.Call) -> Row:
        method = self._method_of(call)
        if method in _GROUPS:
            return _fork([self._read(each) for each in call.args])
        row = [lane for each in (*call.args, *call.keywords) for lane in self._read(each)]
        kind = _KINDS.get(method)
        if kind is None:
            return [*self._read(call.func), *row]
        return [*row, self._add(kind, call)]

    def _method_of(self, call: ast.Call) -> str:
        place = call.func
        if not isinstance(place, ast.Attribute) or not isinstance(place.value, ast.Name):
            return ""
        return place.attr if place.value.id == self._context else ""

    def _add(self, kind: NodeKind, call: ast.Call) -> str:
        given = call.args[0] if call.args else None
        value = self._known.get(given.id) if isinstance(given, ast.Name) else None
        name = _name_of(kind, given, value)
        self._seen[name] += 1
        if self._seen[name] > 1:
            name = f"{name} ({self._seen[name]})"
        about = str(getattr(value, "name", "")) if kind in ("flow", "wait") else ""
        self.nodes.append(GraphNode(name=name, kind=kind, about=about))
        return name

    def _fork(self, blocks: list[list[ast.stmt]]) -> Row:
        return _fork([self.read_block(block) for block in blocks])


def _fork(rows: list[Row]) -> Row:
    return [Fork(rows)] if any(rows) else []


def _name_of(kind: NodeKind, given: ast.expr | None, value: object) -> str:
    """Return what is called: its own name if that is known, otherwise how the code names it."""
    if kind == "sleep":
        return "sleep"
    if isinstance(value, (Task, Signal, Workflow, Durable)):
        return str(value.name)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    if isinstance(given, ast.Constant):
        return str(given.value)
    return next(_words_in(given), kind) if given is not None else kind


def _words_in(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
