"""The bounds that Python and the scripts share, as they come into the texts of scripts."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from eventbus.store import bounds
from eventbus.store.scripting.library import load_library
from eventbus.store.scripting.scripts import load_script

_EVENTBUS = Path(str(files("eventbus")))
_BOUNDS = [name for name in vars(bounds) if name.isupper() and not name.startswith(("_", "LONGEST", "SHOWN"))]


def test_a_script_gets_the_number_of_a_bound() -> None:
    assert f"local SEEN = {bounds.PAGE_JOBS} --" in load_script("list").source
    assert "bounds." not in load_library().source


def test_a_bound_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(KeyError, match="UNKNOWN"):
        bounds.write_bounds("local MOST = bounds.UNKNOWN")


def test_every_bound_is_used() -> None:
    text = "\n".join(path.read_text() for path in _EVENTBUS.rglob("*.py") if path.name != "bounds.py")
    text += "\n".join(path.read_text() for path in _EVENTBUS.rglob("*.lua"))
    assert [name for name in _BOUNDS if not re.search(rf"\b{name}\b", text)] == []
