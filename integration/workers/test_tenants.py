"""Limits by key while workers are killed: each tenant has its own, and none waits for the backlog of
another.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from apps.tenants_app import EACH, RATE, Order, orders
from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import last, wait_until
from harness.fleet import Fleet
from harness.journal import Entry, Journal

from eventbus import EventProvider

_TENANTS = 50
_SMALL = 180
_LARGE = 10_000 - (_TENANTS - 1) * _SMALL
"""The jobs of the tenant that has emitted all of its own before the others."""
_KILLS = 12


async def _emit(url: str) -> None:
    async with EventProvider(url) as provider:
        for each in provider.emit_many(orders, [Order("t0", n) for n in range(_LARGE)], reply=False):
            await each
        others = [Order(f"t{tenant}", n) for n in range(_SMALL) for tenant in range(1, _TENANTS)]
        for each in provider.emit_many(orders, others, reply=False):
            await each


def _check_at_once(entries: list[Entry]) -> None:
    """Check that no tenant has more at once; what a process had that was killed runs no more."""
    running: dict[str, set[tuple[int, str]]] = defaultdict(set)
    for entry in entries:
        if entry.what == "claimed":
            running[entry.payload].add((entry.pid, entry.job))
            assert len(running[entry.payload]) <= EACH, f"more jobs of {entry.payload} at once: {running}"
        elif entry.what == "ended":
            running[entry.payload].discard((entry.pid, entry.job))
        else:
            for jobs in running.values():
                jobs -= {each for each in jobs if each[0] == entry.payload}


def _check_rates(entries: list[Entry]) -> None:
    """Check that no tenant has more starts within any second, by the clock of the server."""
    starts: dict[str, list[int]] = defaultdict(list)
    for entry in entries:
        if entry.what == "claimed":
            starts[entry.payload].append(entry.attempt)
    for tenant, times in starts.items():
        times.sort()
        spans = [last - first for first, last in zip(times, times[RATE:], strict=False)]
        assert min(spans, default=1000) >= 1000, f"more than {RATE} jobs of {tenant} started within a second"


def _check_firsts(entries: list[Entry]) -> None:
    """Check that each tenant has its first job before any other has had more than its rate allows at once."""
    first: dict[str, int] = {}
    before: Counter[str] = Counter()
    for entry in sorted((each for each in entries if each.what == "claimed"), key=lambda each: each.attempt):
        if len(first) < _TENANTS:
            before[entry.payload] += 1
            first.setdefault(entry.payload, entry.attempt)
    assert len(first) == _TENANTS
    assert max(before.values()) <= RATE, before


@pytest.mark.long
def test_each_tenant_has_its_limits_while_workers_are_killed_and_waits_for_no_other(
    server: Backend, tmp_path: Path, journal: Journal
) -> None:
    asyncio.run(_emit(server.url))
    fleet = Fleet(server.url, tmp_path, size=3, app="apps.tenants_app:provider", lease="2s", max_stalls=20)
    rng = random.Random(7)
    try:
        while fleet.kills < _KILLS:
            asyncio.run(last(1))
            before = set(fleet.killed)
            fleet.kill(rng)
            for pid in fleet.killed - before:
                journal.write("killed", "", 0, pid)
        wait_until("all jobs have ended", lambda: len({each.job for each in journal.read("ended")}) == 10_000)
        assert set(fleet.end()) == {0}
        entries = journal.read()
        _check_at_once(entries)
        _check_rates(entries)
        _check_firsts(entries)
        audit = Audit(server)
        assert (audit.problems, audit.members("active"), audit.members("failed")) == ([], set(), set())
    finally:
        fleet.close()
