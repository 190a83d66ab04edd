"""Drains a filled queue with worker processes, and reads what they left about their handler calls."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from benchmarks.calls import COUNT_VARIABLE, REPORT_VARIABLE
from benchmarks.gate import GATE_VARIABLE, closed
from benchmarks.measure import Line, Stopwatch
from benchmarks.processes.programs import TIMEOUT, Program, ProgramError, started

_POLL_SECONDS = 0.01


class Report(msgspec.Struct):
    """What a worker process leaves: see `calls.py`."""

    count: int
    first: float
    last: float
    user: float
    system: float
    loop_user: float


def _read(path: Path) -> Report | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except FileNotFoundError:
        return None


def drain(command: Sequence[str], url: str, count: int, more: Mapping[str, str] | None = None) -> Line:
    """Run a worker until its handler was called `count` times; raises ProgramError."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "calls.json")
        asked = {**(more or {}), REPORT_VARIABLE: str(path), COUNT_VARIABLE: str(count)}
        # The watch stops before the worker is told to end: what ending costs is no part of it.
        with ExitStack() as stack, Stopwatch(url) as watch:
            report = _wait_report(stack.enter_context(started(command, url, asked)), path)
    line = watch.line(count, report.last - report.first)
    line.worker_user_us = report.user * 1e6 / count
    line.worker_system_us = report.system * 1e6 / count
    line.loop_user_us = report.loop_user * 1e6 / count
    return line


def _wait_report(worker: Program, path: Path) -> Report:
    deadline = time.monotonic() + TIMEOUT
    while (report := _read(path)) is None:
        worker.check_runs()
        if time.monotonic() > deadline:
            raise ProgramError(f"{worker.title}: its handler was not called as often within {TIMEOUT:.0f} s")
        time.sleep(_POLL_SECONDS)
    return report


def drain_as_fleet(command: Sequence[str], url: str, count: int, size: int) -> Line:
    """Let `size` workers begin together; `command` ends when the queue is empty."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ExitStack() as stack:
            with closed(folder) as gate:
                fleet = [
                    stack.enter_context(started(command, url, _place(folder, number)))
                    for number in range(size)
                ]
                gate.wait_crowd(size, TIMEOUT)
                watch = stack.enter_context(Stopwatch(url))
            for worker in fleet:
                worker.wait()
        reports = [report for number in range(size) if (report := _read(folder / f"calls.{number}"))]
    done = sum(report.count for report in reports)
    if done != count:
        raise ProgramError(f"expected {count} handler calls in {size} workers, got: {done}")
    busy = [report for report in reports if report.count]
    seconds = max(report.last for report in busy) - min(report.first for report in busy)
    return watch.line(count, seconds)


def _place(folder: Path, number: int) -> dict[str, str]:
    return {GATE_VARIABLE: str(folder), REPORT_VARIABLE: str(folder / f"calls.{number}")}
