"""What a bulk operation is about: the state that was named, also for a batch that is done late, and one
filter for each id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from eventbus import EventProvider, UsageError

MakeProvider = Callable[..., EventProvider]


async def test_a_job_that_was_claimed_before_its_turn_is_not_cancelled(make_provider: MakeProvider) -> None:
    provider = make_provider()
    gate, begun = asyncio.Event(), asyncio.Event()

    @provider.on("charge", concurrency=1)
    async def charge(n: int) -> int:
        begun.set()
        await gate.wait()
        return n

    async with provider:
        emissions = [provider.emit("charge", n) for n in range(3)]
        await asyncio.gather(*(each.enqueued() for each in emissions))
        operation = await provider.inspector.operations.begin("cancel", "charge", "waiting")
        kept = provider._life.running("look").store.controls.operations
        record = await kept.take("lost", lease_ms=60_000)
        assert record is not None
        batch = msgspec.json.encode([each.job_id for each in emissions]).decode()
        saved = msgspec.structs.replace(record, number=1, batch=batch)
        await kept.save(saved, lease_ms=60_000)
        async with provider.worker():
            await begun.wait()
            await kept.save(saved, lease_ms=1)  # and then its runner dies
            while (report := await provider.inspector.operations.get(operation.id)).state == "running":
                pass
            gate.set()
            assert await emissions[0] == 0, "it ran"
    assert (report.done, report.failed) == (2, 1)


@pytest.mark.parametrize(
    "other", [{"state": "failed"}, {"state": "failed", "error": "ValueError"}, {"jobs": ["j-1"]}]
)
async def test_an_id_stands_for_one_filter(make_provider: MakeProvider, other: dict[str, Any]) -> None:
    async with make_provider() as provider:
        asked = provider.inspector
        await asked.operations.begin("remove", "charge", "delayed", operation_id="mine")
        await asked.operations.run()
        with pytest.raises(UsageError, match="'mine' is another one"):
            await asked.operations.begin("remove", "charge", operation_id="mine", **other)
