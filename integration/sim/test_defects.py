"""The table of defects fits the code, and the simulation finds one of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness.programs import clean_environment

from eventbus.errors import UsageError
from sim import defects
from sim.defects import DEFECTS, ROOT, Defect, put_into

# As `test_simulation.py` says.
pytestmark = pytest.mark.timeout(3600)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda each: each.name)
def test_each_text_stands_in_its_file_once(defect: Defect, tmp_path: Path) -> None:
    file = tmp_path / defect.file
    file.parent.mkdir(parents=True)
    file.write_text((ROOT / defect.file).read_text())
    put_into(defect, tmp_path)
    assert file.read_text() != (ROOT / defect.file).read_text()
    if defect.file.endswith(".py"):
        compile(file.read_text(), defect.file, "exec")


def test_a_text_that_is_not_there_is_told(tmp_path: Path) -> None:
    defect = DEFECTS[0]
    (tmp_path / defect.file).parent.mkdir(parents=True)
    (tmp_path / defect.file).write_text("something else")
    with pytest.raises(UsageError, match=r"has its text 0 times"):
        put_into(defect, tmp_path)


def find(*words: str) -> str:
    """Run the program; return what it prints."""
    ran = subprocess.run(
        [sys.executable, defects.__file__, *words],
        env=clean_environment() | {"PYTHONPATH": str(ROOT / "integration")},
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.stdout + ran.stderr


def test_a_slot_that_no_settle_frees_is_found_at_once() -> None:
    told = find("--seeds", "1", "--only", "freed by a settle")
    assert "at seed 1: " in told, told
    assert "holds name it" in told


def test_a_signal_that_is_taken_twice_is_found_by_the_simulation_of_flows() -> None:
    told = find("--first", "16", "--seeds", "1", "--only", "is taken twice")
    assert "at seed 16: " in told, told
    assert "were refused, and came" in told


def test_a_cancel_that_hits_the_next_run_is_found() -> None:
    told = find("--first", "13", "--seeds", "1", "--only", "old cancel")
    assert "at seed 13: " in told, told
    assert "was let run again, and was cancelled by nobody" in told
