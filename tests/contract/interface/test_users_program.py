"""The program that the type checkers read as user code also runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = Path(__file__).parents[2] / "typing" / "users_program.py"


@pytest.mark.slow
def test_the_program_that_type_checkers_take_runs(server_url: str, prefix: str) -> None:
    environment = {**os.environ, "EVENTBUS_URL": server_url, "EVENTBUS_PREFIX": prefix}
    ran = subprocess.run(
        [sys.executable, str(_PROGRAM)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
