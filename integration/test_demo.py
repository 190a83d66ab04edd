"""`eventbus demo`, and the wheel that carries it."""

from __future__ import annotations

import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

import msgspec
from programs import HERE, Program

Run = Callable[..., Program]

_ROOT = HERE.parent
_PACKAGES = ("eventbus/", "workflows/")


def test_the_demo_shows_results_and_ends_by_itself(run: Run, tmp_path: Path) -> None:
    began = time.monotonic()
    demo = run("demo")
    assert demo.wait_ended(within=30) == 0, demo.story()
    assert time.monotonic() - began < 10
    text = demo.out.decode()
    assert demo.err == ""
    assert "\x1b" not in text, "piped: plain lines"
    for said in (
        "receipt r-o-1",
        "billing",
        "attempt 3",
        "delayed",
        "LookupError: nothing in stock",
        "Traceback",
    ):
        assert said in text
    assert "emissions a second" in text
    assert not list(HERE.glob(".eventbus"))


def test_the_built_wheel_has_all_files_of_both_packages(tmp_path: Path) -> None:
    names = _names_in_wheel(tmp_path)
    files = {
        path.relative_to(_ROOT).as_posix()
        for package in _PACKAGES
        for path in (_ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"eventbus/py.typed", "workflows/py.typed", "eventbus/store/lua/turn.lua"} <= files
    assert files - names == set()
    assert {name for name in names if name.startswith(_PACKAGES)} - files == set()
    (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
    assert f"{metadata.partition('/')[0]}/licenses/LICENSE" in names


def _names_in_wheel(folder: Path) -> set[str]:
    """What is in the wheel: the one that is installed, or for an editable install one built now."""
    installed = distribution("eventbus-workflows")
    origin = msgspec.json.decode(installed.read_text("direct_url.json") or "{}")
    if not origin.get("dir_info", {}).get("editable"):
        return {str(path) for path in installed.files or () if path.suffix != ".pyc"}
    command = ["pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(_ROOT)]
    if find_spec("hatchling") is not None:
        command.insert(2, "--no-build-isolation")
    built = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())
