"""The environments of the Python peers: one each, from its `requirements.txt`, kept in `.benchmarks/`.

An environment is made again when its requirements or our Python's version change.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import venv
from pathlib import Path

from benchmarks.processes.programs import ROOT, ProgramError, one_line

CACHE = ROOT / ".benchmarks"
"""Ignored by git; may be removed at any time."""

_STAMP = "made-from.txt"


class Environment:
    """The environment of one peer."""

    def __init__(self, name: str, requirements: Path) -> None:
        self._folder = CACHE / name
        self._requirements = requirements

    def program(self, name: str) -> str:
        """Return the path of a program in it."""
        return str(self._folder / "bin" / name)

    def prepare(self) -> None:
        """Make it, unless it is there as asked for; raises ProgramError."""
        stamp = self._folder / _STAMP
        asked = f"{platform.python_version()}\n{self._requirements.read_text()}"
        if stamp.is_file() and stamp.read_text() == asked:
            return
        shutil.rmtree(self._folder, ignore_errors=True)
        venv.create(self._folder, with_pip=True)
        flags = ("--quiet", "--disable-pip-version-check", "--no-input")
        command = [self.program("python"), "-m", "pip", "install", *flags, "-r", str(self._requirements)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise ProgramError(f"pip install failed: {one_line(done.stderr)}")
        stamp.write_text(asked)

    def versions(self, *names: str) -> dict[str, str]:
        """Return the versions of what is installed in it."""
        places = sorted(self._folder.glob("lib/python*/site-packages"))
        if not places:
            return dict.fromkeys(names, "not installed")
        code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
        told = subprocess.run(
            [self.program("python"), "-c", code, *names], check=False, capture_output=True, text=True
        )
        return dict(zip(names, told.stdout.split(), strict=False))
