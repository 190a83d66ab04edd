"""`eventbus worker --reload`: real processes, real files."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from drivers.program import Program
from typer.testing import Result

from eventbus import EventProvider
from eventbus.cli.commands.reload import Reloader

Make = Callable[..., EventProvider]

_APP = """
import os
from eventbus import EventProvider

provider = EventProvider()


@provider.on("ask")
async def ask(_: object) -> list[int]:
    return [{answer}, os.getpid()]
"""


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def write(folder: Path, answer: str) -> None:
    """Save the program; two answers of one length look alike to the byte code, as two saves within a second
    do.
    """
    path = folder / "app.py"
    path.write_text(_APP.format(answer=answer))
    os.utime(path, (1_700_000_000, 1_700_000_000))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "1")
    return tmp_path


@pytest.fixture
def reloading(environment: dict[str, str], folder: Path) -> Iterator[Program]:
    program = Program("worker", "app:provider", "--reload", environment=environment, folder=folder)
    program.wait_for("restarting the worker when Python files in")
    program.wait_for("worker ready")
    yield program
    program.close()


@pytest.mark.slow
async def test_a_change_is_served_a_mistake_is_told_and_the_next_change_starts_again(
    reloading: Program, make_provider: Make, folder: Path
) -> None:
    async with make_provider() as provider:
        first, pid = await provider.emit("ask")
        assert first == 1
        write(folder, "2")
        reloading.wait_for("app.py changed, restarting the worker")
        reloading.wait_for("worker stopped")
        reloading.wait_for("worker ready")
        second, second_pid = await provider.emit("ask")
        assert (second, second_pid == pid, is_there(pid)) == (2, False, False)
        write(folder, "][")
        reloading.wait_for("module app cannot be imported: SyntaxError")
        reloading.wait_for("the worker ended with exit code 2; it is started again at the next change")
        write(folder, "3")
        reloading.wait_for("worker ready")
        third, third_pid = await provider.emit("ask")
        assert third == 3
    reloading.send(signal.SIGTERM)
    assert reloading.wait() == 0
    assert not is_there(third_pid)
    assert "worker stopped" in reloading.errors[-1]


@pytest.mark.slow
def test_files_that_are_no_python_change_nothing(reloading: Program, folder: Path) -> None:
    (folder / "notes.txt").write_text("x")
    write(folder, "2")
    line = reloading.wait_for("changed, restarting")
    assert line == "eventbus: app.py changed, restarting the worker"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_passed_on_also_after_a_mistake(
    reloading: Program, folder: Path, number: signal.Signals
) -> None:
    write(folder, "][")
    reloading.wait_for("the worker ended with exit code 2")
    reloading.send(number)
    assert reloading.wait() == 0


@pytest.mark.slow
async def test_the_worker_does_not_outlive_a_watcher_that_was_killed(
    reloading: Program, make_provider: Make
) -> None:
    async with make_provider() as provider:
        _, pid = await provider.emit("ask")
    reloading.send(signal.SIGKILL)
    reloading.process.wait()
    end = time.monotonic() + 240
    while is_there(pid):
        assert time.monotonic() < end, "the worker lives on"
        time.sleep(0.01)  # noqa: ASYNC251  (another process)


def test_reload_and_burst_exclude_each_other(invoke: Callable[..., Result]) -> None:
    result = invoke("worker", "shop:provider", "--reload", "--burst")
    assert "expected either --reload or --burst, got both" in result.stderr
    assert result.exit_code == 2


def test_without_watchfiles_it_says_what_to_install(
    invoke: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    result = invoke("worker", "shop:provider", "--reload")
    assert "--reload needs watchfiles; pip install 'eventbus-workflows[cli]'" in result.stderr
    assert result.exit_code == 2


_STUBBORN = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: None)
with open(sys.argv[1], "a") as starts:
    starts.write("up ")
signal.pause()
input()
"""


def changes(starts: Path) -> Iterator[set[str]]:
    """A change once the worker is up, and a signal once the next one is."""
    yield set()
    for count in (1, 2):
        while not starts.exists() or starts.read_text().count("up") < count:
            yield set()
        if count == 1:
            yield {"a.py", "b.py", "c.py", "d.py"}
    os.kill(os.getpid(), signal.SIGTERM)
    yield set()


def test_a_worker_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("eventbus.cli.commands.reload.tell", told.append)
    starts = tmp_path / "starts"
    reloader = Reloader([sys.executable, "-c", _STUBBORN, str(starts)], patience=0.2)
    assert reloader.run(changes(starts)) == 128 + signal.SIGKILL
    killed = "eventbus: the worker did not end in 0.2 s, killed"
    assert told == ["eventbus: a.py, b.py, c.py and 1 more changed, restarting the worker", killed, killed]
