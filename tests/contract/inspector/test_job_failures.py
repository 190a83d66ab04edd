"""Failed attempts and stalls in the inspector: it reports each once, whatever the records contain."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from drivers.records import make_record

from eventbus import EmissionExpired, EventProvider
from eventbus.telemetry.failure import describe, describe_cancelled, describe_expired

MakeProvider = Callable[..., EventProvider]
Admin = Callable[..., Any]


@pytest.fixture
async def provider(make_provider: MakeProvider) -> AsyncIterator[EventProvider]:
    """A started provider without a worker."""
    async with make_provider() as provider:
        yield provider


def _stall(stalls: int) -> str:
    """A stall, as the rescue records it."""
    told = {
        "type": "StalledError",
        "message": f"{stalls} times",
        "attempts": 1,
        "stalls": stalls,
        "worker": "w7",
    }
    return json.dumps(told)


@pytest.mark.parametrize(
    ("state", "outcome", "last"),
    [
        ("failed", _stall(2), None),  # which the log has too
        ("failed", describe(ValueError("no"), attempts=2), ("failed", 2, "ValueError", "no", "")),
        ("failed", describe_expired(EmissionExpired("late"), attempts=0), None),  # no attempt
        ("cancelled", describe_cancelled("user left"), None),
        ("completed", '"fine"', None),
        ("waiting", "", None),
    ],
)
async def test_stalls_are_told_with_their_worker_and_each_failure_once(
    provider: EventProvider, admin: Admin, prefix: str, planted: set[str], state: str, outcome: str, last: Any
) -> None:
    job, log, more = (f"{prefix}:2:{{0}}:{name}" for name in ("job:a", "log:a", "more:a"))
    planted.update([job, log, more])
    fields = {"attempts": 1, "stalls": 2, "body": "1", "ended": 1, "result": outcome}
    admin(*make_record(job, queue="event.a", state=state, **fields))
    admin("RPUSH", log, describe(OSError("gone"), attempts=1), _stall(1), _stall(2))
    report = await provider.inspector.jobs.get("a")
    told = [(each.kind, each.attempt, each.type, each.message, each.worker) for each in report.failures]
    assert told == [
        ("failed", 1, "OSError", "gone", ""),
        ("stalled", 2, "StalledError", "1 times", "w7"),
        ("stalled", 2, "StalledError", "2 times", "w7"),
        *([last] if last else []),
    ]
    assert report.errors == [str(each) for each in report.failures]


async def test_the_newest_fifty_failures_are_told(
    provider: EventProvider, admin: Admin, prefix: str, planted: set[str]
) -> None:
    job, log = (f"{prefix}:2:{{0}}:{name}" for name in ("job:a", "log:a"))
    planted.update([job, log])
    outcome = describe(ValueError("no"), attempts=51)
    admin(*make_record(job, queue="event.a", ended=1, result=outcome, state="failed"))
    admin("RPUSH", log, *(describe(ValueError("no"), attempts=number) for number in range(1, 51)))
    failures = (await provider.inspector.jobs.get("a")).failures
    assert [each.attempt for each in failures] == list(range(2, 52))
