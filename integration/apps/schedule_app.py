"""A program that declares schedules: `eventbus worker apps.schedule_app:provider`, run in `integration/`.

Many processes of it start at once. The handler writes into the journal which slot it got.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from harness.journal import Journal

from eventbus import EventContext, EventProvider

__all__ = ["provider"]

provider: EventProvider = EventProvider(name="schedule-app")
provider.schedules.version = 1
_journal = Journal(Path(os.environ["EVENTBUS_TEST_FOLDER"]) / "journal")


@provider.on("tick", concurrency=100)
async def tick(payload: Any, ctx: EventContext) -> None:
    _journal.write("began", ctx.job_id, ctx.attempt, payload)


for number in range(5):
    provider.schedules.every(
        "500ms", "tick", id=f"s{number}", payload=number, immediately=True, overlap="allow", catch_up="all"
    )
