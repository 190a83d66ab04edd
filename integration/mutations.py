"""Mutations: defects are put into the scripts one at a time, and the tests of the scripts have to catch each.

    python integration/mutations.py --count 60 --seed 1        (or: tox -e mutations -- --count 60)

A mutation turns a condition, drops a write, or swaps two arguments, in one line of one Lua file of a copy of
the tree. The tests of `STAGES` run until one fails. A mutation that a stage takes longer for than it may
counts as caught too, because CI would stop there. One that cannot be loaded says nothing and is replaced by
another.

A mutation that no test caught is printed with its place. Some of these change nothing that anybody can see: a
person has to judge them, so the program ends with status 0 whatever the share is.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from harness.programs import clean_environment

ROOT = Path(__file__).resolve().parent.parent
LUA = Path("eventbus/store/lua")
STAGES = [  # the quickest first
    ["tests/lua/workers", "tests/lua/jobs"],
    ["tests/lua/trees", "tests/lua/faults", "tests/lua/functions"],
    ["tests/store", "tests/engine", "tests/contract", "tests/workflows"],
]
WITHIN = 400
"""Seconds that a stage may take."""


class Mutation(NamedTuple):
    """One changed line: where it is, from 0; what was done; and the new text."""

    path: Path
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(LUA)}:{self.line + 1}: {self.kind}: {self.text.strip()}"


_OPPOSITES = {"==": "~=", "~=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_WRITES = "HSET HDEL SET SETRANGE DEL UNLINK ZADD ZREM SADD SREM RPUSH LPUSH LTRIM LREM HINCRBY PEXPIRE XADD"
_WRITE = re.compile(rf"^(\s*)(?:redis\.call|try)\('(?:{'|'.join(_WRITES.split())})',.*\)$")
_PLAIN = r"[\w.\[\]']+"


def turn_condition(line: str, rng: random.Random) -> str | None:
    """Turn one comparison, or one condition that compares nothing."""
    found = list(re.finditer(r" (==|~=|<=|>=|<|>) ", line))
    if found:
        chosen = rng.choice(found)
        return f"{line[: chosen.start()]} {_OPPOSITES[chosen[1]]} {line[chosen.end() :]}"
    bare = re.search(r"\b(if|elseif) (not )?(\w[\w.]*(?:\[[\w.]+\])?) then\b", line)
    if bare is None:
        return None
    turned = "" if bare[2] else "not "
    return f"{line[: bare.start()]}{bare[1]} {turned}{bare[3]} then{line[bare.end() :]}"


def drop_write(line: str, _rng: random.Random) -> str | None:
    """Drop a command that writes, where it is a statement of its own line."""
    found = _WRITE.match(line)
    return f"{found[1]}-- dropped: {line.strip()}" if found else None


def swap_arguments(line: str, rng: random.Random) -> str | None:
    """Swap two plain arguments that stand side by side."""
    found = list(re.finditer(rf"(?<=[(,]) ?({_PLAIN}), ({_PLAIN})(?=[,)])", line))
    found = [each for each in found if each[1] != each[2] and not each[1].startswith("'")]
    if not found or "function" in line:
        return None
    chosen = rng.choice(found)
    lead = " " if chosen[0].startswith(" ") else ""
    return f"{line[: chosen.start()]}{lead}{chosen[2]}, {chosen[1]}{line[chosen.end() :]}"


KINDS: dict[str, Callable[[str, random.Random], str | None]] = {
    "turned": turn_condition,
    "dropped": drop_write,
    "swapped": swap_arguments,
}


def find_mutations(rng: random.Random) -> Iterator[Mutation]:
    """All mutations of the scripts, of the kinds in turn, in a random order."""
    sources = sorted((ROOT / LUA).rglob("*.lua"))
    lines = [
        (path.relative_to(ROOT), number, line)
        for path in sources
        for number, line in enumerate(path.read_text().splitlines())
        if not line.lstrip().startswith("--")
    ]
    waiting: dict[str, list[Mutation]] = {}
    for kind, change in KINDS.items():
        changed = [(path, number, change(line, rng)) for path, number, line in lines]
        waiting[kind] = [
            Mutation(path, number, kind, text) for path, number, text in changed if text is not None
        ]
        rng.shuffle(waiting[kind])
    while any(waiting.values()):
        for found in waiting.values():
            if found:
                yield found.pop()


_LOAD = """
import redis
from drivers.servers import Server
from eventbus.store.functions.library import load_library

server = Server()
server.start()
try:
    redis.Redis.from_url(server.url).function_load(load_library().source)
finally:
    server.stop()
"""


def _loads(tree: Path) -> bool:
    """Tell whether a server takes the changed scripts."""
    return _run(tree, ["-c", _LOAD]) == "passed"


def _run(tree: Path, words: list[str]) -> str:
    environment = clean_environment() | {"PYTHONPATH": f"{tree}:{tree / 'tests'}"}
    try:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=WITHIN,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "took too long"
    if done.returncode == 0:
        return "passed"
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else "ended: " + (done.stdout.splitlines() or ["?"])[-1]


def judge(tree: Path, mutation: Mutation, processes: int) -> str | None:
    """Return the test that catches the mutation in the copy `tree`, or None."""
    for stage in STAGES:
        words = [
            "-m",
            "pytest",
            "-q",
            "-x",
            "-n",
            str(processes),
            "-p",
            "no:cacheprovider",
            "-p",
            "no:randomly",
        ]
        caught = _run(tree, [*words, "-m", "not again", *stage])
        if caught != "passed":
            return caught
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60, help="how many mutations are judged")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=3)
    given = parser.parse_args()
    left: list[Mutation] = []
    judged = 0
    with tempfile.TemporaryDirectory(prefix="eventbus-mutations-") as folder:
        tree = Path(folder) / "tree"
        ignored = shutil.ignore_patterns(".git", ".tox", ".venv*", "__pycache__", "node_modules", "site")
        shutil.copytree(ROOT, tree, ignore=ignored)
        if not _loads(tree):
            sys.exit("the tests do not pass without a mutation")
        for mutation in find_mutations(random.Random(given.seed)):
            path = tree / mutation.path
            whole = path.read_text()
            lines = whole.splitlines()
            lines[mutation.line] = mutation.text
            path.write_text("\n".join(lines) + "\n")
            caught = judge(tree, mutation, given.processes) if _loads(tree) else ""
            path.write_text(whole)
            if caught == "":
                continue
            judged += 1
            print(f"{judged:3} {mutation}\n    {caught or 'NOT CAUGHT'}", flush=True)
            if caught is None:
                left.append(mutation)
            if judged == given.count:
                break
    print(f"\n{judged - len(left)} of {judged} caught (seed {given.seed})")


if __name__ == "__main__":
    main()
