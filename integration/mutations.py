"""Mutations: defects are put into the code one at a time, and its tests have to catch each.

    python integration/mutations.py --count 60 --seed 1        (or: tox -e mutations -- --count 60)
    python integration/mutations.py --only rights --only watch (or: tox -e mutations -- --only rights)

A mutation changes one line of one file of a copy of the tree. In a script it turns a condition, drops a
write, or swaps two arguments. In Python it turns a comparison, a condition or a flag, drops a call that
stands by itself, or changes a small number. The tests of its subject run until one fails. A mutation that a
stage takes longer for than it may counts as caught too, because CI would stop there. A script that cannot be
loaded says nothing and is replaced by another.

A mutation that no test caught is printed with its place. Some of these change nothing that anybody can see: a
person has to judge them, so the program ends with status 0 whatever the share is.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from harness.programs import clean_environment

ROOT = Path(__file__).resolve().parent.parent
LUA = Path("eventbus/store/lua")
WITHIN = 400
"""Seconds that a stage may take."""


class Subject(NamedTuple):
    """A part of the code: its files or folders, and the stages of its tests, the quickest first."""

    places: list[str]
    stages: list[list[str]]


SUBJECTS = {
    "scripts": Subject(
        ["eventbus/store/lua"],
        [
            ["tests/lua/workers", "tests/lua/jobs"],
            ["tests/lua/trees", "tests/lua/faults", "tests/lua/functions"],
            ["tests/store", "tests/engine", "tests/contract", "tests/workflows"],
        ],
    ),
    "rights": Subject(
        ["eventbus/dashboard/entry"],
        [["tests/unit/test_named_places.py", "tests/dashboard"], ["tests/cli/test_dashboard.py"]],
    ),
    "redaction": Subject(
        ["eventbus/model/redaction", "eventbus/dashboard/redaction.py", "eventbus/telemetry/carried.py"],
        [
            ["tests/unit/model/test_redaction.py", "tests/unit/telemetry"],
            ["tests/contract/inspector", "tests/dashboard"],
        ],
    ),
    "operations": Subject(
        ["eventbus/admin/operations", "eventbus/engine/operations"],
        [
            ["tests/unit/test_named_places.py", "tests/contract/operations"],
            ["tests/cli/operations", "tests/engine", "tests/dashboard"],
        ],
    ),
    "watch": Subject(
        ["eventbus/admin/watching", "eventbus/store/changes"],
        [
            ["tests/unit/test_named_places.py", "tests/contract/watching"],
            ["tests/lua/changes", "tests/dashboard/resources"],
        ],
    ),
    "machines": Subject(
        ["workflows/machines"],
        [
            ["tests/workflows/machines"],
            ["tests/workflows/faults", "tests/workflows/unit", "tests/workflows/contract"],
        ],
    ),
    "pipelines": Subject(
        ["workflows/pipelines"],
        [["tests/workflows/pipelines"], ["tests/workflows/contract", "tests/workflows/graphs"]],
    ),
}


class Mutation(NamedTuple):
    """One changed line: where it is, from 0; what was done; and the new text."""

    path: Path
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line + 1}: {self.kind}: {self.text.strip()}"


_OPPOSITES = {"==": "~=", "~=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_WRITES = "HSET HDEL SET SETRANGE DEL UNLINK ZADD ZREM SADD SREM RPUSH LPUSH LTRIM LREM HINCRBY PEXPIRE XADD"
_WRITE = re.compile(rf"^(\s*)(?:redis\.call|commands\.try)\('(?:{'|'.join(_WRITES.split())})',.*\)$")
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

_TURNED: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Lt: ">=", ast.GtE: "<", ast.Gt: "<=", ast.LtE: ">",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip


def mutate_python(path: Path, source: str) -> Iterator[Mutation]:
    """All mutations of a Python file, in the order of the tree. Annotations and docstrings stay."""
    lines = source.splitlines()
    tree = ast.parse(source)
    for parent in ast.walk(tree):
        for node in ast.iter_child_nodes(parent):
            found = _change(parent, node, source)
            if found is None:
                continue
            kind, place, new = found
            if place.lineno != place.end_lineno:
                continue
            line = lines[place.lineno - 1].encode()
            start, end = place.col_offset, place.end_col_offset
            text = (line[:start] + new.encode() + line[end:]).decode()
            yield Mutation(path, place.lineno - 1, kind, text)


def _change(parent: ast.AST, node: ast.AST, source: str) -> tuple[str, ast.expr | ast.stmt, str] | None:
    """Return what a mutation of a node is called, what it replaces, and by which text; None for no
    mutation.
    """

    def text(part: ast.AST) -> str:
        found = ast.get_source_segment(source, part) or ""
        return f"({found})" if isinstance(part, (ast.NamedExpr, ast.BoolOp)) else found

    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return "turned", node, f"{text(node.left)} {_TURNED[type(node.ops[0])]} {text(node.comparators[0])}"
    if isinstance(node, ast.BoolOp) and len(node.values) == 2:
        word = " or " if isinstance(node.op, ast.And) else " and "
        return "turned", node, word.join(map(text, node.values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return "turned", node, text(node.operand)
    is_test = isinstance(parent, (ast.If, ast.While, ast.IfExp)) and node is parent.test
    if is_test and isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Await)):
        return "turned", node, f"not {text(node)}"
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return "turned", node, str(not node.value)
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value in (0, 1, 2):
        is_named = isinstance(parent, (ast.Assign, ast.AnnAssign, ast.Subscript, ast.arguments))
        return None if is_named else ("counted", node, str(node.value + 1))
    if isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await)):
        return "dropped", node, "pass"
    return None


def find_mutations(rng: random.Random, names: Iterable[str]) -> Iterator[tuple[str, Mutation]]:
    """All mutations of some subjects, of these and of the kinds in turn, in a random order."""
    waiting: dict[tuple[str, str], list[Mutation]] = {}
    for name in names:
        for mutation in _mutations_of(SUBJECTS[name], rng):
            waiting.setdefault((name, mutation.kind), []).append(mutation)
    for found in waiting.values():
        rng.shuffle(found)
    while any(waiting.values()):
        for (name, _), found in waiting.items():
            if found:
                yield name, found.pop()


def _mutations_of(subject: Subject, rng: random.Random) -> Iterator[Mutation]:
    for place in subject.places:
        files = sorted((ROOT / place).rglob("*.*")) if (ROOT / place).is_dir() else [ROOT / place]
        for file in files:
            path = file.relative_to(ROOT)
            if file.suffix == ".py":
                yield from mutate_python(path, file.read_text())
            elif file.suffix == ".lua":
                for number, line in enumerate(file.read_text().splitlines()):
                    if line.lstrip().startswith("--"):
                        continue
                    for kind, change in KINDS.items():
                        if (text := change(line, rng)) is not None:
                            yield Mutation(path, number, kind, text)


_LOAD = """
import redis
from drivers.servers import Server
from eventbus.store.scripting.library import load_library

server = Server()
server.start()
try:
    redis.Redis.from_url(server.url).function_load(load_library().source)
finally:
    server.stop()
"""


def _loads(tree: Path, mutation: Mutation | None = None) -> bool:
    """Tell whether a server takes the scripts; a mutation of something else changes none."""
    is_other = mutation is not None and mutation.path.suffix != ".lua"
    return is_other or _run(tree, ["-c", _LOAD]) == "passed"


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


def judge(tree: Path, stages: list[list[str]], processes: int) -> str | None:
    """Return the test that catches the mutation in the copy `tree`, or None."""
    for stage in stages:
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
    parser.add_argument(
        "--only", action="append", choices=[*SUBJECTS], help="of this subject; may be given several times"
    )
    given = parser.parse_args()
    left: list[Mutation] = []
    judged = 0
    with tempfile.TemporaryDirectory(prefix="eventbus-mutations-") as folder:
        tree = Path(folder) / "tree"
        ignored = shutil.ignore_patterns(".git", ".tox", ".venv*", "__pycache__", "node_modules", "site")
        shutil.copytree(ROOT, tree, ignore=ignored)
        if not _loads(tree):
            sys.exit("the tests do not pass without a mutation")
        for name, mutation in find_mutations(random.Random(given.seed), given.only or SUBJECTS):
            path = tree / mutation.path
            whole = path.read_text()
            lines = whole.splitlines()
            lines[mutation.line] = mutation.text
            path.write_text("\n".join(lines) + "\n")
            stages = SUBJECTS[name].stages
            caught = judge(tree, stages, given.processes) if _loads(tree, mutation) else ""
            path.write_text(whole)
            if caught == "":
                continue
            judged += 1
            print(f"{judged:3} {name}: {mutation}\n    {caught or 'NOT CAUGHT'}", flush=True)
            if caught is None:
                left.append(mutation)
            if judged == given.count:
                break
    print(f"\n{judged - len(left)} of {judged} caught (seed {given.seed})")


if __name__ == "__main__":
    main()
