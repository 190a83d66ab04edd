"""The rules of the house that can be counted; CONTRIBUTING.md tells them in words."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

_ROOT = Path(__file__).resolve().parent.parent
_FOLDERS = ("eventbus", "workflows", "tests", "integration", "benchmarks", "examples")
_PACKAGES = ("eventbus", "workflows")

_UNSAFE_MODULES = {"cloudpickle", "dill", "marshal", "pickle", "shelve"}
_DOORS = {"eventbus/lowlevel.py", "eventbus/sync.py", "eventbus/cli/toolkit.py", "workflows/testing.py"}
"""The modules that users import, beside the packages and the errors."""
_NAMELESS_MODULES = {"base", "common", "helper", "helpers", "manager", "managers", "util", "utils"}


@cache
def _sources(suffix: str, folders: tuple[str, ...] = _FOLDERS) -> list[Path]:
    """List the sources that git tracks or would track; in an unpacked archive, those that lie there."""
    patterns = [f"{folder}/*{suffix}" for folder in folders]
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        found = (_ROOT / name for name in listed.stdout.split("\0") if name)
    else:
        found = (path for folder in folders for path in (_ROOT / folder).rglob(f"*{suffix}"))
    return sorted({path for path in found if path.is_file() and "node_modules" not in path.parts})


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes(), str(path))


def _shown(path: Path) -> str:
    return path.relative_to(_ROOT).as_posix()


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


def test_there_are_sources_to_check() -> None:
    assert _ROOT / "eventbus" / "errors.py" in _sources(".py")
    assert _ROOT / "eventbus" / "store" / "lua" / "add.lua" in _sources(".lua")


def test_imports_go_one_way() -> None:
    # In a process of its own: import-linter changes sys.path and keeps a cache of modules.
    linter = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    ran = subprocess.run(
        [sys.executable, "-c", linter, "--no-cache"], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_nothing_imports_a_serialiser_that_runs_code() -> None:
    words = re.compile("|".join(_UNSAFE_MODULES))
    unsafe = {
        _shown(path): module
        for path in _sources(".py")
        if words.search(path.read_text())  # to parse a file takes much longer
        for module in _imported(_tree(path))
        if module.split(".")[0] in _UNSAFE_MODULES
    }
    assert unsafe == {}


_ASKS_THE_TIME = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"}
_LOOP_TIMERS = {
    "eventbus/handlers/batches/gathering.py",
    "eventbus/runtime/timers.py",
    "eventbus/store/connection/channel.py",
    "eventbus/store/connection/wire.py",
    "eventbus/testing/virtual_time.py",
}


def test_the_time_is_asked_for_in_one_place() -> None:
    """`loop.time()` only beside timers of that loop, which count by it."""
    found = {
        f"{_shown(path)}: {ast.unparse(node)}"
        for path in _sources(".py", _PACKAGES)
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Attribute) and _asks_the_time(node)
    }
    assert {asked.partition(":")[0] for asked in found} == {"eventbus/model/clock.py"} | _LOOP_TIMERS, found


def _asks_the_time(node: ast.Attribute) -> bool:
    owner = ast.unparse(node.value)
    if owner == "time":
        return node.attr in _ASKS_THE_TIME
    if owner.rpartition(".")[2] in ("datetime", "date"):
        return node.attr in ("now", "utcnow", "today")
    return node.attr == "time" and "loop" in owner


def test_chance_has_one_place() -> None:
    """Beside secrets, and beside names of what a run on a real machine makes there."""
    found = {
        _shown(path)
        for path in _sources(".py", _PACKAGES)
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("secrets.token_hex", "random.random")
    }
    real = {"eventbus/store/diagnostics.py", "eventbus/store/embedded/server.py"}
    assert found == {"eventbus/model/chance.py"} | real


_MEASURES_TIME = re.compile(
    r"\b(perf_counter|process_time|thread_time)(_ns)?\(|assert [^#\n]*\b(monotonic|time)\(\) - \w+ <"
)


def test_no_test_asserts_a_bound_on_real_time() -> None:
    """On a machine that is shared such a test fails for what others do. Benchmarks measure; tests count
    (`drivers.counting`), move the clock, or wait for what nothing else would end.
    """
    found = {
        f"{_shown(path)}: {match[0]}"
        for folder in ("tests", "integration")
        for path in (_ROOT / folder).rglob("*.py")
        for match in _MEASURES_TIME.finditer(path.read_text())
    }
    assert {each for each in found if not each.startswith("integration/apps/")} == set()


def test_every_module_is_named_for_what_it_holds() -> None:
    nameless = {
        _shown(path)
        for path in _sources(".py")
        if _NAMELESS_MODULES & {part.lower() for part in path.relative_to(_ROOT).with_suffix("").parts}
    }
    assert nameless == set()


def test_no_two_public_classes_share_a_name() -> None:
    where: dict[str, list[str]] = {}
    for path in _sources(".py", _PACKAGES):
        for node in _tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(_shown(path))
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


def test_what_users_import_lists_its_names_and_nothing_else_does() -> None:
    listing = {
        _shown(path)
        for path in _sources(".py", _PACKAGES)
        if any(isinstance(node, ast.Assign) and _names_itself(node) for node in _tree(path).body)
    }
    assert {path for path in listing if not path.endswith(("/__init__.py", "/errors.py"))} == _DOORS


def _names_itself(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)


@pytest.mark.parametrize("package", _PACKAGES)
def test_the_front_door_lists_its_names_once_and_documented(package: str) -> None:
    module = importlib.import_module(package)
    offered: list[str] = module.__all__
    assert len(offered) == len(set(offered))  # how they are sorted, `test_exported_members.py` says
    assert [name for name in offered if not _is_documented(getattr(module, name))] == []


def _is_documented(offered: object) -> bool:
    """Tell whether a class or function has a docstring of its own; a plain value needs none."""
    if not callable(offered):
        return True
    text = vars(offered).get("__doc__") if isinstance(offered, type) else offered.__doc__
    return bool(text and text.strip())
