"""A few seeds of each kind are clean, and one seed has one history."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness.programs import clean_environment

# A simulation and its server take turns, and a busy machine lets each of them wait.
pytestmark = pytest.mark.timeout(3600)

_PROGRAM = Path(__file__).resolve().parents[1] / "sim.py"


def simulate(*words: str) -> list[str]:
    """Run the program; return the lines of its seeds, each up to the hash of its history."""
    ran = subprocess.run(
        [sys.executable, _PROGRAM, *words],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    return [line.partition(" commands, ")[0] for line in ran.stdout.splitlines() if line.startswith("seed ")]


@pytest.mark.servers("both")
def test_one_seed_has_one_history_in_each_process(kind: str) -> None:
    words = ["--server", kind, "--first", "1", "--seeds", "8", "--jobs", "40"]  # each kind of seed
    once, again = simulate(*words), simulate(*words)
    assert len(once) == 8
    assert once == again
    assert len(set(once)) == 8


@pytest.mark.parametrize("seeds", ["calm", "wild", "slow", "failover", "failover with kills"])
@pytest.mark.servers("one")
def test_seeds_of_each_kind_are_clean(kind: str, seeds: str) -> None:
    simulate("--server", kind, "--kind", seeds, "--first", "1000", "--seeds", "3")


@pytest.mark.servers("one")
def test_one_seed_of_flows_has_one_history(kind: str) -> None:
    words = ["--server", kind, "--first", "1", "--seeds", "3", "--flows", "8"]  # wild, calm, slow
    once, again = simulate(*words), simulate(*words)
    assert len(once) == 3
    assert once == again
    assert len(set(once)) == 3


@pytest.mark.servers("one")
def test_flows_over_failovers_end_or_are_gone(kind: str) -> None:
    simulate("--server", kind, "--kind", "failover", "--first", "1000", "--seeds", "1", "--flows", "8")
