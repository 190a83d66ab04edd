"""Commands that other packages add: found by their entry points, and kept apart from ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest
import typer
from typer.testing import Result

from eventbus.cli import plugins

Invoke = Callable[..., Result]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = ModuleType("some_plugin")
    monkeypatch.setitem(sys.modules, "some_plugin", module)
    return module


@pytest.fixture(autouse=True)
def offer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Have these entry points be installed, and no others."""

    def offer(**values: str) -> None:
        found = [EntryPoint(name, value, plugins.COMMANDS) for name, value in values.items()]
        monkeypatch.setattr(
            plugins, "entry_points", lambda *, group: [each for each in found if each.group == group]
        )
        plugins._find_all.cache_clear()

    yield offer
    plugins._find_all.cache_clear()


def test_a_plugin_is_listed_and_runs(invoke: Invoke, offer: Callable[..., None], module: Any) -> None:
    module.app = app = typer.Typer()

    @app.command(help="Count what there is.")
    def count(what: str) -> int:  # pyright: ignore[reportUnusedFunction]
        typer.echo(f"three {what}")
        return 3

    offer(count="some_plugin:app")
    assert "Count what there is." in invoke("--help").stdout
    ran = invoke("count", "mice")
    assert (ran.exit_code, ran.stdout) == (3, "three mice\n")


def test_a_plugin_replaces_no_command(invoke: Invoke, offer: Callable[..., None], module: Any) -> None:
    module.app = typer.Typer(help="Something else.")
    offer(worker="some_plugin:app")
    assert invoke("--help").stdout.count("\n  worker ") == 1
    assert "Something else." not in invoke("worker", "--help").stdout


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("no_such_module_at_all:app", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("some_plugin:missing", "AttributeError: module 'some_plugin' has no attribute 'missing'"),
        ("some_plugin:number", "it is int, expected a typer.Typer"),
    ],
)
def test_a_broken_plugin_says_so_and_harms_no_other_command(
    invoke: Invoke, offer: Callable[..., None], module: Any, value: str, why: str
) -> None:
    module.number = 5
    offer(count=value)
    shown = invoke("--help")
    assert shown.exit_code == 0
    assert f"Cannot be loaded from {value}." in " ".join(shown.stdout.split())
    ran = invoke("count", "mice", "--all")
    assert ran.exit_code == 2
    assert ran.stderr == (
        f"eventbus: the command count of an unknown distribution cannot be loaded from {value}: {why}\n"
    )


def test_commands_of_our_own_import_no_plugin() -> None:
    program = (
        "import sys; from eventbus.cli.app import app; "
        "app(['check', '--help'], standalone_mode=False); print('workflows' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "False"
