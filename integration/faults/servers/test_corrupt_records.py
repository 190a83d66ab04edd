"""Damaged records, each field in turn: of a hundred jobs the damaged one is set apart, the others run."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.programs import Program

from eventbus import EventBusError, EventProvider

Run = Callable[..., Program]

BATCH = 100
VALUES: list[str | bytes] = ["", "junk", b"\xff\xfe\x00", "9" * 30]
#: What a claim must know: without it the job cannot be run as it was meant.
NEEDED = ("queue", "state", "order", "attempts", "stalls", "created", "due", "body")
#: What has no bearing on whether it can run.
OTHER = ("reply", "joined", "key", "token", "result", "ended", "lifo", "foreign")
DAMAGES = [(field, value) for field, value in product((*NEEDED, *OTHER), VALUES)]


@pytest.mark.timeout(150)
async def test_one_damaged_record_in_each_hundred_costs_only_its_own_job(
    server: Backend, start_worker: Run, journal: Journal
) -> None:
    server.is_sound = False
    async with EventProvider(server.url, reply_timeout=15) as provider:
        emissions = provider.emit_many("work", ({"n": n} for n in range(BATCH * len(DAMAGES))))
        for each in emissions:
            await each.enqueued()
        damaged = {emissions[BATCH * i + BATCH // 2].job_id: damage for i, damage in enumerate(DAMAGES)}
        with server.client() as client:
            for job, (field, value) in damaged.items():
                client.hset(f"eb:2:{{0}}:job:{job}", field, value)
        worker = start_worker(server)
        await until("all have ended", lambda: all(each.done() for each in emissions), story=worker.story)
        heard: dict[str, object] = {}
        errors: dict[str, str] = {}
        for each in emissions:
            try:
                heard[each.job_id] = await each
            except EventBusError as error:
                errors[each.job_id] = getattr(error, "type_name", type(error).__name__)
    expected = {job: damage for job, damage in damaged.items() if damage[0] in NEEDED}
    assert {job: damaged[job] for job in errors} == expected
    assert worker.complaints() == []
    audit = Audit(server)
    assert audit.left_open() == {}
    assert {audit.jobs[job].state for job in heard} == {"completed"}
    assert {audit.jobs[job].state for job in errors} == {"failed"}
    kept = {job for job in errors if job in audit.names["raw"]}
    assert {damaged[job] for job in errors if job not in kept} <= {("body", value) for value in VALUES}
    assert set(errors.values()) == {"StoreCorrupt"}
    runs = journal.runs()
    assert {runs[job] for job in heard} == {1}
    assert {runs[job] for job in errors} == {0}
