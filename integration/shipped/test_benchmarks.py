"""The benchmarks as a program: a small run writes its page. Nothing here asserts times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness.backends import KINDS
from harness.programs import clean_environment

_ROOT = Path(__file__).resolve().parents[2]


def _benchmarks(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", "--small", "--peers", "none", *words],
        cwd=_ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
def test_a_small_run_measures_our_side_and_the_floor_and_writes_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Mine\n\nWords of mine.\n")
    works = "drain,reply,worker-cpu"
    server = str(next(iter(KINDS.values())))
    ran = _benchmarks("--count", "60", "--no-aof", "--only", works, "--server", server, "--output", str(page))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    text = page.read_text()
    assert text.startswith("# Mine\n\nWords of mine.\n")
    assert "cannot run" not in text
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    for side in ("eventbus", "floor"):
        assert [line for line in lines if line.startswith(f"| drain, one worker, concurrency 100 | {side} |")]
    goals = [line for line in lines if " met |" in line]
    assert len(goals) == 3, "drain and reply against the floor, and the worker's CPU"
    assert str(tmp_path) not in text, "no places of this machine"


@pytest.mark.long
def test_a_small_run_measures_flows_and_sees_their_results(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    works = "flow-3,flow-1-10-1,flow-breadth"
    server = str(next(iter(KINDS.values())))
    ran = _benchmarks("--count", "60", "--no-aof", "--only", works, "--server", server, "--output", str(page))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    text = page.read_text()
    assert "cannot run" not in text
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    for work in ("flow of 3 steps,", "flow of 12 steps,"):
        rows = [line for line in lines if line.startswith(f"| {work}")]
        assert [line for line in rows if "| eventbus | 20 |" in line], "the floor has no flows"
    assert len([line for line in lines if line.startswith("| 1,000 ")]) == 1, "a row of our own"
    goals = [line for line in lines if "met |" in line]
    assert len(goals) == 4, "for the row of our own two costs, and the longest call in both sizes"


def test_an_unknown_work_is_refused_with_those_that_are_known() -> None:
    ran = _benchmarks("--only", "dream")
    assert ran.returncode == 2
    assert "dream" in ran.stderr
    assert "drain" in ran.stderr
