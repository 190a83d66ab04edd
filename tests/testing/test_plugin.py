"""The plugin of pytest, in projects of users: its fixtures, its report, and what it costs those who use
none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # each starts pytest

_APP = """
from eventbus import Event, EventProvider

provider = EventProvider("redis://production:6379", name="shop")
remind = Event("remind", payload=str, result=str)


@provider.on(remind)
async def run(name: str) -> str:
    return f"reminded {name}"
"""

_CONFTEST = """
import pytest
from app import provider


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def bus_providers():
    return [provider]
"""

_TESTS = """
import pytest
from app import provider, remind

pytestmark = pytest.mark.anyio


async def test_time_passes(bus):
    emission = provider.emit(remind, "ada", delay="3 days")
    began = bus.now
    await bus.advance("3 days")
    assert (bus.now - began).days == 3 and await emission == "reminded ada"


async def test_the_server_is_shared(bus, eventbus_server):
    assert eventbus_server.run([("PING",)]) == ["PONG"]


class TestOptions:
    @pytest.fixture
    def bus_options(self):
        return {"seed": 7}

    async def test_that_fails(self, bus):
        assert await provider.emit(remind, "ada") == "nobody"
"""


def run_pytest(folder: Path, files: dict[str, str], *options: str) -> tuple[int, str]:
    for name, text in files.items():
        (folder / name).write_text(text)
    # By its module, so that it is the one of this tree, installed or not.
    plugin = ("-p", "no:eventbus", "-p", "eventbus.testing.plugin")
    others = ("-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:schemathesis")
    command = [sys.executable, "-m", "pytest", "-q", *plugin, *others, *options]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    environment.pop("PYTEST_ADDOPTS", None)
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    return ran.returncode, ran.stdout + ran.stderr


def test_a_project_tests_with_the_fixtures_and_sees_the_seed_of_what_failed(tmp_path: Path) -> None:
    code, text = run_pytest(tmp_path, {"app.py": _APP, "conftest.py": _CONFTEST, "test_app.py": _TESTS})
    assert code == 1, text
    assert "1 failed, 2 passed" in text
    assert text.count("the same history again: TestBus(..., seed=7)") == 1


def test_each_process_of_xdist_has_a_server_of_its_own(tmp_path: Path) -> None:
    tests = (
        _TESTS.partition("class TestOptions")[0]
        + """

@pytest.mark.parametrize("number", range(4))
async def test_a_process_is_alone(bus, number):
    assert [await provider.emit(remind, str(n)) for n in range(9)] == [f"reminded {n}" for n in range(9)]
"""
    )
    code, text = run_pytest(
        tmp_path, {"app.py": _APP, "conftest.py": _CONFTEST, "test_app.py": tests}, "-n", "2"
    )
    assert (code, "6 passed" in text) == (0, True), text


def test_without_providers_the_remedy_is_told(tmp_path: Path) -> None:
    conftest = _CONFTEST.partition("@pytest.fixture\ndef bus_providers")[0]
    code, text = run_pytest(
        tmp_path, {"app.py": _APP, "conftest.py": conftest, "test_app.py": _TESTS}, "-k", "passes"
    )
    assert code == 1
    assert "def bus_providers(): return [provider]" in text


def test_a_project_that_uses_nothing_of_it_loads_nothing_and_keeps_its_names(tmp_path: Path) -> None:
    tests = """
import sys
import pytest


@pytest.fixture
def bus():
    return "number 7"


def test_own(bus):
    assert bus == "number 7"
    heavy = ("eventbus", "workflows", "msgspec", "hiredis")
    loaded = {name for name in sys.modules if name.startswith(heavy)}
    assert loaded == {"eventbus", "eventbus.testing", "eventbus.testing.plugin"}


def test_that_fails():
    assert False
"""
    code, text = run_pytest(tmp_path, {"test_own.py": tests})
    assert (code, "1 failed, 1 passed" in text) == (1, True), text
    assert "history" not in text
