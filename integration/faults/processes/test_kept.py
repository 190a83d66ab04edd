"""Jobs that are kept for no time, while workers are killed and answers are lost: each outcome comes, and
nothing is left.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import until
from harness.programs import Program
from harness.proxy import Proxy

from eventbus import Event, EventProvider

Run = Callable[..., Program]

_SIZES = (1, 300, 20_000)  # in the record, in a key of its own, and too large for a reply
_JOBS, _KILLS = 300, 5


@pytest.mark.parametrize("says", ["event", pytest.param("emission", marks=pytest.mark.long)])
async def test_each_outcome_comes_and_nothing_is_left_while_workers_are_killed_and_answers_are_lost(
    server: Backend, proxy: Proxy, run: Run, says: str
) -> None:
    rng = random.Random(13)
    own: dict[str, Any] = {} if says == "event" else {"keep_completed": 0}
    quick: Any = Event("quick", payload=int, result=str) if says == "event" else "work"

    def start() -> Program:
        app = "saved_app" if says == "event" else "event_app"
        worker = run("worker", f"apps.{app}:provider", url=server.url, lease="1500ms", max_stalls=20)
        worker.wait_logged("worker ready")
        return worker

    workers = [start() for _ in range(2)]
    async with EventProvider(proxy.url, reply_timeout=300) as provider:
        emissions: list[Any] = []
        for n in range(_JOBS):
            size = rng.choice(_SIZES)
            payload = size if says == "event" else {"n": n}
            emissions.append((size, n, provider.emit(quick, payload, **own)))
            await asyncio.sleep(rng.choice([0, 0.005, 0.02]))
            if n % 20 == 10:
                proxy.strike(rng.choice(["add", "look", "attend"]), rng.choice(["before", "after"]), "break")
            if n % (_JOBS // _KILLS) == 40:
                workers.pop(rng.randrange(2)).kill()
                workers.append(start())
        for size, n, emission in emissions:
            found = await emission
            assert (len(found) == size) if says == "event" else (found["n"] == n)
    with server.client() as client:
        records: Any = client
        await until("all are removed", lambda: not records.keys("eb:2:{0}:job:*"))
        left = [
            kind
            for kind in ("leaving", "completed", "result", "body", "more")
            if records.keys(f"eb:2:{{0}}:{kind}:*")
        ]
        assert left == []
        assert records.zrange("eb:2:{0}:due", 0, -1) == []
    assert Audit(server).problems == []
