"""A lint of durable functions: calls in the code that give another value in each replay, or that wait outside
of it.

It reads the source of the function alone, and knows names, not values: it finds mistakes, and proves nothing.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

from workflows.functions.definition import Durable

_INSTEAD = {
    "time.time": "ctx.now()",
    "time.monotonic": "ctx.now()",
    "time.sleep": "await ctx.sleep(...)",
    "datetime.now": "ctx.now()",
    "datetime.utcnow": "ctx.now()",
    "datetime.today": "ctx.now()",
    "date.today": "ctx.now()",
    "uuid4": "ctx.uuid()",
    "uuid.uuid4": "ctx.uuid()",
    "uuid.uuid1": "ctx.uuid()",
    "os.urandom": "ctx.random",
    "open": "a step",
    "asyncio.create_task": "ctx.gather",
    "asyncio.ensure_future": "ctx.gather",
    "asyncio.gather": "ctx.gather",
    "asyncio.wait": "ctx.race",
    "asyncio.wait_for": "ctx.race with ctx.sleep",
    "asyncio.as_completed": "ctx.race",
    "asyncio.timeout": "ctx.race with ctx.sleep",
    "asyncio.TaskGroup": "ctx.gather",
    "asyncio.sleep": "ctx.sleep",
}
_MODULES = {"random": "ctx.random", "secrets": "ctx.random", "requests": "a step", "httpx": "a step"}


def lint(durable: Durable[Any, Any]) -> list[str]:
    """Return a line for each doubtful call in the code of a function: its place, the call, and what
    to use.
    """
    try:
        lines, first = inspect.getsourcelines(durable.function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):  # no source to read
        return []
    file = inspect.getsourcefile(durable.function) or "?"
    return [
        f"{file}:{first + node.lineno - 1}: {name}() in {durable.where}; use {instead}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and (instead := _instead(name := _name(node.func)))
    ]


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return f"{_name(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else "?"


def _instead(name: str) -> str:
    short = ".".join(name.split(".")[-2:])
    return _INSTEAD.get(name) or _INSTEAD.get(short) or _MODULES.get(name.partition(".")[0], "")
