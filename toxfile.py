"""Makes every Python that pyenv has installed visible to tox.

pyenv's `python3.12` on the PATH answers only if that version is switched on, so a plain
`tox` would skip it. tox loads this file by itself, and `pass_env` in tox.ini hands the
variables to its search; without pyenv it does nothing.
"""

import os
from pathlib import Path


def _switch_all_versions_on() -> None:
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    versions = sorted(path.name for path in root.glob("versions/3.*") if (path / "bin" / "python").exists())
    if versions and "PYENV_VERSION" not in os.environ:
        os.environ["PYENV_ROOT"] = str(root)
        os.environ["PYENV_VERSION"] = ":".join(versions)


_switch_all_versions_on()
