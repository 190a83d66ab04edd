"""`eventbus worker`: how it ends, and what then happens to its jobs."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from drivers.program import Program

from eventbus import EventContext, EventProvider
from eventbus.cli.logs import LogLevel, configure_logs

Start = Callable[..., Program]
Make = Callable[..., EventProvider]
Invoke = Callable[..., Any]


def worker(start: Start, *words: str) -> Program:
    program = start("worker", "shop:provider", *words)
    program.wait_for("worker ready")
    return program


def next_attempt(make_provider: Make) -> AbstractAsyncContextManager[Any]:
    """A worker in this process whose handler of `wait` tells the attempt."""
    provider = make_provider()

    @provider.on("wait")
    async def wait(path: str, ctx: EventContext) -> int:
        return 100 + ctx.attempt

    return provider.worker()


async def test_a_first_signal_lets_handlers_finish(start: Start, make_provider: Make, tmp_path: Path) -> None:
    file = tmp_path / "file"
    async with make_provider() as provider:
        emission = provider.emit("wait", str(file))
        await emission.enqueued()
        program = worker(start)
        program.wait_for("waiting for a file")
        program.send(signal.SIGTERM)
        program.wait_for("stopping")
        file.touch()
        assert program.wait() == 0
        assert await emission == 1


async def test_past_the_grace_jobs_are_given_back_and_no_attempt_is_burned(
    start: Start, make_provider: Make, tmp_path: Path
) -> None:
    async with make_provider() as provider:
        emission = provider.emit("wait", str(tmp_path / "never"))
        await emission.enqueued()
        program = worker(start, "--grace", "50ms")
        program.wait_for("waiting for a file")
        program.send(signal.SIGINT)
        assert program.wait() == 0
        async with next_attempt(make_provider):
            assert await emission == 101


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_second_signal_waits_for_no_handler(
    start: Start, make_provider: Make, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    async with make_provider() as provider:
        emission = provider.emit("wait", str(tmp_path / "never"))
        await emission.enqueued()
        program = worker(start, "--grace", "5m")
        program.wait_for("waiting for a file")
        program.send(number)
        program.wait_for("stopping")
        program.send(number)
        assert program.wait() == code
        async with next_attempt(make_provider):
            assert await emission == 101


async def test_full_collections_leave_modules_out(start: Start, make_provider: Make) -> None:
    async with make_provider() as provider:
        worker(start)
        assert await provider.emit("frozen", None) > 10_000


async def test_a_thread_that_goes_on_does_not_keep_the_process(start: Start, make_provider: Make) -> None:
    async with make_provider() as provider:
        await provider.emit("block", 600, reply=False)
        program = worker(start, "--grace", "50ms")
        program.wait_for("blocking")
        program.send(signal.SIGTERM)
        assert program.wait() == 0


async def test_a_burst_ends_when_nothing_is_due_also_of_what_handlers_emitted(
    start: Start, make_provider: Make, admin: Callable[..., Any], prefix: str
) -> None:
    async with make_provider() as provider:
        past = datetime.now(UTC) - timedelta(seconds=1)
        for emission in (
            *provider.emit_many("double", range(500), reply=False),
            *provider.emit_many("double", range(250), reply=False, at=past),
            provider.emit("chain", 30, reply=False),
            provider.emit("double", 1, delay="1 hour", reply=False),
        ):
            await emission
    program = start("worker", "shop:provider", "--burst")
    assert program.wait() == 0
    queues = ("double", "double@audit", "chain")
    assert {name: admin("LLEN", f"{prefix}:2:{{0}}:ready:event.{name}") for name in queues} == dict.fromkeys(
        queues, 0
    )
    assert admin("LLEN", f"{prefix}:2:{{0}}:completed:event.double") == 750
    assert admin("LLEN", f"{prefix}:2:{{0}}:completed:event.chain") == 31
    assert admin("ZCARD", f"{prefix}:2:{{0}}:delayed:event.double") == 1


async def test_queues_are_chosen_by_globs_over_names_and_groups(start: Start) -> None:
    program = start("worker", "shop:provider", "--queues", "*@audit,wa?t", "--queues", "item.*", "--burst")
    ready = json.loads(program.wait_for("worker ready"))
    assert ready["queues"] == ["event.item.sold", "event.wait", "event.double@audit"]
    assert program.wait() == 0


async def test_concurrency_bounds_the_process(start: Start, make_provider: Make, tmp_path: Path) -> None:
    file = tmp_path / "file"
    async with make_provider() as provider:
        emissions = [provider.emit("wait", str(file)) for _ in range(3)]
        await provider.flush()
        program = worker(start, "--concurrency", "1", "--until-eof")
        program.wait_for("waiting for a file")
        other = provider.emit("double", 1, priority=-10)
        await other.enqueued()
        assert not other.done()
        file.touch()
        assert [await each for each in (*emissions, other)] == [1, 1, 1, 2]
        program.close_input()
        assert program.wait() == 0


def test_a_worker_whose_parent_ends_before_its_server_is_there_ends_too(start: Start, tmp_path: Path) -> None:
    program = start(
        "worker", "shop:provider", "--until-eof", "--grace", "10ms", "--url", f"unix://{tmp_path}/none"
    )
    program.wait_for("server not there, waiting for it")
    program.close_input()
    assert program.wait() == 1


async def test_logs_are_json_lines_where_nobody_looks_and_for_people_on_request(start: Start) -> None:
    program = start("worker", "shop:provider", "--burst")
    assert program.wait() == 0
    assert program.output == []
    first = json.loads(program.errors[0])
    assert list(first)[:4] == ["timestamp", "level", "logger", "event"]
    people = start("worker", "shop:provider", "--burst", "--log-format", "console")
    assert people.wait() == 0
    assert "[info     ] worker ready" in people.errors[0]


def test_a_failure_is_shown_with_the_frames_of_the_program_alone(start: Start, invoke: Invoke) -> None:
    assert invoke("emit", "double", "--", "-1").exit_code == 0
    people = start("worker", "shop:provider", "--log-format", "console", "--until-eof")
    people.wait_for("attempt failed")
    people.wait_for("raise ValueError")
    people.close_input()
    assert people.wait() == 0
    shown = "\n".join(people.errors)
    assert "[warning  ] attempt failed, trying again" in shown
    story = shown[shown.index("Traceback", shown.index("attempt failed")) :].splitlines()[:4]
    assert [line.split(", line")[0].strip() for line in story] == [
        "Traceback (most recent call last):",
        f'File "{Path(__file__).parents[1] / "shop.py"}"',
        'raise ValueError("below zero")',
        "ValueError: below zero",
    ]


@pytest.mark.slow
def test_the_level_is_chosen_by_an_option_or_a_variable(
    start: Start, invoke: Invoke, environment: dict[str, str]
) -> None:
    def errors(*words: str) -> list[str]:
        program = start("worker", "shop:provider", "--burst", *words)
        assert program.wait() == 0
        return program.errors

    assert errors("--log-level", "warning") == []
    assert errors("--log-level", "info")
    environment["EVENTBUS_LOG_LEVEL"] = "ERROR"
    assert errors() == []
    assert errors("--log-level", "Info")
    refused = invoke("worker", "shop:provider", "--burst", "--log-level", "loud")
    assert refused.exit_code == 2
    assert "loud" in refused.stderr


def test_a_program_with_logging_of_its_own_hears_of_a_chosen_level_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [logging.NullHandler()])
    monkeypatch.setattr(root, "level", logging.WARNING)
    configure_logs(None, level=logging.DEBUG)
    assert root.level == logging.WARNING
    configure_logs(None, level=LogLevel.debug.number, is_level_chosen=True)
    assert root.level == logging.DEBUG
    assert [type(each) for each in root.handlers] == [logging.NullHandler]
