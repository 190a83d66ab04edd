"""Other releases of the package, in folders of their own for a process's module path.

An older one comes from the history; where there is none, as in an unpacked archive, there is no
older one either. A frozen copy beside the tests would grow with each release. A changed one is a
copy of the installed package in which a few words stand differently.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from importlib.util import find_spec
from pathlib import Path

from programs import HERE

__all__ = ["OLDER", "changed_release", "older_release"]

OLDER = "e0ec135"
"""The commit that the older release is taken from; no release has a tag yet."""


def older_release(folder: Path) -> Path | None:
    """Unpack it; None where the history does not reach so far."""
    archive = subprocess.run(
        ["git", "archive", OLDER, "eventbus"], cwd=HERE.parent, capture_output=True, check=False
    )
    if archive.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
        packed.extractall(folder, filter="data")
    return folder


def changed_release(folder: Path, file: str, old: str, new: str) -> Path:
    """Copy the package with `old` replaced in one of its files, where it must stand once."""
    spec = find_spec("eventbus")
    assert spec is not None
    assert spec.origin is not None
    shutil.copytree(
        Path(spec.origin).parent, folder / "eventbus", ignore=shutil.ignore_patterns("__pycache__")
    )
    changed = folder / "eventbus" / file
    text = changed.read_text()
    assert text.count(old) == 1, f"{old!r} in {file}"
    changed.write_text(text.replace(old, new))
    return folder
