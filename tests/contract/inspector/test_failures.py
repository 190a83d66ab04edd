"""`inspector.queues.failures()`: failed jobs by their error, with numbers folded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from eventbus import EventProvider, Retry
from eventbus.store.calls.error_text import error_of, fold, is_of
from eventbus.telemetry.failure import Failure

MakeProvider = Callable[..., EventProvider]


async def test_failed_jobs_with_three_causes_are_three_groups(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventbus.admin.jobs.failures.PAGE_JOBS", 7)
    provider = make_provider()

    @provider.on("charge", retry=Retry(attempts=1))
    async def charge(n: int) -> None:
        if n % 4 == 0:
            raise ConnectionError(f"bank {n} is down")
        raise (ValueError if n % 4 == 1 else KeyError)(f"order 4f1c2a9be0{n:02}")

    @provider.on("charge", group="audit", retry=Retry(attempts=1))
    async def audit(n: int) -> None:
        if n == 0:
            raise ValueError("no audit")

    async with provider, provider.worker():
        emissions = [provider.emit("charge", n) for n in range(20)]
        await asyncio.gather(*emissions, return_exceptions=True)
        found = await provider.inspector.queues.failures("charge")
        while len(found) < 4:  # the group's job may come later
            found = await provider.inspector.queues.failures("charge")
        keys, *others = found
        assert (keys.error, keys.queue, keys.count) == ("KeyError: 'order #'", "event.charge", 10)
        assert [(each.error, each.queue, each.count) for each in others] == [
            ("ConnectionError: bank # is down", "event.charge", 5),
            ("ValueError: order #", "event.charge", 5),
            ("ValueError: no audit", "event.charge@audit", 1),
        ]
        assert 0 < keys.oldest_ms <= keys.newest_ms
        assert (await provider.inspector.jobs.get(keys.sample)).error.startswith("KeyError: 'order 4f1c")
        assert await provider.inspector.queues.failures() == found
        assert await provider.inspector.queues.failures("charge@audit") == others[2:]
        assert await provider.inspector.queues.failures("none") == []
        assert await provider.inspector.queues.retry_all("charge", error=keys.error, dry_run=True) == 10


@pytest.mark.parametrize(
    ("error", "folded"),
    [
        ("ValueError: no 17 of 3.5", "ValueError: no # of #"),
        ("E: job 0-4f1c2a9be07d-00000001 at 0x7f3a is gone", "E: job #-# at # is gone"),
        ("E: 8a1f33de-7d1b-4a53-9c55-ff00aa11bb22", "E: #"),
        ("E: added a bad face", "E: added a bad face"),
        ("E: first\nsecond 2", "E: first"),
        ("E: " + "x" * 300, "E: " + "x" * 194 + "..."),
        ("", ""),
    ],
)
def test_numbers_and_ids_are_folded(error: str, folded: str) -> None:
    assert fold(error) == folded


def test_an_error_is_read_also_where_it_is_cut_off_or_foreign() -> None:
    def encode(**given: Any) -> str:
        return msgspec.json.encode(Failure(**given)).decode()

    text = encode(type="ValueError", message='say "ä" to\n7', traceback="x" * 5000)
    assert error_of(text) == error_of(text[:60]) == 'ValueError: say "ä" to\n7'
    assert error_of(text[:41]) == 'ValueError: say "ä"'
    for cut in range(20, 60):
        assert error_of(text[:cut]).startswith(("ValueError", '{"type"'))
    assert error_of(encode(type="Gone")) == "Gone"
    assert error_of("not JSON\udc80") == "not JSON?"
    assert error_of("") == ""


def test_an_error_is_asked_for_as_a_whole_or_by_its_type() -> None:
    assert is_of("ValueError: no #", "ValueError: no #")
    assert is_of("ValueError: no #", "ValueError")
    assert not is_of("ValueError: no #", "ValueError: yes")
    assert not is_of("ValueErrors: no", "ValueError")
