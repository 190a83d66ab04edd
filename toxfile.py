"""Makes every Python that pyenv has installed visible to tox.

pyenv's `python3.12` on the PATH answers only if that version is switched on, so a plain
`tox` would skip it. A version that somebody has chosen stays the first. tox loads this
file by itself, and `pass_env` in tox.ini hands the variables to its search; without pyenv
it does nothing.
"""

import os
from pathlib import Path


def _switch_all_versions_on() -> None:
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    versions = sorted(path.name for path in root.glob("versions/3.*") if (path / "bin" / "python").exists())
    if versions:
        chosen = [name for name in os.environ.get("PYENV_VERSION", "").split(":") if name]
        os.environ["PYENV_ROOT"] = str(root)
        os.environ["PYENV_VERSION"] = ":".join(dict.fromkeys(chosen + versions))


_switch_all_versions_on()
