"""Each process of `pytest -n` begins to collect at another place, and all have the same order in the end.

The first process that collects a file rewrites its assertions and compiles it; the others find that in the
cache. If all began at the first file, each of them would do this for each file, which is most of a fresh
clone's time until the first test.
"""

from __future__ import annotations

from pathlib import Path

import pytest

__all__ = ["begin_elsewhere", "put_in_order"]


def begin_elsewhere(config: pytest.Config) -> None:
    """Let a process of `-n` take the folders and files of `config.args` from its own place on."""
    worker = getattr(config, "workerinput", None)
    if worker is None or len(config.args) != 1 or not Path(config.args[0]).is_dir():
        return
    # What is named is collected although `--ignore` names it.
    left_out = {Path(each).resolve() for each in config.getoption("ignore") or ()}
    parts = sorted(
        each
        for each in Path(config.args[0]).iterdir()
        if each.resolve() not in left_out
        and ((each.is_dir() and any(each.rglob("test_*.py"))) or each.match("test_*.py"))
    )
    sizes = [_size_of(each) for each in parts]
    # One that comes for a process that has ended has a number behind those of all.
    number = int(worker["workerid"].removeprefix("gw")) % worker["workercount"]
    begin = sum(sizes) * number / worker["workercount"]
    first = next((n for n in range(len(parts)) if sum(sizes[: n + 1]) > begin), 0)
    config.args[:] = map(str, parts[first:] + parts[:first])


def _size_of(part: Path) -> int:
    return sum(each.stat().st_size for each in part.rglob("*.py")) if part.is_dir() else part.stat().st_size


def put_in_order(items: list[pytest.Item]) -> None:
    """Sort by file, as a process does that begins at the first one."""
    items.sort(key=lambda item: item.path.parts)
