"""Errors of the command line: one line with a remedy, and an exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from drivers.servers import Server, free_port
from typer.testing import Result

import eventbus
from eventbus._version import __version__

Invoke = Callable[..., Result]

_WRONG = {
    "no command": (["nonsense"], "No such command 'nonsense'"),
    "no argument": (["worker"], "see `eventbus worker --help`"),
    "no place": (["worker", "shop"], "expected MODULE:PROVIDER such as app:provider, got: 'shop'"),
    "no module": (["worker", "nowhere.at.all:provider"], "run this in the folder that holds it"),
    "no attribute": (["worker", "shop:bus"], "module shop has no 'bus'; there is: shop:provider"),
    "no provider": (["worker", "shop:item_sold"], "is no EventProvider"),
    "no provider at all": (["worker", "json:loads"], "it holds no EventProvider"),
    "no match": (["worker", "shop:provider", "--queues", "zzz*,yyy"], "no handler matches queues zzz*, yyy"),
    "grace": (["worker", "shop:provider", "--grace", "soon"], "expected grace to be seconds"),
    "concurrency": (["worker", "shop:provider", "--concurrency", "0"], "--concurrency"),
    "log format": (["worker", "shop:provider", "--log-format", "xml"], "--log-format"),
    "scheme": (["emit", "double", "--url", "ftp://host"], "expected a URL of redis://"),
    "name": (["emit", "a b"], "expected an event name"),
    "json": (["emit", "double", "{bad"], "in quotes, got: '{bad'"),
    "two inputs": (["emit", "double", "1", "--lines", "-"], "expected either a payload or --lines"),
    "key of lines": (["emit", "double", "--lines", "-", "--key", "k"], "use --app"),
    "meta": (["emit", "double", "1", "--meta", "x"], "expected --meta to be NAME=VALUE"),
    "priority": (["emit", "double", "1", "--priority", "9999"], "expected priority to be"),
    "delay": (["emit", "double", "1", "--delay", "soon"], "expected delay to be seconds"),
    "event of an app": (["emit", "sold", "--app", "shop:provider"], "knows no event 'sold'"),
}


@pytest.mark.parametrize("case", _WRONG)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(invoke: Invoke, case: str) -> None:
    words, told = _WRONG[case]
    result = invoke(*words)
    assert told in result.stderr
    assert (result.stderr.count("\n"), result.stdout, result.exit_code) == (1, "", 2)


def test_debug_anywhere_on_the_line_shows_the_traceback(invoke: Invoke) -> None:
    result = invoke("worker", "shop:bus", "--debug")
    assert "Traceback (most recent call last)" in result.stderr
    assert "Traceback" not in invoke("worker", "shop:bus").stderr


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import not_there_at_all", "imports 'not_there_at_all', which is not installed"),
        ("raise ValueError('two\\nlines')", "cannot be imported: ValueError: two lines; --debug shows"),
        ("def", "cannot be imported: SyntaxError"),
        (
            "from eventbus import EventProvider\nprovider = EventProvider('x://')",
            "expected a URL of redis://",
        ),
        ("from eventbus import EventProvider\nprovider = EventProvider()", "has no handlers"),
    ],
)
def test_a_broken_program_is_told_in_one_line(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, told: str
) -> None:
    (tmp_path / "broken.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    result = invoke("worker", "broken:provider")
    assert told in result.stderr
    assert (result.stderr.count("\n"), result.exit_code) == (1, 2)


def test_a_server_that_is_not_there_is_named_with_its_port(invoke: Invoke) -> None:
    port = free_port()
    result = invoke("emit", "double", "1", "--url", f"redis://127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in result.stderr
    assert "name another one with --url or EVENTBUS_URL" in result.stderr
    assert (result.stderr.count("\n"), result.exit_code) == (1, 1)


@pytest.fixture
def locked() -> Iterator[Server]:
    server = Server()
    server.start()
    server.wait(lambda client: client.config_set("requirepass", "secret-word"))
    yield server
    server.stop()


def test_a_wrong_password_is_told_and_not_shown(invoke: Invoke, locked: Server) -> None:
    url = locked.url.replace("unix://", "unix://:wrong-word@")
    result = invoke("emit", "double", "1", "--url", url)
    assert "password" in result.stderr
    assert "wrong-word" not in result.stderr
    assert (result.stderr.count("\n"), result.exit_code) == (1, 1)


def test_the_version_and_the_help_are_shown(invoke: Invoke) -> None:
    assert invoke("--version").stdout == f"eventbus {__version__}\n"
    told = invoke("--help")
    assert told.exit_code == 0
    assert all(name in told.stdout for name in ("worker", "emit", "demo", "server", "--debug"))
    assert invoke().exit_code == 2


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_its_extra_the_command_line_says_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from eventbus.__main__ import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(eventbus.__file__).parent.parent,
    )
    assert ran.stderr.count("\n") == 1
    assert "pip install 'eventbus-workflows[cli]'" in ran.stderr
    assert ran.returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code"), [(["--help"], 0), (["emit", "double", "1"], 2), (["check"], 2), (["demo"], 2)]
)
def test_a_wrong_variable_is_told_by_its_name_and_keeps_no_command_from_starting(
    words: list[str], code: int
) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "eventbus", *words],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"EVENTBUS_LEASE": "0.1"},
    )
    assert ran.returncode == code
    assert "Traceback" not in ran.stderr
    if code:
        told = "EVENTBUS_LEASE: expected lease to be at least 0.5 s, got: 0.1 s"
        assert told in ran.stderr + ran.stdout


def test_an_error_of_a_lifespan_names_it(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text(
        """
from eventbus import EventProvider

provider = EventProvider("memory:")


@provider.on("double")
async def double(n):
    return 2 * n


@provider.lifespan
async def database():
    raise ConnectionRefusedError("nobody at pg:5432")
    yield
"""
    )
    monkeypatch.chdir(tmp_path)
    result = invoke("worker", "broken:provider")
    last = result.stderr.splitlines()[-1]
    assert "ConnectionRefusedError: nobody at pg:5432 (in the lifespan database)" in last
    assert result.exit_code == 1
