"""What can be counted of the house: `python tests/house_figures.py` prints the table of its shape.

`--walk` beside it runs a flow of two steps on an embedded server, and counts where the result of the first
step is on its way into the list of appends that the worker sends. `--list FIGURE` lists what is counted.

A room is a folder directly under a package with all below it, or a module beside the folders. An arrow leads
from a room to one that it imports, and upward where the contract of layers in `pyproject.toml` has that one
above. Imports for types count. Lines of code are those with a token that is neither a comment nor a
docstring.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import io
import sys
import tempfile
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("eventbus", "workflows")


class Arrow(NamedTuple):
    """An import of one module of ours by another one; those for types alone count."""

    importer: str
    imported: str


@cache
def sources() -> tuple[Path, ...]:
    """List the Python files of both packages."""
    return tuple(sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")))


@cache
def module_name(path: Path) -> str:
    """Return the dotted name of a file's module."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_bytes(), str(path))


def room(module: str) -> str:
    """Return the room of a module."""
    return ".".join(module.split(".")[:2])


@cache
def heights() -> dict[str, int]:
    """Return how high each room stands in the layers of its package; those of one line stand equally high."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return {
        f"{contract['containers'][0]}.{name.strip(' ()')}": -height
        for contract in contracts
        if contract["type"] == "layers"
        for height, line in enumerate(contract["layers"])
        for name in line.split(":")
    }


def upward() -> list[str]:
    """Return the imports of a room that stands above, or beside on one line.

    What a package offers (`import eventbus`) stands above all, and a room that uses it is a user like others.
    """
    high = heights() | {"eventbus._version": -1000}
    return [
        f"{arrow.importer} -> {arrow.imported}"
        for arrow in sorted(arrows())
        if room(arrow.importer) != room(arrow.imported) and arrow.imported not in PACKAGES
        if arrow.importer.split(".")[0] == arrow.imported.split(".")[0]
        if high.get(room(arrow.importer), 1) <= high.get(room(arrow.imported), 1)
    ]


def count_code(path: Path) -> int:
    """Count the lines of code of a file: without comments, docstrings and empty lines."""
    documented = {
        line
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    silent = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type not in silent:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


@cache
def arrows() -> frozenset[Arrow]:
    """Return the imports between our modules, type-checking ones included."""
    known = {module_name(path) for path in sources()}
    found: set[Arrow] = set()
    for path in sources():
        importer = module_name(path)
        for node in ast.walk(tree(path)):
            for name in _imported(node):
                target = name if name in known else name.rpartition(".")[0]
                if target in known and target != importer:
                    found.add(Arrow(importer, target))
    return frozenset(found)


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_arrows() -> set[tuple[str, str]]:
    """Return which room imports which."""
    found = {(room(arrow.importer), room(arrow.imported)) for arrow in arrows()}
    return {(here, there) for here, there in found if here != there}


def circles(edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Return the groups of nodes that reach each other (strongly connected components of two or more)."""
    after: dict[str, list[str]] = defaultdict(list)
    for here, there in edges:
        after[here].append(there)
    found: list[list[str]] = []
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for following in after[node]:
            if following not in index:
                visit(following)
                low[node] = min(low[node], low[following])
            elif following in stack:
                low[node] = min(low[node], index[following])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in list(after):
        if node not in index:
            visit(node)
    return sorted(found)


def classes() -> Iterator[tuple[Path, ast.ClassDef]]:
    """Yield every class at the top level of a module."""
    for path in sources():
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef):
                yield path, node


def shared_names() -> dict[str, list[str]]:
    """Return the public classes that share a name, with their modules."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, node in classes():
        if not node.name.startswith("_"):
            places[node.name].append(module_name(path))
    return {name: where for name, where in sorted(places.items()) if len(where) > 1}


def forwarders() -> list[str]:
    """Return the methods that only call one of another object with their own parameters, unchanged."""
    return [
        f"{module_name(path)}.{node.name}.{function.name}"
        for path, node in classes()
        for function in node.body
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) and _is_forwarder(function)
    ]


def _is_forwarder(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    body = [line for line in function.body if not _is_docstring(line)]
    if len(body) != 1 or any(_named(line) == "overload" for line in function.decorator_list):
        return False
    done = body[0]
    value = done.value if isinstance(done, (ast.Return, ast.Expr)) else None
    if isinstance(value, ast.Await):
        value = value.value
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return False
    owner = ast.unparse(value.func.value)
    if not owner.startswith("self."):
        return False
    own = {argument.arg for argument in _parameters(function)}
    given = [*value.args, *(keyword.value for keyword in value.keywords)]
    names = [argument.value if isinstance(argument, ast.Starred) else argument for argument in given]
    return all(isinstance(name, ast.Name) and name.id in own for name in names)


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    taken = function.args
    more = [argument for argument in (taken.vararg, taken.kwarg) if argument is not None]
    return [*taken.posonlyargs, *taken.args, *taken.kwonlyargs, *more]


def _named(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def having(name: str) -> list[str]:
    """Return the classes that have a method or an attribute of this name."""
    return [
        f"{module_name(path)}.{node.name}"
        for path, node in classes()
        if any(_defines(line, name) for line in ast.walk(node))
    ]


def _defines(node: ast.AST, name: str) -> bool:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return node.name == name
    if isinstance(node, ast.AnnAssign):
        return _named(node.target) == name
    return isinstance(node, ast.Assign) and any(_named(target) == name for target in node.targets)


def long_lines() -> int:
    """Count the lines of both packages that are over the limit of 110 characters."""
    return sum(len(line) > 110 for path in sources() for line in path.read_text().splitlines())


def figures() -> dict[str, int]:
    """Return the figures of the house by their names."""
    code = {path: count_code(path) for path in sources()}
    kit = ROOT / "eventbus" / "testing"
    between = room_arrows()
    modules = {(arrow.importer, arrow.imported) for arrow in arrows()}
    return {
        "files": len(code),
        "files without the test kit": sum(kit not in path.parents for path in code),
        "lines of code without the test kit": sum(
            count for path, count in code.items() if kit not in path.parents
        ),
        "rooms": len({room(module_name(path)) for path in sources()}),
        "arrows between rooms": len(between),
        "upward arrows": len({tuple(map(room, arrow.split(" -> "))) for arrow in upward()}),
        "rooms in circles": sum(map(len, circles(between))),
        "circles of files": len(circles(modules)),
        "files in circles": sum(map(len, circles(modules))),
        "public classes that share a name": len(shared_names()),
        "forwarders of one line": len(forwarders()),
        "classes with `keep_line`": len(having("keep_line")),
        "lines over 110 characters": long_lines(),
    }


class Walk:
    """Where the event loop is between the return of a program's function and a call of a method of ours."""

    def __init__(self, begins: str, ends: str) -> None:
        self._begins, self._ends = begins, ends
        self._is_under_way = self._is_done = False
        self.places: list[str] = []
        self.calls = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Be the profile function of the thread (`sys.setprofile`)."""
        if self._is_done:
            return
        if event == "return" and frame.f_code.co_name == self._begins:
            self._is_under_way = True
        if not self._is_under_way:
            return
        self.calls += event == "call"
        here = frame if event == "call" else frame.f_back
        if here is not None and (place := _module_of(here.f_code.co_filename)):
            self.places.append(place)
        self._is_done = event == "call" and frame.f_code.co_qualname == self._ends

    def stays(self) -> list[str]:
        """Return the rooms in the order of the visits."""
        rooms = [room(place) for place in self.places]
        return [here for before, here in zip([None, *rooms], rooms, strict=False) if here != before]


@cache
def _module_of(file: str) -> str:
    path = Path(file)
    is_ours = any(path.is_relative_to(ROOT / package) for package in PACKAGES)
    return module_name(path) if is_ours else ""


async def walk_of_a_step() -> Walk:
    """Follow a step's result of a local graph into the list of appends; the shortest of ten walks."""
    from eventbus import EventProvider
    from workflows import StepContext, Workflow, WorkflowProvider

    workflow = Workflow("walked", input=int)

    @workflow.step()
    async def first_of_two(ctx: StepContext[int]) -> int:
        return ctx.input

    @workflow.step(after=first_of_two)
    async def second_of_two(ctx: StepContext[int]) -> int:
        return ctx.input

    with tempfile.TemporaryDirectory() as folder:
        provider = EventProvider(f"embedded:{folder}")
        flows = WorkflowProvider(provider)
        flows.register(workflow)
        walks: list[Walk] = []
        async with provider, provider.worker():
            await (await flows.execute(workflow, 0)).result()
            for number in range(10):
                walks.append(walk := Walk("first_of_two", "Claimer.append"))
                sys.setprofile(walk)
                try:
                    await (await flows.execute(workflow, number)).result()
                finally:
                    sys.setprofile(None)
    return min(walks, key=lambda walk: len(walk.stays()))


def main() -> None:
    """Print the figures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--walk", action="store_true", help="run a flow and count its walk as well")
    options.add_argument(
        "--list",
        metavar="FIGURE",
        help="list what is counted: shared, forwarders, circles, rooms, upward, keep_line",
    )
    given = options.parse_args()
    lists: dict[str, Any] = {
        "shared": lambda: [f"{name}: {', '.join(where)}" for name, where in shared_names().items()],
        "forwarders": forwarders,
        "circles": lambda: [
            " ".join(group) for group in circles({(a.importer, a.imported) for a in arrows()})
        ],
        "rooms": lambda: [" ".join(group) for group in circles(room_arrows())],
        "upward": upward,
        "keep_line": lambda: having("keep_line"),
    }
    if given.list:
        print("\n".join(lists[given.list]()))
        return
    counted = figures()
    if given.walk:
        walk = asyncio.run(walk_of_a_step())
        stays = walk.stays()
        counted |= {
            "walk of a step's result: stays": len(stays),
            "walk of a step's result: rooms": len(set(stays)),
            "walk of a step's result: files": len(set(walk.places)),
            "walk of a step's result: calls": walk.calls,
        }
        print(" ".join(stays), end="\n\n")
    for name, count in counted.items():
        print(f"{count:>7,}  {name}")


if __name__ == "__main__":
    main()
