"""`eventbus demo`, and the wheel that carries it."""

from __future__ import annotations

import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from programs import HERE, Program

Run = Callable[..., Program]

_ROOT = HERE.parent


def test_the_demo_shows_results_and_ends_by_itself(run: Run, tmp_path: Path) -> None:
    began = time.monotonic()
    demo = run("demo")
    assert demo.wait_ended(within=30) == 0, demo.story()
    assert time.monotonic() - began < 10
    text = demo.out.decode()
    assert demo.err == ""
    assert "\x1b" not in text, "piped: plain lines"
    for said in ("receipt r-o-1", "billed too", "at attempt 3", "LookupError: nothing in stock", "Traceback"):
        assert said in text
    assert "emissions a second" in text
    assert not list(HERE.glob(".eventbus"))


@pytest.mark.skipif(not (_ROOT / "pyproject.toml").exists(), reason="the sources are not here")
def test_the_built_wheel_has_all_files_of_both_packages(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    files = {
        path.relative_to(_ROOT).as_posix()
        for package in ("eventbus", "workflows")
        for path in (_ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"eventbus/py.typed", "workflows/py.typed", "eventbus/store/lua/turn.lua"} <= files
    assert files - names == set()
    foreign = {name for name in names - files if not name.split("/")[0].endswith(".dist-info")}
    assert foreign == set()
