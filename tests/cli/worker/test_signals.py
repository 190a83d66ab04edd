"""SIGTERM and SIGINT at any moment of a worker's life, from its first line to its last."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path

import pytest
from drivers.program import Program

from eventbus.cli.signals import Interrupts

_FOLDER = Path(__file__).parents[1]
_ROOT = _FOLDER.parent.parent
_STARTS = 8

# What `python -m eventbus` does, and a line on standard output as soon as both signals are heard.
_PROGRAM = """
import os, signal, sys
sys.path[:0] = [os.getcwd(), sys.argv.pop(1)]

def note(number, handler, take=signal.signal):
    before = take(number, handler)
    if signal.getsignal(signal.SIGTERM) and signal.getsignal(signal.SIGINT) is handler:
        signal.signal = take
        early = not {"asyncio", "eventbus.provider", "typer"} & set(sys.modules)
        os.write(1, b"hears early\\n" if early else b"hears late\\n")
    return before

signal.signal = note
from eventbus.__main__ import main
main()
"""


class _Worker:
    """One run of `eventbus worker --burst`."""

    def __init__(self, environment: dict[str, str], *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(_ROOT), "worker", "shop:provider", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=_FOLDER,
            env={**os.environ, **environment},
        )

    def wait_heard(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=300)
        return self.process.returncode, errors.decode()


@pytest.fixture
def workers() -> Iterator[list[_Worker]]:
    started: list[_Worker] = []
    yield started
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_at_any_moment_of_its_life_ends_a_worker_with_0(
    workers: list[_Worker], environment: dict[str, str], number: signal.Signals
) -> None:
    whole = _Worker(environment, "--burst")
    workers.append(whole)
    assert whole.wait_heard() == "hears early"
    begin = time.monotonic()
    assert whole.end()[0] == 0
    life = time.monotonic() - begin
    for place in range(_STARTS):
        worker = _Worker(environment, "--burst")
        workers.append(worker)
        assert worker.wait_heard() == "hears early"
        time.sleep(life * 1.1 * place / _STARTS)  # the moment is what is tried here
        worker.process.send_signal(number)
        code, errors = worker.end()
        assert (code, "Traceback" in errors) == (0, False), (
            f"after {place}/{_STARTS} of {life:.2f} s: {errors}"
        )


_SWALLOWS = """
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
"""
_BLOCKS = """
    print("blocks the event loop", flush=True)
    time.sleep(600)
"""


_APP = """
import asyncio, time
from eventbus import EventProvider

provider = EventProvider()

@provider.on("signals.asked")
async def asked(n: int) -> int:
    return n

@provider.lifespan
async def stubborn():
    yield
    {leaving}
"""
_SENT_TO_ITSELF = """
import atexit, os, signal
atexit.register(os.kill, os.getpid(), signal.SIGTERM)
"""


def test_a_signal_while_the_process_ends_changes_nothing(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "ending_app.py").write_text(_SENT_TO_ITSELF + _APP.format(leaving=""))
    program = Program("worker", "ending_app:provider", "--burst", environment=environment, folder=tmp_path)
    try:
        assert program.wait() == 0
    finally:
        program.close()


@pytest.fixture
def start_app(environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Start a worker whose lifespan does something when it is left."""
    programs: list[Program] = []

    def start(leaving: str, *words: str) -> Program:
        (tmp_path / "stubborn_app.py").write_text(_APP.format(leaving=leaving.strip()))
        words = ("worker", "stubborn_app:provider", *words)
        programs.append(Program(*words, environment=environment, folder=tmp_path))
        programs[-1].wait_for("worker ready")
        return programs[-1]

    yield start
    for program in programs:
        program.close()


@pytest.mark.slow
def test_a_lifespan_that_swallows_its_cancellation_does_not_keep_the_process(
    start_app: Callable[..., Program],
) -> None:
    program = start_app(_SWALLOWS, "--grace", "50ms")
    program.send(signal.SIGTERM)
    assert program.wait() == 0
    said, stopped = program.errors[-2:]
    assert '"lifespan": "stubborn"' in said, program.errors
    assert "left behind" in said
    assert "worker stopped" in stopped


@pytest.mark.slow
@pytest.mark.parametrize(("leaving", "code"), [(_SWALLOWS, 143), (_BLOCKS, 1)])
def test_a_second_signal_ends_a_worker_whatever_its_lifespan_does(
    start_app: Callable[..., Program], leaving: str, code: int
) -> None:
    program = start_app(leaving, "--grace", "10m")
    program.send(signal.SIGTERM)
    program.wait_for("blocks the event loop" if leaving is _BLOCKS else "stopping")
    program.send(signal.SIGTERM)
    assert program.wait() == code
    if leaving is _BLOCKS:
        assert any("stubborn_app.py" in line and "in stubborn" in line for line in program.errors)


_BLOCKED = """
import asyncio, time
from eventbus.cli.signals import Interrupts

async def main() -> None:
    with Interrupts(limits=(600.0, 0.2)):
        print("hears", flush=True)
        time.sleep(600)

asyncio.run(main())
"""


def test_signals_that_go_on_give_a_blocked_event_loop_no_more_time() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _BLOCKED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=_ROOT
    ) as blocked:
        assert blocked.stdout is not None
        assert blocked.stdout.readline() == b"hears\n"
        end = time.monotonic() + 240
        while blocked.poll() is None and time.monotonic() < end:
            blocked.send_signal(signal.SIGTERM)
            time.sleep(0.01)  # far more often than its limit
        blocked.kill()
        assert blocked.wait() == 1


async def test_what_a_signal_does_is_no_part_of_the_job_that_it_interrupts() -> None:
    job: ContextVar[str] = ContextVar("job", default="none")
    found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def handle() -> None:
        job.set("job 7")
        signal.raise_signal(signal.SIGTERM)

    with Interrupts() as interrupts:
        interrupts.act = lambda: found.set_result(job.get())
        await asyncio.create_task(handle())
        assert await found == "none"


_FORKING = """
import asyncio, os, signal, sys, time
from eventbus.cli.loop import run
from eventbus.cli.signals import Interrupts

async def main() -> None:
    loop = asyncio.get_running_loop()
    with Interrupts() as interrupts:
        interrupts.act = lambda: None
        ready, told = os.pipe()
        child = os.fork()
        if not child:
            os.write(told, b"x")
            time.sleep(60)
            os._exit(5)
        os.read(ready, 1)
        os.kill(child, signal.SIGTERM)
        _, status = await loop.run_in_executor(None, os.waitpid, child, 0)
        await asyncio.sleep(0.05)
        print(os.waitstatus_to_exitcode(status), interrupts.count)
        heard = asyncio.Event()
        interrupts.act = heard.set
        os.kill(os.getpid(), signal.SIGTERM)
        await heard.wait()
        print(interrupts.count, interrupts.code)

def before(number, frame): ...

signal.signal(signal.SIGTERM, before)
sys.modules.update({"uvloop": None} if sys.argv[1] == "asyncio" else {})
run(main())
print(signal.getsignal(signal.SIGTERM) is before)
"""


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_signal_for_a_forked_child_ends_the_child_and_not_its_parent(loop: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _FORKING, loop],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=_ROOT,
        check=False,
    )
    assert (ran.stdout.split(), ran.returncode) == (["-15", "0", "1", "143", "True"], 0), ran.stderr
