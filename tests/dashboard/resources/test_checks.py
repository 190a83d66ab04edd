"""`docs/dashboard-checks.md` has each of the 25 checks of the dashboard, with tests that exist, and misses
none.
"""

from __future__ import annotations

import re
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
_ROW = re.compile(r"^\| (\d+) \| .+ \| (.+) \|$", re.MULTILINE)
_TEST = re.compile(r"`((?:tests|integration)/[\w/]+\.py)::(\w+)`")


def _rows() -> dict[int, list[tuple[str, str]]]:
    text = (_ROOT / "docs" / "dashboard-checks.md").read_text()
    return {int(number): _TEST.findall(tests) for number, tests in _ROW.findall(text)}


def test_each_check_names_tests_that_exist() -> None:
    rows = _rows()
    assert list(rows) == list(range(1, 26))
    for number, named in rows.items():
        assert named, f"check {number} has no test"
        for path, name in named:
            assert f"def {name}(" in (_ROOT / path).read_text(), f"{path} has no {name}"


def test_each_test_of_a_check_stands_in_its_row() -> None:
    rows = _rows()
    for folder in ("tests", "integration"):
        for file in (_ROOT / folder).rglob("test_*.py"):
            path = file.relative_to(_ROOT).as_posix()
            for name, number in re.findall(r"def (test_check_(\d+)_\w+)", file.read_text()):
                assert (path, name) in rows[int(number)], f"{path}::{name} is missing in row {number}"
