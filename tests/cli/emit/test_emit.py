"""`eventbus emit` in this process; tests that need an answer run a worker beside it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from drivers.program import Program
from typer.testing import Result

Invoke = Callable[..., Result]
Start = Callable[..., Program]


@pytest.fixture(scope="module")
def prefix() -> str:
    """One for the module: all its tests share a worker."""
    return "cli-emit"


@pytest.fixture(scope="module")
def worker(server_url: str, prefix: str) -> Iterator[Program]:
    environment = {"EVENTBUS_URL": server_url, "EVENTBUS_PREFIX": prefix}
    program = Program("worker", "shop:provider", environment=environment)
    program.wait_for("worker ready")
    yield program
    program.close()


def _said(stderr: str) -> str:
    """Return what was said without the note of an unknown event: each test ends with what the worker has
    announced removed.
    """
    return "".join(line for line in stderr.splitlines(True) if not line.startswith("note: event "))


def test_one_payload_is_awaited_and_its_result_printed(invoke: Invoke, worker: Program) -> None:
    result = invoke("emit", "double", "21", "--await")
    assert (result.stdout, _said(result.stderr), result.exit_code) == ("42\n", "", 0)


@pytest.mark.slow
def test_a_payload_may_come_from_standard_input(invoke: Invoke, worker: Program) -> None:
    assert invoke("emit", "double", "-", "--await", said=" 4\n").stdout == "8\n"


def test_without_await_it_prints_the_id_of_the_job_in_the_server(invoke: Invoke) -> None:
    first, second = (invoke("emit", "nobody.there", "--key", "once") for _ in range(2))
    assert first.exit_code == 0
    assert first.stdout == second.stdout


@pytest.mark.slow
def test_a_failed_emission_is_one_line_and_with_debug_its_remote_traceback(
    invoke: Invoke, worker: Program
) -> None:
    words = ("emit", "item.sold", '{"name": "a", "count": 11}', "--await")
    result = invoke(*words)
    assert (
        _said(result.stderr) == "eventbus: shop.SoldOut: a (in the handler of item.sold, after 1 attempt)\n"
    )
    assert (result.stdout, result.exit_code) == ("", 1)
    assert "raise SoldOut(item.name)" in invoke(*words, "--debug").stderr


@pytest.mark.slow
def test_with_an_app_payloads_are_checked_here_and_errors_are_the_declared_ones(
    invoke: Invoke, worker: Program
) -> None:
    app = ("--app", "shop:provider", "--await")
    assert json.loads(invoke("emit", "item.sold", '{"name": "a"}', *app).stdout) == {"name": "A", "count": 1}
    wrong = invoke("emit", "item.sold", '{"name": 1}', *app)
    assert "Expected `str`, got `int` at $.name" in wrong.stderr
    declared = invoke("emit", "item.sold", '{"name": "a", "count": 11}', *app)
    assert _said(declared.stderr) == "eventbus: SoldOut: a\n"


def test_an_event_that_a_module_only_defines_is_found_too(invoke: Invoke) -> None:
    result = invoke("emit", "only.defined", '"text"', "--app", "shop:provider")
    assert "Expected `int`, got `str`" in result.stderr


def test_the_reply_timeout_says_where_the_job_is(invoke: Invoke) -> None:
    result = invoke("emit", "nobody.there", "--await", "--reply-timeout", "50ms")
    assert "is waiting (no worker took it yet" in result.stderr
    assert result.exit_code == 1


@pytest.mark.slow
def test_lines_are_answered_in_their_order(invoke: Invoke, worker: Program, tmp_path: Path) -> None:
    path = tmp_path / "numbers.jsonl"
    path.write_text("".join(f"{n}\n" for n in range(5000)))
    result = invoke("emit", "double", "--lines", str(path), "--await", "--in-flight", "700")
    assert result.stdout == "".join(f"{2 * n}\n" for n in range(5000))
    assert (_said(result.stderr), result.exit_code) == ("", 0)


def test_failed_lines_are_told_and_the_others_answered(invoke: Invoke, worker: Program) -> None:
    said = '{"name": "a"}\n{bad\n\n{"name": "b", "count": 11}\n{"name": "c"}'
    result = invoke("emit", "item.sold", "--lines", "-", "--await", said=said)
    assert [json.loads(line)["name"] for line in result.stdout.splitlines()] == ["A", "C"]
    bad, failed, summary = _said(result.stderr).splitlines()
    assert bad.startswith('line 2: payload of "item.sold"')
    assert bad.endswith(": {bad")
    assert failed.startswith("line 4: shop.SoldOut: b")
    assert failed.endswith(': {"name": "b", "count": 11}')
    assert "2 emissions of item.sold answered" in summary
    assert "2 failed" in summary
    assert result.exit_code == 1


def test_lines_without_await_are_counted_when_they_are_in_the_server(invoke: Invoke) -> None:
    result = invoke("emit", "nobody.there", "--lines", "-", said="1\n2\n3\n")
    assert "3 emissions of nobody.there enqueued in" in result.stderr
    assert (result.stdout, result.exit_code) == ("", 0)


def test_more_lines_in_flight_than_may_be_unsent_are_waited_for(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "numbers.jsonl"
    path.write_text("1\n" * 12_000)
    result = invoke("emit", "nobody.there", "--lines", str(path), "--in-flight", "50000")
    assert "12000 emissions of nobody.there enqueued" in result.stderr


def test_a_missing_file_is_named(invoke: Invoke) -> None:
    result = invoke("emit", "double", "--lines", "nothing.jsonl")
    assert result.stderr == "eventbus: nothing.jsonl: No such file or directory\n"
    assert result.exit_code == 1


@pytest.mark.slow
def test_a_result_comes_while_the_input_is_open_and_an_interrupt_ends_it(
    start: Start, worker: Program
) -> None:
    program = start("emit", "double", "--lines", "-", "--await")
    program.write("1\n")
    program.wait_for("2", is_whole=True)
    program.send(signal.SIGINT)
    assert program.wait() == 130
    assert program.errors[-1].endswith("interrupted after line 1")
    assert not any("Traceback" in line for line in program.errors)


@pytest.mark.slow
def test_an_interrupt_says_how_many_lines_have_no_answer(start: Start) -> None:
    program = start("emit", "nobody.there", "--lines", "-", "--await")
    program.write("{bad\n1\n2\n3\n")
    program.wait_for("line 1: ")
    program.send(signal.SIGTERM)
    program.wait_for("interrupt again")
    program.send(signal.SIGTERM)
    assert program.wait() == 143
    assert program.errors[-1].endswith("1 failed; interrupted after line 4, 3 lines without an answer")
    assert len(program.errors) == 4, "with the note that nobody knows the event"


@pytest.mark.slow
def test_it_ends_quietly_when_nobody_reads_on(start: Start, worker: Program) -> None:
    reading, writing = os.pipe()
    program = start("emit", "double", "--lines", "-", "--await", output=writing)
    os.close(writing)
    program.write("1\n")
    assert os.read(reading, 100) == b"2\n"
    os.close(reading)
    program.write("2\n")
    assert program.wait() == 141
    assert _said("".join(program.errors)) == ""
