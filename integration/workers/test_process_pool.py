"""Process pools under `eventbus worker`: killed workers, killed processes, stops, native code."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import until, wait_until
from harness.programs import Program, clean_environment

from eventbus import EventProvider

Run = Callable[..., Program]

pytestmark = pytest.mark.servers("one")


@pytest.fixture
def start_process_app(run: Run, server: Backend) -> Callable[..., Program]:
    """Start `eventbus worker apps.process_app:provider`; returns when it is ready."""

    def start(**settings: object) -> Program:
        program = run("worker", "apps.process_app:provider", url=server.url, **settings)
        program.wait_logged("worker ready")
        return program

    return start


def _lives(pid: int) -> bool:
    """Whether a process runs; one that is only not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end between the two calls
        return False


def _held(folder: Path) -> dict[str, list[int]]:
    """The jobs that run, with their process and the program that it started."""
    return {path.stem: [int(pid) for pid in path.read_text().split()] for path in folder.glob("*.held")}


async def test_what_a_killed_worker_ran_dies_with_it_and_runs_again_elsewhere(
    server: Backend, start_process_app: Run, tmp_path: Path
) -> None:
    worker = start_process_app(lease="2s")
    async with EventProvider(server.url, reply_timeout=300) as provider:
        emissions = [provider.emit("held", "open") for _ in range(2)]
        await until("both run", lambda: len(_held(tmp_path)) == 2, story=worker.story)
        pids = [pid for pair in _held(tmp_path).values() for pid in pair]
        assert all(map(_lives, pids))
        worker.kill()
        await until("all that it started is gone", lambda: not any(map(_lives, pids)))
        (tmp_path / "open").touch()
        start_process_app(lease="2s")
        assert [await each for each in emissions] == ["held", "held"]


async def test_a_stop_waits_for_processes_within_the_grace_and_leaves_none(
    server: Backend, start_process_app: Run, tmp_path: Path
) -> None:
    worker = start_process_app(grace="60s")
    async with EventProvider(server.url, reply_timeout=300) as provider:
        emission = provider.emit("held", "open")
        await until("it runs", lambda: _held(tmp_path), story=worker.story)
        (pids,) = _held(tmp_path).values()
        os.kill(pids[0], signal.SIGTERM)  # as when a supervisor signals all processes of a service
        worker.send(signal.SIGTERM)
        await until("it stops", lambda: worker.logged("stopping"), story=worker.story)
        assert _lives(pids[0])
        (tmp_path / "open").touch()
        assert await emission == "held"
    assert worker.wait_ended() == 0
    assert not any(map(_lives, pids))
    assert worker.complaints() == []


async def test_a_stop_gives_back_what_does_not_finish(
    server: Backend, start_process_app: Run, tmp_path: Path
) -> None:
    worker = start_process_app(grace="200ms")
    async with EventProvider(server.url, reply_timeout=300) as provider:
        emission = provider.emit("held", "open")
        await until("it runs", lambda: _held(tmp_path), story=worker.story)
        (pids,) = _held(tmp_path).values()
        worker.send(signal.SIGTERM)
        assert worker.wait_ended() == 0
        wait_until("both programs are gone", lambda: not any(map(_lives, pids)))
        record = Audit(server).jobs[emission.job_id]
        assert (record.state, record.attempts, record.stalls) == ("waiting", 0, 0)
        (tmp_path / "open").touch()
        start_process_app()
        assert await emission == "held"


async def test_native_code_that_lets_no_thread_run_keeps_its_lease(
    server: Backend, start_process_app: Run, tmp_path: Path
) -> None:
    start_process_app(lease="2s")
    async with EventProvider(server.url, reply_timeout=300) as provider:
        emission = provider.emit("gil_held", 7)
        await until("it runs", (tmp_path / "gil_held").exists)
        start_process_app(lease="2s")  # would take the job, were it given up
        await emission
    record = Audit(server).jobs[emission.job_id]
    assert (record.state, record.attempts, record.stalls) == ("completed", 0, 0)


@pytest.mark.parametrize("event", ["computed", pytest.param("forked", marks=pytest.mark.long)])
async def test_all_jobs_have_their_own_answer_while_processes_are_killed(
    server: Backend, start_process_app: Run, event: str
) -> None:
    worker = start_process_app()
    answers: Counter[int] = Counter()
    async with EventProvider(server.url, reply_timeout=300) as provider:
        emissions = provider.emit_many(event, [{"weight": n} for n in range(600)])
        tasks = [asyncio.ensure_future(_answer(each, answers)) for each in emissions]
        for killed in range(1, 6):
            await until("some more are done", lambda n=killed: answers.total() > 50 * n, story=worker.story)
            os.kill(_processes_of(worker)[0], signal.SIGKILL)
        results = await asyncio.gather(*tasks)
    assert [each["weight"] for each in results] == [n * 9 // 10 for n in range(600)]
    assert Audit(server).problems == []
    assert not worker.has_ended


def _processes_of(worker: Program) -> list[int]:
    """The processes of its pool that live."""
    children = [
        int(pid)
        for thread in Path(f"/proc/{worker.pid}/task").iterdir()
        for pid in (thread / "children").read_text().split()
    ]
    return [pid for pid in sorted(children) if _lives(pid)]


async def _answer(emission: Any, answers: Counter[int]) -> Any:
    result = await emission
    answers[result["pid"]] += 1
    return result


_SCRIPT = """
import asyncio, sys
import msgspec
from eventbus import Event, EventProvider

class Ask(msgspec.Struct):
    n: int

class Odd(Exception): ...

asked = Event("asked", payload=Ask, result=Ask, errors=[Odd])
provider = EventProvider("memory:", retry=1)

@provider.on(asked, pool="process")
def double(ask: Ask) -> Ask:
    if ask.n % 2:
        raise Odd(str(ask.n))
    return Ask(2 * ask.n)

async def main():
    async with provider, provider.worker():
        try:
            await provider.emit(asked, Ask(3))
        except Odd as error:
            print("odd", error)
        print(await provider.emit(asked, Ask(4)))

{guard}
"""


@pytest.mark.parametrize("way", ["a file", pytest.param("a module", marks=pytest.mark.long)])
def test_a_program_that_is_run_directly_may_hold_them(tmp_path: Path, way: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(_SCRIPT.format(guard='if __name__ == "__main__":\n    asyncio.run(main())'))
    ran = _run_script(tmp_path, [str(program)] if way == "a file" else ["-m", "program"])
    assert ran.returncode == 0, ran.stderr
    assert [line for line in ran.stdout.splitlines() if "[" not in line] == ["odd 3", "Ask(n=8)"]


@pytest.mark.parametrize("output", ["> /dev/full", pytest.param(">&-", marks=pytest.mark.long)])
def test_a_program_whose_output_is_broken_or_closed_has_the_outcomes(tmp_path: Path, output: str) -> None:
    script = _SCRIPT.format(guard='if __name__ == "__main__":\n    asyncio.run(main())')
    script = script.replace("    if ask.n % 2:", '    print("words")\n    if ask.n % 2:')
    script = script.replace("print(", "tell(").replace('tell("words")', 'print("words")')
    tell = "def tell(*words):\n    with open('told', 'a') as file:\n        print(*words, file=file)\n"
    (tmp_path / "program.py").write_text(tell + script)
    command = f"exec {sys.executable} program.py {output}"
    environment = clean_environment()
    environment.pop("PYTHONUNBUFFERED", None)  # otherwise the handler itself would get the error
    subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, timeout=300, check=False)
    assert (tmp_path / "told").read_text().splitlines() == ["odd 3", "Ask(n=8)"]


def test_a_program_without_a_guard_is_told_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_SCRIPT.format(guard="asyncio.run(main())"))
    ran = _run_script(tmp_path, ["program.py"])
    assert ran.returncode == 1
    assert 'put that under `if __name__ == "__main__":`' in ran.stderr


def _run_script(folder: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
