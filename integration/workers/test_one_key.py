"""Emissions with the same key from several processes at the same time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import wait_until
from harness.journal import Journal
from harness.programs import Program

Run = Callable[..., Program]

EACH = 100


@pytest.fixture
def emit_each(run: Run, tmp_path: Path, server: Backend) -> Callable[[str], list[Program]]:
    """Start three processes that each emit the same line a hundred times."""

    def emit(line: str) -> list[Program]:
        path = tmp_path / "lines"
        path.write_text(f"{line}\n" * EACH)
        words = ("emit", "keyed", "--lines", str(path), "--await", "--app", "apps.event_app:provider")
        return [run(*words, url=server.url) for _ in range(3)]

    return emit


def check_one_run(emits: list[Program], server: Backend, journal: Journal) -> None:
    for each in emits:
        assert each.wait_ended() == 0, each.story()
        assert each.err == ""
    results = [line for each in emits for line in each.out.splitlines()]
    assert len(results) == 3 * EACH
    assert len(set(results)) == 1, "all hear the same"
    assert len(journal.read("began")) == 1
    audit = Audit(server)
    assert audit.problems == []
    assert [record.state for record in audit.jobs.values()] == ["completed"]


@pytest.mark.servers("each")
def test_300_emissions_of_one_key_that_wait_together_are_one_run(
    server: Backend,
    start_worker: Run,
    emit_each: Callable[[str], list[Program]],
    gates: Callable[[str], None],
    journal: Journal,
) -> None:
    worker = start_worker(server)
    emits = emit_each('{"key": "o-1", "gate": "open"}')
    with server.client() as client:
        # All but the one that made the job have joined it while its handler waits.
        wait_until(
            "299 have joined",
            lambda: (
                sum(int(client.hget(name, "joined") or 0) for name in client.scan_iter("eb:2:{0}:more:*"))
                == 3 * EACH - 1
            ),
            story=worker.story,
        )
    gates("open")
    check_one_run(emits, server, journal)


@pytest.mark.servers("one")
def test_300_emissions_of_one_key_are_one_run_when_it_ends_among_them(
    server: Backend, start_worker: Run, emit_each: Callable[[str], list[Program]], journal: Journal
) -> None:
    start_worker(server)
    check_one_run(emit_each('{"key": "o-1"}'), server, journal)
