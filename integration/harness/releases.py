"""Other releases of the package, each in a folder that a process can have on its module path.

The older release comes from the git history, because a frozen copy beside the tests would have to be
kept up. In an unpacked archive there is no history, and so no older release. A changed release is a
copy of the installed package with a few words replaced.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from importlib.util import find_spec
from pathlib import Path

from harness.programs import HERE

__all__ = ["FIRST_EDITION", "OLDER", "changed_release", "older_release"]

OLDER = "318a331"
"""The commit of the older release, because no release has a tag yet. It must store jobs and journals as this
one does.
"""
FIRST_EDITION = "fc496a1"
"""The commit of a release whose store has another edition, so that its keys are others."""


def older_release(folder: Path, commit: str = OLDER) -> Path | None:
    """Unpack both packages of a commit; return None if the history does not have it."""
    folder.mkdir()
    archive = subprocess.run(
        ["git", "archive", commit, "eventbus", "workflows"], cwd=HERE.parent, capture_output=True, check=False
    )
    if archive.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
        # Python 3.11.4 has the filter; Debian 12 has 3.11.2.
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(folder)
    return folder


def changed_release(folder: Path, file: str, old: str, new: str) -> Path:
    """Copy the package, and replace `old` in one of its files, which must have it once."""
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
