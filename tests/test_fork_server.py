"""The fork server of the tests: a program that it starts is a process as any other."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
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


def _start(folder: Path, *words: str) -> Fork:
    (folder / "forked_program.py").write_text(_PROGRAM)
    (folder / "in").write_text("given")
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
    tmp_path: Path,
) -> None:
    program = _start(tmp_path, "0")
    assert program.wait(240) == program.poll() == 7
    said, end = (tmp_path / "out").read_text().splitlines()
    assert said == f'["__main__", ["0"], "{tmp_path}", "of its own", true, "given"]'
    assert end == "the end", "what was registered for the end of the interpreter"
    assert (tmp_path / "err").read_text() == "told\n"
    program.kill()  # it has ended, so nobody gets it


async def test_a_kill_is_one_and_the_server_goes_on(tmp_path: Path, until: Until) -> None:
    programs = [_start(tmp_path, "600") for _ in range(2)]
    await until((tmp_path / "err").read_text, "it runs")
    for program, number in zip(programs, (signal.SIGKILL, signal.SIGTERM), strict=True):
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(0)
        program.send_signal(number)
        assert program.wait(240) == -number
    assert _start(tmp_path, "0").wait(240) == 7


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
    await until(lambda: not Path("/proc", said.decode().strip()).exists(), "it has ended")


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
