"""The fork server of the tests: a program that it starts is a process as any other."""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import drivers.fork_server
import pytest
from drivers.children import child_processes
from drivers.fork_server import Fork, fork_server

Until = Callable[..., Awaitable[None]]

_PROGRAM = """
import atexit, json, os, sys, time
leads = os.getsid(0) == os.getpid()
print(json.dumps([__name__, sys.argv[1:], os.getcwd(), os.environ["WORD"], leads, sys.stdin.read()]))
print("told", file=sys.stderr)
atexit.register(print, "the end")
time.sleep(float(sys.argv[1]))
sys.exit(7)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "forked_program.py").write_text(_PROGRAM)
    (tmp_path / "in").write_text("given")
    return tmp_path


def _start(folder: Path, *words: str) -> Fork:
    with (
        (folder / "in").open() as given,
        (folder / "out").open("w") as out,
        (folder / "err").open("w") as err,
    ):
        return fork_server().start(
            "forked_program",
            words,
            environment={"WORD": "of its own"},
            cwd=folder,
            files=(given.fileno(), out.fileno(), err.fileno()),
        )


def test_a_program_has_its_words_folder_environment_files_and_session_and_ends_as_any_other(
    folder: Path,
) -> None:
    program = _start(folder, "0")
    assert program.wait(240) == program.poll() == 7
    said, end = (folder / "out").read_text().splitlines()
    assert said == f'["__main__", ["0"], "{folder}", "of its own", true, "given"]'
    assert end == "the end", "what was registered for the end of the interpreter"
    assert (folder / "err").read_text() == "told\n"
    program.kill()  # it has ended, so nobody gets it


async def test_a_kill_is_one_and_the_server_goes_on(folder: Path, until: Until) -> None:
    programs = [_start(folder, "600") for _ in range(2)]
    await until((folder / "err").read_text, "it runs")
    for program, number in zip(programs, (signal.SIGKILL, signal.SIGTERM), strict=True):
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(0)
        program.send_signal(number)
        assert program.wait(240) == -number
    assert _start(folder, "0").wait(240) == 7


class _Interrupted:
    """A socket to the fork server whose answers are cut off."""

    def __init__(self, server: Any) -> None:
        self.sendmsg = server._socket.sendmsg

    def recv(self, most: int) -> bytes:
        raise KeyboardInterrupt


def test_an_answer_that_an_interrupt_kept_from_being_read_is_nobody_elses(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fork_server()
    program, before = _start(folder, "600"), set(child_processes())
    with monkeypatch.context() as patch:
        patch.setattr(server, "_socket", _Interrupted(server))
        with pytest.raises(KeyboardInterrupt):
            _start(folder, "600")
    assert program.poll() is None, "it runs, and has no number of another program"
    (lost,) = (Fork(server, pid) for pid in set(child_processes()) - before)
    for each in (program, lost):
        each.kill()
        assert each.wait(240) == -signal.SIGKILL


async def test_an_end_that_was_told_to_nobody_is_told_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    server, program = fork_server(), _start(folder, "0")
    await until(lambda: _is_over(program.pid), "it has ended")
    with monkeypatch.context() as patch:
        patch.setattr(server, "_socket", _Interrupted(server))
        with pytest.raises(KeyboardInterrupt):
            program.poll()
    assert program.poll() == 7


def test_threads_that_ask_at_once_have_one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers.fork_server, "_servers", [])
    with ThreadPoolExecutor(8) as pool:
        (server,) = set(pool.map(lambda _: fork_server(), range(8)))
    atexit.unregister(server.close)
    server.close()


def _is_over(pid: int) -> bool:
    """Return whether a process is gone, or only waits for somebody to ask for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


_LEAVES = """
import os, signal, sys
sys.path[:0] = [sys.argv[1]]
from drivers.fork_server import fork_server, server_pids
fork_server()
print(*server_pids(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_the_server_ends_with_its_test_process_whatever_ended_that(until: Until) -> None:
    doomed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _LEAVES, str(Path(__file__).parent)), stdout=subprocess.PIPE
    )
    said, _ = await doomed.communicate()
    assert doomed.returncode == -signal.SIGKILL
    await until(lambda: _is_over(int(said)), "it has ended")


def test_a_module_that_is_not_there_is_told_as_python_does(tmp_path: Path) -> None:
    with (tmp_path / "err").open("w") as err, Path(os.devnull).open("r+") as null:
        program = fork_server().start(
            "not_there",
            [],
            environment=dict(os.environ),
            cwd=tmp_path,
            files=(null.fileno(), null.fileno(), err.fileno()),
        )
        assert program.wait(240) == 1
    assert "No module named not_there" in (tmp_path / "err").read_text()
