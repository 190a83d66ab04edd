"""An emitter that is paused while its outcomes, and many others, are delivered."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest
from checks.audit import reconcile
from harness.backends import Backend
from harness.conditions import last, until
from harness.journal import Journal
from harness.programs import Program

from eventbus import EventProvider

Run = Callable[..., Program]
Gates = Callable[[str], None]

PAUSE = 5.0
FOREIGN = 20_000
OWN = 50
CHUNK = 2000


@pytest.mark.servers("one")
async def test_an_emitter_stopped_under_20_000_foreign_completions_hears_its_own_from_a_trimmed_stream(
    server: Backend, start_worker: Run, run: Run, gates: Gates, journal: Journal
) -> None:
    worker = start_worker(server)
    # Its own time passes while it stands still: each emission is overdue when it wakes.
    emitter = run(
        "hold",
        '{"gate":"open"}',
        str(OWN),
        module="apps.held_emitter",
        url=server.url,
        reply_timeout=f"{PAUSE - 1}s",
    )
    await until("its jobs run", lambda: len(journal.read("began")) == OWN, story=emitter.story)
    await until("it knows", lambda: len(emitter.out.splitlines()) == 2, story=emitter.story)
    emitter.send(signal.SIGSTOP)
    stopped = time.monotonic()
    gates("open")
    # The id of a job begins with the shard and the name of its emitter.
    stream = f"eb:2:{{0}}:replies:{emitter.lines()[0][0].split('-')[1]}"
    assert server.command("EXISTS", stream) == 1
    await until("its outcomes are told", lambda: len(journal.read("ended")) == OWN, story=worker.story)
    heard: dict[str, object] = {}
    async with EventProvider(server.url) as provider:
        for first in range(0, FOREIGN, CHUNK):
            emissions = provider.emit_many("work", [{"n": n} for n in range(first, first + CHUNK)])
            heard |= {each.job_id: await each for each in emissions}
    server.command("XTRIM", stream, "MAXLEN", 0)
    await last(max(0.0, stopped + PAUSE - time.monotonic()))
    assert server.command("XLEN", stream) == 0, "what others emit is not in it"
    emitter.send(signal.SIGCONT)
    await until("it ends", lambda: emitter.has_ended, story=emitter.story)
    assert emitter.wait_ended() == 0
    ids, memory, results, memory_at_the_end = emitter.lines()
    assert None not in results, emitter.err
    assert memory_at_the_end - memory < 4096, "KiB: it read nothing of the others"
    heard |= dict(zip(ids, results, strict=True))
    audit = reconcile(server, heard, journal=journal)
    assert {record.stalls for record in audit.jobs.values()} == {0}
    assert set(journal.runs().values()) == {1}
    assert worker.complaints() == []
