"""Foreign packages: other distributions also ship a top-level `workflows`, and the command line says so."""

from __future__ import annotations

import base64
import compileall
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
_OTHER = "llama-index-workflows"
_FOREIGN = {"workflows/__init__.py": "class Workflow: ...\n", "workflows/server.py": ""}

_PROGRAM = """
from eventbus import EventProvider
from workflows import WorkflowProvider

provider = EventProvider("memory:")
flows = WorkflowProvider(provider)


@provider.on("ask")
def ask(n): ...
"""


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of both packages, compiled once for all tests."""
    folder = tmp_path_factory.mktemp("compiled")
    for package in ("eventbus", "workflows"):
        shutil.copytree(_ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(folder, quiet=1)
    return folder


class Site:
    """A folder with installed distributions, and one with a program."""

    def __init__(self, folder: Path, compiled: Path) -> None:
        self.packages = folder / "site"
        self.program = folder / "program"
        self.program.mkdir()
        (self.program / "app.py").write_text(_PROGRAM)
        shutil.copytree(compiled, self.packages)
        files = [
            each for each in self.packages.rglob("*") if each.is_file() and each.parent.name != "__pycache__"
        ]
        self._record("eventbus-workflows", [each.relative_to(self.packages) for each in files])
        commands = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
        lines = [
            f"[{group}]\n{name} = {value}\n" for group in commands for name, value in commands[group].items()
        ]
        (self._info("eventbus-workflows") / "entry_points.txt").write_text("".join(lines))

    def install(self, name: str, files: Mapping[str, str]) -> None:
        """Install another distribution, as installers do: over what is there."""
        for path, text in files.items():
            (self.packages / path).parent.mkdir(exist_ok=True)
            (self.packages / path).write_text(text)
        self._record(name, [Path(path) for path in files])

    def uninstall(self, name: str) -> None:
        """Remove a distribution with its files."""
        folder = self._info(name)
        for line in (folder / "RECORD").read_text().splitlines():
            (self.packages / line.split(",")[0]).unlink(missing_ok=True)
        shutil.rmtree(folder)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        given = {"PYTHONPATH": str(self.packages), "EVENTBUS_URL": "memory:"}
        return subprocess.run(
            [sys.executable, "-m", "eventbus", *words],
            cwd=self.program,
            env={**os.environ, **given},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def check(self, *words: str) -> tuple[list[dict[str, Any]], dict[str, Any], int]:
        """Return the messages about packages, the other output, and the exit code."""
        ran = self.run("check", "--json", *words)
        assert ran.stderr == ""
        found = json.loads(ran.stdout)["findings"]
        program = next((each for each in found if each["subject"] == "program"), {})
        return [each for each in found if each["subject"] == "packages"], program, ran.returncode

    def _info(self, name: str) -> Path:
        return self.packages / f"{name.replace('-', '_')}-1.0.dist-info"

    def _record(self, name: str, files: list[Path]) -> None:
        folder = self._info(name)
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [f"{path.as_posix()},sha256={_digest(self.packages / path)},1" for path in files]
        (folder / "RECORD").write_text("\n".join([*lines, f"{folder.name}/RECORD,,"]) + "\n")


def _digest(path: Path) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()


@pytest.fixture
def site(tmp_path: Path, compiled: Path) -> Site:
    return Site(tmp_path, compiled)


@pytest.mark.slow
def test_an_installation_of_ours_alone_is_in_order(site: Site) -> None:
    found, program, code = site.check("app:provider")
    assert [(each["level"], each["said"]) for each in found] == [
        ("ok", "eventbus and workflows are those of eventbus-workflows")
    ]
    assert (program["level"], code) == ("ok", 0)


@pytest.mark.slow
def test_another_distribution_that_has_overwritten_our_files_is_named_with_the_way_out(site: Site) -> None:
    site.install(_OTHER, _FOREIGN)
    found, program, code = site.check("app:provider")
    (packages,) = found
    assert packages["level"] == "error"
    assert packages["said"] == (
        "1 file of package workflows is not ours any more, such as workflows/__init__.py: "
        "llama-index-workflows ships them too"
    )
    assert packages["remedy"] == (
        "keep llama-index-workflows in an environment of its own: pip uninstall llama-index-workflows, "
        "then pip install --force-reinstall eventbus-workflows"
    )
    assert program["said"].startswith("module app cannot be imported: ImportError: cannot import name")
    assert packages["said"] in program["said"]
    assert code == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("flows",), ("flows", "show", "order~1"), ("worker", "app:provider"), ("check", "app:provider")]
)
def test_commands_that_need_our_workflows_tell_why_there_are_none(site: Site, words: tuple[str, ...]) -> None:
    site.install(_OTHER, _FOREIGN)
    ran = site.run(*words)
    told = ran.stdout if words[0] == "check" else ran.stderr
    assert "llama-index-workflows ships them too; keep llama-index-workflows in an environment" in told
    assert "Traceback" not in ran.stderr
    assert ran.returncode == 2


@pytest.mark.slow
def test_a_distribution_that_was_overwritten_by_ours_is_a_warning(site: Site) -> None:
    ours = (site.packages / "workflows" / "__init__.py").read_text()
    site.install(_OTHER, {**_FOREIGN, "workflows/__init__.py": ours})
    found, program, code = site.check("app:provider")
    (packages,) = found
    assert packages["level"] == "warning"
    assert packages["said"] == (
        "llama-index-workflows ships package workflows too: "
        "what is installed or removed next destroys the other"
    )
    assert (program["level"], code) == ("ok", 0)


@pytest.mark.slow
def test_files_that_another_distribution_took_along_are_missed(site: Site) -> None:
    site.install(_OTHER, {"workflows/errors.py": "class WorkflowError(Exception): ...\n"})
    site.uninstall(_OTHER)
    found, _, code = site.check()
    (packages,) = found
    assert packages["level"] == "error"
    assert "package workflows lacks 1 of its files, such as workflows/errors.py" in packages["said"]
    assert packages["remedy"] == "pip install --force-reinstall eventbus-workflows"
    assert code == 2


@pytest.mark.slow
def test_a_file_that_was_changed_by_hand_is_a_warning(site: Site) -> None:
    place = site.packages / "workflows" / "errors.py"
    place.write_text(place.read_text() + "\n")
    found, _, code = site.check()
    assert [(each["level"], each["said"]) for each in found] == [
        ("warning", "package workflows was changed since it was installed, such as workflows/errors.py")
    ]
    assert code == 0


def test_a_module_of_the_program_that_hides_ours_is_told(site: Site) -> None:
    (site.program / "workflows.py").write_text("")
    found, program, code = site.check("app:provider")
    (packages,) = found
    assert packages["level"] == "error"
    assert packages["said"] == (
        f"package workflows is imported from {site.program / 'workflows.py'}, which is not ours"
    )
    assert packages["remedy"] == "rename it: workflows is the name of a package of eventbus-workflows"
    assert "which is not ours; rename it" in program["said"]
    assert code == 2


def test_an_editable_installation_has_nothing_to_compare(site: Site) -> None:
    """Its RECORD names a path file alone; what lies elsewhere of another distribution is hidden by it."""
    record = next(site.packages.glob("eventbus_workflows-*")) / "RECORD"
    record.write_text("_eventbus_workflows.pth,,\n")
    place = site.packages / "workflows" / "errors.py"
    place.write_text(place.read_text() + "\n")
    found, _, code = site.check()
    assert ([each["level"] for each in found], code) == (["ok"], 0)


def test_a_foreign_package_that_is_found_before_ours_is_named(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Site.__new__(Site)
    other.packages, other.program = tmp_path / "first", site.program
    other.packages.mkdir()
    other.install(_OTHER, _FOREIGN)
    (other.packages / "eventbus").symlink_to(site.packages / "eventbus")
    shutil.copytree(next(site.packages.glob("eventbus_workflows-*")), other.packages / "e.dist-info")
    found, _, code = other.check()
    assert [each["level"] for each in found] == ["error"]
    assert found[0]["said"] == (
        f"package workflows is imported from {other.packages / 'workflows'}, "
        "which llama-index-workflows ships"
    )
    assert found[0]["remedy"].endswith("pip uninstall llama-index-workflows")
    assert code == 2
