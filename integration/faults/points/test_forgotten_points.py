"""A server that comes back empty under live workers, point by point: what they declare is there again.

- `emptied`: somebody runs FLUSHALL;
- `restarted-empty`: it dies, and comes back without its data;
- `empty-replica`: its name leads to another server, which has nothing;
- `declare-fails`, `declare-unheard`: the connection ends before, or after, the call that declares a schedule
  again;
- `declare-dies`: the worker is killed at that call, and another one declares.

Schedules go on, each slot once, and the limits, groups and workers of the queue are known again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.programs import Program
from harness.proxy import Proxy

from eventbus import EventProvider

Run = Callable[..., Program]

_DECLARED = [f"s{number}" for number in range(5)]  # of `apps/schedule_app.py`

pytestmark = pytest.mark.servers("one")


@pytest.mark.parametrize(
    "point",
    ["emptied", "restarted-empty", "empty-replica", "declare-fails", "declare-unheard", "declare-dies"],
)
async def test_what_the_workers_declare_is_there_again(
    point: str, server: Backend, make_server: Callable[..., Backend], proxy: Proxy, run: Run, journal: Journal
) -> None:
    worker = run("worker", "apps.schedule_app:provider", url=proxy.url)
    worker.wait_logged("worker ready")
    await until("the schedules fire", lambda: len(journal.runs()) >= 10, story=worker.story)
    other, now = worker, server
    if point == "declare-dies":
        other = run("worker", "apps.schedule_app:provider", url=server.url)
        other.wait_logged("worker ready")
        proxy.strike("schedule", "before", worker.kill)
    elif point.startswith("declare"):
        proxy.strike("schedule", "before" if point == "declare-fails" else "after", "break")
    if point == "restarted-empty":
        server.kill()
        server.start()
    elif point == "empty-replica":
        now = make_server()
        proxy.lead_to(now.socket)
    else:
        server.command("FLUSHALL")
    emptied_ms = time.time() * 1000
    async with EventProvider(now.url) as provider:
        await until("all is declared again", lambda: _schedules(now) == _DECLARED, story=other.story)
        before = len(journal.runs())
        await until("the schedules go on", lambda: len(journal.runs()) >= before + 20, story=other.story)
        assert [each.name for each in await provider.inspector.queues.list()] == ["event.tick"]
        for schedule in _DECLARED:
            await provider.schedules.get(schedule).pause("the test ends")
    runs = journal.runs()
    new = [job for job in runs if int(job.rpartition(".")[2]) >= emptied_ms]
    assert len(new) == len(set(new)), "each slot once"
    assert other.logged("the server had forgotten this worker, declaring all again")
    if point == "declare-dies":
        assert worker.has_ended
    assert other.complaints() == []


def _schedules(server: Backend) -> list[str]:
    """Return the schedules that the server knows."""
    return sorted(name.rpartition(":")[2] for name in server.command("KEYS", "*:schedule:*"))
