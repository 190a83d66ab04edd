"""`eventbus demo`, piped: what it shows, and that it leaves nothing behind."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from drivers.program import Program

Start = Callable[..., Program]


@pytest.mark.slow
def test_it_shows_the_main_job_and_ends_by_itself(start: Start) -> None:
    program = start("demo")
    assert program.wait() == 0
    text = "\n".join(program.output)
    assert "order, result awaited: receipt r-o-1 from process" in text
    assert "same order, group billing: too: receipt r-o-1" in text
    assert "payment, fails twice: receipt r-o-2" in text
    assert "at attempt 3" in text
    assert "order, delayed by 1 s: receipt r-o-3" in text
    assert "order, handler fails: raised here: LookupError: nothing in stock for order o-4" in text
    assert "in _stock_of" in text
    assert "emissions a second" in text
    assert program.errors == []
    assert f"process {program.process.pid}" not in text


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_whatever_ends_it_its_worker_and_server_end_too(start: Start, number: signal.Signals) -> None:
    program = start("demo")
    line = program.wait_for("order, result awaited")
    worker = int(line.rsplit(" ", 1)[1])
    server = _server_of(worker)
    program.send(number)
    assert program.wait() == (130 if number is signal.SIGINT else -signal.SIGKILL)
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and (_is_alive(worker) or server.exists()):
        time.sleep(0.01)
    assert not _is_alive(worker)
    assert not server.exists()


def _server_of(worker: int) -> Path:
    """The folder of the server that the worker was told to use."""
    words = Path(f"/proc/{worker}/cmdline").read_text().split("\0")
    return Path(words[words.index("--url") + 1].removeprefix("unix://")).parent


def _is_alive(process: int) -> bool:
    status = Path(f"/proc/{process}/stat")
    try:
        return status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
