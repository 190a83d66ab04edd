"""One run of a handler without a queue: as a worker runs it, with codec, middleware, timeout and retry rule.

What must always hold: nothing of it is in the server, so nothing can be left there.
"""

from __future__ import annotations

import asyncio

from eventbus.emit.route import Route
from eventbus.engine.consumer import Consumer
from eventbus.engine.job import Job, Settle
from eventbus.model import chance, clock
from eventbus.model.message import encode_bare


async def run_alone(consumer: Consumer, route: Route, data: bytes) -> str:
    """Run a handler on a payload in JSON until it completes or fails for good; return its result in JSON.

    Call it in a task of its own. Raises what an emitter would get, with waits between attempts.
    """
    consumer.surround()
    job_id, attempts = f"alone-{chance.token(10)}", 0
    while True:
        now = round(clock.now() * 1000)
        job = Job(
            id=job_id,
            token="",  # there is no lease
            queue=consumer.queue,
            body=encode_bare(data, route.hidden),
            attempts=attempts,
            stalls=0,
            created_ms=now,
            due_ms=now,
            claimed_ms=now,
            has_begun=attempts > 0,
        )
        settle = await _attempt(consumer, job)
        if settle.state == "completed":
            return settle.text
        if settle.state not in ("delayed", "waiting"):
            raise route.revive(settle.state, settle.text, job_id)
        attempts += settle.counts
        await asyncio.sleep(settle.delay_ms / 1000)


async def _attempt(consumer: Consumer, job: Job) -> Settle:
    timeout = consumer.timeout_of(job)
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            settle = await consumer.run(job)
    except Exception as error:  # noqa: BLE001  (what a handler raises)
        late = TimeoutError(f"the handler timed out: it ran longer than its timeout of {timeout} s")
        settle = consumer.decide(job, late if limit.expired() else error)
    assert settle is not None  # noqa: S101  (the handler of an event never suspends itself)
    return settle
