"""How the facts about a worker become liveness and readiness."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from eventbus.engine.reporting.health import HEARD_WITHIN, Health

_WELL = Health(
    worker="w",
    queues=["event.ask"],
    running=3,
    lag=0.1,
    answered=2.0,
    connected=True,
    draining=False,
    ended=False,
    leases_kept=True,
    abandoned=0,
    refused=2,
    hang_after=300.0,
    max_abandoned=10,
)


def test_a_worker_that_does_its_work_is_alive_and_ready() -> None:
    assert (_WELL.liveness_problems, _WELL.readiness_problems) == ([], [])


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"lag": 300.1}, "the event loop has been blocked for 300 s (hang_after)"),
        ({"leases_kept": False}, "the lease thread has ended"),
        ({"abandoned": 10}, "10 handlers ignored their cancellation"),
    ],
)
def test_what_only_a_restart_mends_makes_it_neither_alive_nor_ready(facts: dict[str, Any], told: str) -> None:
    health = msgspec.structs.replace(_WELL, **facts)
    assert (health.liveness_problems, health.readiness_problems) == ([told], [told])


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"draining": True}, "it is draining"),
        ({"draining": True, "ended": True}, "it has ended"),
        ({"answered": None}, "the server has not answered it yet"),
        ({"answered": HEARD_WITHIN + 2}, "the server has not answered it for 12 s"),
    ],
)
def test_what_passes_by_itself_makes_it_unready_alone(facts: dict[str, Any], told: str) -> None:
    health = msgspec.structs.replace(_WELL, **facts)
    assert (health.liveness_problems, health.readiness_problems) == ([], [told])


def test_below_its_limits_nothing_is_said() -> None:
    health = msgspec.structs.replace(_WELL, lag=299.0, abandoned=9, answered=HEARD_WITHIN, connected=False)
    assert health.readiness_problems == []
