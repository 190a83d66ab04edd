"""Pool processes whose handlers close, write to or break what belongs to the process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from importable import meddlers

from eventbus import EventProvider, HandlerError
from eventbus.handlers.process.handler import log_note
from eventbus.handlers.process.messages import LogNote
from eventbus.handlers.worker import EventWorker

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
Start = Callable[..., Awaitable[tuple[EventProvider, EventWorker]]]

_PATIENT = 240.0
"""Seconds: interpreters start slowly on a machine that has other things to do."""


async def _echo(provider: EventProvider) -> int:
    """Have some jobs run, make sure that each has its own answer, and return their one process."""
    answers = [await provider.emit("echo", f"mine {number}") for number in range(3)]
    assert [answer for answer, _ in answers] == [f"mine {number}" for number in range(3)]
    (pid,) = {pid for _, pid in answers}
    return pid


def _contents(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.iterdir()]


async def test_a_handler_may_close_all_low_descriptors_and_open_others(
    start: Start, tmp_path: Path, logs: list[dict[str, Any]]
) -> None:
    provider, _ = await start(meddlers.close_all)
    sizes, pid = await provider.emit("close_all", str(tmp_path))
    assert sizes == [0] * 20
    assert [entry["event"] for entry in logs if "told" in entry["event"]] == ["told on the way"]
    assert await _echo(provider) == pid
    assert [len(data) for data in _contents(tmp_path)] == [0] * 20


@pytest.mark.parametrize("kind", ["a file", "a socket", "nothing"])
async def test_nothing_is_written_into_what_took_the_place_of_the_channel(
    start: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    provider, runner = await start(meddlers.replace_channel)
    before = await _echo(provider)
    with pytest.raises(
        HandlerError, match=r"ProcessDied: .* the handler had closed the channel to the worker"
    ):
        await provider.emit("replace_channel", [kind, str(tmp_path)])
    assert _contents(tmp_path) == ([b""] if kind != "nothing" else [])
    assert "[info] told on the way" in capfd.readouterr().err
    assert runner._processes.pids == []
    assert await _echo(provider) != before


@pytest.mark.parametrize("seen", ["nothing, seen by the process", "nothing, seen by the worker"])
async def test_a_handler_that_closed_the_channel_and_goes_on_is_told_so_as_soon_as_somebody_sees_it(
    start: Start, tmp_path: Path, seen: str
) -> None:
    provider, runner = await start(meddlers.replace_channel)
    with pytest.raises(
        HandlerError, match=r"ProcessDied: .* the handler had closed the channel to the worker"
    ):
        await provider.emit("replace_channel", [seen, str(tmp_path)])
    assert runner._processes.pids == []


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("a byte", "bytes that are no frame: b'x"),
        ("an earlier answer", "a frame of kind b'A' for request 3 while request 4 is under way"),
        ("no report", "a message of kind b'A' that cannot be read"),
        ("a later note", "a frame of kind b'N' for request 5 while request 4 is under way"),
        ("half a frame", r"a frame of kind b'A' for request \d+ while request 4 is under way"),
    ],
)
async def test_what_a_handler_writes_into_the_channel_fails_its_own_job_alone(
    start: Start, how: str, said: str
) -> None:
    provider, _ = await start(meddlers.forge)
    before = await _echo(provider)
    with pytest.raises(
        HandlerError, match=f"ProcessDied: the process of the handler was killed, because it sent {said}"
    ):
        await provider.emit("forge", [how, ""])
    assert await _echo(provider) != before


async def test_an_answer_that_a_handler_forges_is_never_that_of_another_job(
    start: Start, until: Until
) -> None:
    provider, runner = await start(meddlers.forge)
    before = await _echo(provider)
    assert await provider.emit("forge", ["the answer", ""]) == ["forged", 0]  # its own, before the true one
    await until(lambda: not runner._processes.pids, "the second answer had the process killed")
    assert await _echo(provider) != before


@pytest.mark.parametrize("how", ["a byte", "the answer"])
async def test_what_comes_between_two_jobs_has_the_process_killed_before_the_next(
    start: Start, until: Until, tmp_path: Path, logs: list[dict[str, Any]], how: str
) -> None:
    provider, runner = await start(meddlers.forge)
    gate = tmp_path / "gate"
    honest, pid = await provider.emit("forge", [how, str(gate)])
    assert honest == "honest"
    assert runner._processes.pids == [pid]
    gate.touch()
    await until(lambda: not runner._processes.pids, "it was killed", within=_PATIENT)
    (told,) = [entry for entry in logs if entry["event"].startswith("process killed")]
    assert (told["log_level"], told["process"]) == ("warning", pid)
    assert await _echo(provider) != pid


async def test_what_a_thread_logs_after_its_job_is_logged_and_does_no_harm(
    start: Start, until: Until, tmp_path: Path, logs: list[dict[str, Any]]
) -> None:
    provider, _ = await start(meddlers.log_late)
    gates = [tmp_path / "between", tmp_path / "later"]
    pids = {(await provider.emit("log_late", str(gate)))[1] for gate in gates}
    for times, gate in enumerate(gates, 1):
        gate.touch()
        await until(lambda n=times: [e["event"] for e in logs].count("told late") == n, "it is logged")
        pids.add(await _echo(provider))
    assert len(pids) == 1


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("a full disk", "OSError: [Errno 28] No space left on device"),
        ("closed", "ValueError: I/O operation on closed file."),
        ("its descriptor closed", "OSError: [Errno 9] Bad file descriptor"),
        ("another", "RuntimeError: not today"),
        ("no stream", "AttributeError: 'int' object has no attribute 'flush'"),
        ("none", None),
    ],
)
async def test_a_handler_that_returned_has_its_outcome_though_its_output_is_broken(
    start: Start, logs: list[dict[str, Any]], how: str, error: str | None
) -> None:
    provider, _ = await start(meddlers.break_output)
    answer, pid = await provider.emit("break_output", how)
    assert answer == how
    assert await _echo(provider) == pid
    told = [entry for entry in logs if "cannot be written" in entry["event"]]
    assert [(entry["log_level"], entry["stream"], entry["error"]) for entry in told] == (
        [("warning", "stdout", error)] if error else []
    )


def test_what_the_logging_of_the_worker_refuses_is_no_fault_of_the_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("not today")

    note = msgspec.json.encode(LogNote("eventbus.handler", "info", "told", {"n": 1}))
    structlog.configure(processors=[refuse])
    try:
        log_note(note)
    finally:
        structlog.reset_defaults()
    assert "RuntimeError: not today" in capsys.readouterr().err
    with pytest.raises(msgspec.MsgspecError):
        log_note(note[:-1])
