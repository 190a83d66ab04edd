"""Pool processes whose handlers fork: each job gets its own answer only."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from importable import forkers

from eventbus import EventProvider, HandlerError
from eventbus.handlers.worker import EventWorker

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
Start = Callable[..., Awaitable[tuple[EventProvider, EventWorker]]]

_PATIENT = 240.0
"""Seconds: interpreters start slowly on a machine that has other things to do."""


async def _echo(provider: EventProvider, times: int = 3) -> list[int]:
    """Have some jobs run, make sure that each has its own answer, and return their processes."""
    answers = [await provider.emit("echo", f"mine {number}") for number in range(times)]
    assert [answer for answer, _ in answers] == [f"mine {number}" for number in range(times)]
    return [pid for _, pid in answers]


def _lives(pid: int) -> bool:
    """Whether a process runs; one that is only not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end between the two calls
        return False


@pytest.mark.slow
async def test_a_fork_that_comes_back_ends_there_and_the_answer_is_that_of_its_parent(start: Start) -> None:
    provider, runner = await start(forkers.fork)
    (pid,) = await _echo(provider, 1)
    for how, code in {
        "returns": 0,
        "raises": 1,
        "fails to execute": 1,
        "exits": 3,
        "exits with words": 1,
        "forks again": 0,
        "closes all": 0,
        "natively": 1,
        "in a thread": 0,
        "before a program": 3,
        "ends by a signal": -signal.SIGTERM,
    }.items():
        assert await provider.emit("fork", how) == [how, pid, code]
        assert await _echo(provider) == [pid] * 3
    assert runner._processes.pids == [pid]


async def test_what_a_fork_says_goes_to_standard_error(
    start: Start,
    capfd: pytest.CaptureFixture[str],
    logs: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    provider, _ = await start(forkers.fork)
    for how in ("logs", "raises", "exits with words"):
        assert (await provider.emit("fork", how))[0] == how
    assert not [entry for entry in logs if entry["event"] == "told by a fork"]
    out, err = capfd.readouterr()
    for printed in ("printed before it logs", "printed by a fork"):
        assert out.splitlines().count(printed) == 1
    assert r"[warning] told by a fork file='\udcff.csv'" in err
    assert "RuntimeError: of the fork" in err
    assert "last words" in err


async def test_a_fork_that_outlives_its_job_goes_on_beside_later_ones_and_answers_none(
    start: Start, until: Until, tmp_path: Path
) -> None:
    provider, _ = await start(forkers.fork_and_go)
    forked, pid = await provider.emit("fork_and_go", str(tmp_path))
    assert await _echo(provider) == [pid] * 3
    assert _lives(forked)
    (tmp_path / "go").touch()
    await until(lambda: not _lives(forked), "the fork came back and ended", within=_PATIENT)
    assert await _echo(provider) == [pid] * 3


async def test_a_fork_that_outlives_its_job_is_killed_with_its_process(
    start: Start, until: Until, tmp_path: Path
) -> None:
    provider, runner = await start(forkers.fork_and_go)
    runner._processes._idle_after = 0.05
    forked, pid = await provider.emit("fork_and_go", str(tmp_path))
    await until(lambda: not _lives(pid) and not _lives(forked), "both are gone", within=_PATIENT)


async def test_a_job_that_is_cancelled_has_its_forks_killed(
    start: Start, until: Until, tmp_path: Path
) -> None:
    provider, _ = await start(forkers.fork_and_hold)
    emission = provider.emit("fork_and_hold", str(tmp_path))
    both = tmp_path / "both"
    await until(both.exists, "both run", within=_PATIENT)
    pids = [int(pid) for pid in both.read_text().split()]
    await emission.cancel("enough")
    await until(lambda: not any(map(_lives, pids)), "both are gone")


async def test_a_handler_whose_process_ends_and_whose_fork_goes_on_fails(start: Start) -> None:
    provider, _ = await start(forkers.become_a_daemon)
    with pytest.raises(HandlerError, match=r"ProcessDied: .* before its handler did, with exit code 0"):
        await provider.emit("become_a_daemon", 1)
    await _echo(provider)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "answer"),
    [
        ("fork", [[0, 1, 4, 9, 16], -signal.SIGTERM, 1]),
        ("spawn", [[0, 1, 4, 9, 16], -signal.SIGTERM, 1]),
        ("executor", [[0, 1, 4, 9, 16]]),
    ],
)
async def test_a_handler_may_use_processes_of_the_standard_library(
    start: Start, how: str, answer: Sequence[Any]
) -> None:
    provider, runner = await start(forkers.parallel)
    assert await provider.emit("parallel", how) == answer
    (pid,) = runner._processes.pids
    assert await _echo(provider) == [pid] * 3
    assert os.getpid() != pid
