"""What a command line imports: the modules of its own command, and nothing of the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eventbus.cli.app import app
from eventbus.cli.plugins import PluginGroup

_OF_OTHER_COMMANDS = {
    "eventbus.cli.commands.check",
    "eventbus.cli.commands.demo",
    "eventbus.cli.commands.emit",
    "eventbus.cli.commands.worker",
    "eventbus.cli.dashboard",
    "eventbus.dashboard",
    "eventbus.store.diagnostics",
    "http.server",
    "starlette",
    "uvicorn",
    "watchfiles",
    "workflows",
}
_OF_NO_HELP = {
    *_OF_OTHER_COMMANDS,
    "eventbus.provider",
    "redis",
    "rich.console",
    "structlog",
    "asyncio",
    "pydantic",
}
_TELL = (
    "import sys, atexit; atexit.register(lambda: print('loaded:', *sys.modules));"
    "from eventbus.__main__ import main; main()"
)


def _loaded(environment: dict[str, str], *words: str) -> set[str]:
    ran = subprocess.run(
        [sys.executable, "-c", _TELL, *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(ran.stdout.rpartition("loaded: ")[2].split())


@pytest.mark.parametrize(
    "words",
    [
        ("queues",),
        ("queues", "list", "--json"),
        ("queues", "orders"),
        ("workers",),
        ("groups",),
        ("schedules",),
        ("top", "--once"),
        ("jobs", "failures"),
        ("jobs", "find", "--correlation-id", "none"),
    ],
    ids=" ".join,
)
def test_a_reading_command_imports_nothing_of_the_others(
    environment: dict[str, str], words: tuple[str, ...]
) -> None:
    loaded = _loaded(environment, *words)
    assert "eventbus.provider" in loaded
    assert loaded & _OF_OTHER_COMMANDS == set()


def test_the_list_of_all_commands_imports_none_of_them(environment: dict[str, str]) -> None:
    loaded = _loaded(environment, "--help")
    assert "eventbus.cli.app" in loaded
    assert loaded & _OF_NO_HELP == set()


def test_the_list_of_all_commands_has_the_texts_of_the_commands() -> None:
    kind: Any = app.info.cls
    assert issubclass(kind, PluginGroup)
    group = kind(name="eventbus")
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        assert group._text_of(None, name) == command.get_short_help_str(limit=1000), name


def test_an_unknown_command_is_told_with_those_that_look_like_it(environment: dict[str, str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "eventbus", "quues"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert "Did you mean 'queues'?" in ran.stderr


_INTERRUPT = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
_IN_A_COMMAND = f"""
import sys
from eventbus.cli import toolkit
def interrupt(*_, **__):
    {_INTERRUPT}
    while True: pass
toolkit.configure_logs = interrupt
sys.argv = ["eventbus", "queues", "list", "--url", "redis://127.0.0.1:1"]
from eventbus.__main__ import main
main()
"""


@pytest.mark.parametrize("where", ["imports", "command"])
def test_an_interrupt_before_a_command_works_prints_no_traceback(where: str, tmp_path: Path) -> None:
    environment = dict(os.environ)
    if where == "imports":
        (tmp_path / "rich.py").write_text(f"{_INTERRUPT}\nwhile True: pass\n")
        environment["PYTHONPATH"] = str(tmp_path)
        words = ["-m", "eventbus", "queues", "list"]
    else:
        words = ["-c", _IN_A_COMMAND]
    done = subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode in (130, -signal.SIGINT)
    assert done.stderr.strip() == ""
