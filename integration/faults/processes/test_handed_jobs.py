"""Workers that die or hang with a job on its way to them: what was handed over is run by another worker,
once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from checks.audit import reconcile
from harness.backends import Backend
from harness.conditions import last, until
from harness.journal import Journal
from harness.programs import Program
from harness.proxy import Proxy, When

from eventbus import EventProvider

Run = Callable[..., Program]
Gates = Callable[[str], None]


def _idle(server: Backend) -> list[str]:
    """The workers that count as idle, the one that is given the next job last."""
    client: Any = server.client()
    names = list(client.scan_iter("*:idle:*"))
    found = client.zrange(names[0], 0, -1) if names else []
    return [each.decode() if isinstance(each, bytes) else each for each in found]


def _worker_of(program: Program) -> str:
    """The name of a worker process, from its log."""
    return next(line["worker"] for line in program.log() if line.get("event") == "worker ready")


@pytest.mark.servers("each")
@pytest.mark.parametrize("fault", ["hangs", "dies"])
async def test_what_was_handed_to_a_worker_that_is_gone_runs_elsewhere_soon_and_once(
    server: Backend, start_worker: Run, journal: Journal, fault: str
) -> None:
    workers = [start_worker(server), start_worker(server)]
    await until("both are idle", lambda: len(_idle(server)) == 2, story=workers[0].story)
    by_name = {_worker_of(each): each for each in workers}
    chosen = by_name[_idle(server)[-1]]
    chosen.send(signal.SIGSTOP)
    if fault == "dies":
        chosen.kill()
    async with EventProvider(server.url) as provider:
        first = provider.emit("work", {"n": 1}, reply_timeout="8s")
        results = {first.job_id: await first}
        (other,) = [each for each in workers if each is not chosen]
        assert results[first.job_id]["by"].startswith(f"{other.pid}-")
        if fault == "hangs":
            chosen.send(signal.SIGCONT)
            again = provider.emit("work", {"n": 2})
            results[again.job_id] = await again
    assert set(journal.runs().values()) == {1}, "nobody ran it twice"
    reconcile(server, results, journal=journal)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_job_whose_confirmation_is_lost_runs_once(
    server: Backend, proxy: Proxy, start_behind: Run, gates: Gates, journal: Journal, when: When
) -> None:
    worker = start_behind()
    await until("it is idle", lambda: len(_idle(server)) == 1, story=worker.story)
    async with EventProvider(server.url) as provider:
        proxy.strike("ZREM", when, "break")
        emission = provider.emit("hold", {"gate": "open"})
        await until("the confirmation is lost", lambda: proxy.cuts["ZREM"] == 1, story=worker.story)
        await until(
            "it is confirmed again", lambda: not server.client().zcard("eb:2:{0}:due"), story=worker.story
        )
        await last(2)  # when it could have been given back
        gates("open")
        results = {emission.job_id: await emission}
    assert worker.complaints() == []
    assert set(journal.runs().values()) == {1}
    reconcile(server, results, journal=journal)
