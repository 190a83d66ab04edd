"""Damaged records, each field in turn: of a hundred jobs the damaged one is set apart, the others run."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from checks.audit import Audit
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.programs import Program

from eventbus import EventBusError, EventProvider

Run = Callable[..., Program]

BATCH = 100
VALUES: list[str | bytes] = ["", "junk", b"\xff\xfe\x00", "9" * 30]
#: What is written over the record from this byte on: without what stood there the job cannot be run as it
#: was meant.
BYTES: list[tuple[int, bytes]] = [
    *((0, bytes([first])) for first in (0x00, 0x1F, 0x27, 0x2A, 0x2F, 0x40, 0xFF)),
    *((9, bytes([length])) for length in (0, 1, 9, 11, 255)),  # of the queue
    *((20, bytes([length])) for length in (200, 255)),  # of the emitter
    (1, b"\x02"),  # a body of its own, which there is not
    (1, b"\x20"),  # a root
]
#: Fields beside the record that a claim must know.
NEEDED = ("attempts", "stalls", "priority", "due", "entry")
#: What has no bearing on whether it can run.
OTHER = ("joined", "key", "lifo", "began", "foreign")
DAMAGES: list[tuple[str | int, str | bytes]] = [*BYTES, *product((*NEEDED, *OTHER), VALUES)]


def damage(client: Any, job: str, what: str | int, value: str | bytes) -> None:
    record = f"eb:2:{{0}}:job:{job}"
    if isinstance(what, int):
        client.setrange(record, what, value)
    else:
        client.setrange(record, 1, b"\x01")
        client.hset(f"eb:2:{{0}}:more:{job}", what, value)


async def test_one_damaged_record_in_each_hundred_costs_only_its_own_job(
    server: Backend, start_worker: Run, journal: Journal
) -> None:
    server.is_sound = False
    async with EventProvider(server.url, reply_timeout=45) as provider:
        emissions = provider.emit_many("work", ({"n": n} for n in range(BATCH * len(DAMAGES))))
        for each in emissions:
            await each.enqueued()
        damaged = {emissions[BATCH * i + BATCH // 2].job_id: each for i, each in enumerate(DAMAGES)}
        with server.client() as client:
            for job, (what, value) in damaged.items():
                damage(client, job, what, value)
        worker = start_worker(server)
        await until("all have ended", lambda: all(each.done() for each in emissions), story=worker.story)
        heard: dict[str, object] = {}
        errors: dict[str, str] = {}
        for each in emissions:
            try:
                heard[each.job_id] = await each
            except EventBusError as error:
                errors[each.job_id] = getattr(error, "type_name", type(error).__name__)
    expected = {job: each for job, each in damaged.items() if each[0] not in OTHER}
    assert {job: damaged[job] for job in errors} == expected
    told = worker.complaints()
    assert {each["event"] for each in told} == {"job failed, its record cannot be read"}
    assert {each["job_id"] for each in told} <= set(errors)
    audit = Audit(server)
    assert audit.left_open() == {}
    assert {audit.jobs[job].state for job in heard} == {"completed"}
    assert {audit.jobs[job].state for job in errors} == {"failed"}
    assert {damaged[job] for job in errors if job not in audit.names["raw"]} == set()
    assert set(errors.values()) == {"StoreCorrupt"}
    runs = journal.runs()
    assert {runs[job] for job in heard} == {1}
    assert {runs[job] for job in errors} == {0}
