"""Our use of redis-py's private attributes, checked with each of its releases that pyproject.toml allows.

Each release is installed into its own folder, from the package index that pip is configured for. If
pip cannot reach an index, the test fails and says so, because it has checked nothing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from harness.programs import HERE, clean_environment

_ROOT = HERE.parent
_FENCE = "tests/store/test_redis_attributes.py"


def _allowed() -> list[str]:
    """The oldest release that pyproject.toml allows, and the newest of each major."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    (bounds,) = (line for line in project["dependencies"] if line.startswith("redis["))
    found = re.fullmatch(r"redis\[hiredis\]>=(\d+)(\.\d+)*,<(\d+)", bounds)
    assert found, f"expected redis[hiredis]>=OLDEST,<MAJOR in pyproject.toml, got: {bounds!r}"
    oldest = bounds.partition(">=")[2].partition(",")[0]
    return [oldest, *(f"{major}.*" for major in range(int(found[1]), int(found[3])))]


def _run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run this Python with the packages in `folder` before all others, as no part of this test run."""
    environment = {name: value for name, value in clean_environment().items() if "PYTEST" not in name}
    # Ours stays behind it: it may be what makes this tree importable.
    paths = [str(folder), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    return subprocess.run(
        [sys.executable, *words],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("release", _allowed())
def test_the_wire_takes_over_the_connections_of_each_redis_py(release: str, tmp_path: Path) -> None:
    wanted = f"redis[hiredis]=={release}"
    flags = ("--quiet", "--disable-pip-version-check", "--no-input", "--target", str(tmp_path))
    installed = _run("-m", "pip", "install", *flags, wanted, folder=tmp_path)
    assert installed.returncode == 0, (
        f"nothing was checked: pip could not install {wanted}; this test needs pip and a package index:\n"
        f"{installed.stderr}"
    )
    version = _run("-c", "import redis; print(redis.__version__)", folder=tmp_path)
    assert version.stdout.startswith(release.removesuffix("*")), version.stdout + version.stderr
    fence = _run("-m", "pytest", "-q", "-p", "no:cacheprovider", _FENCE, folder=tmp_path)
    assert fence.returncode == 0, fence.stdout + fence.stderr
    assert "skipped" not in fence.stdout
