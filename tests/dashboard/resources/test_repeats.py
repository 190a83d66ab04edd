"""Each action of the API is sent again, and changes nothing more (check 25): with its key, and without it in
another process.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest

from eventbus import EventProvider, Retry
from eventbus.admin.audit import AuditEntry
from eventbus.dashboard.api.table import ACTS
from workflows import FlowContext, FlowHandle, Signal, StepContext, Workflow, WorkflowProvider, durable

Open = Callable[..., Any]
ONCE = Retry(attempts=1)
approval = Signal("approval", int)


@durable("ask", signals=[approval])
async def ask(ctx: FlowContext[int]) -> int:
    """Wait for a number."""
    return await ctx.wait_for(approval)


risky: Workflow[int, int] = Workflow("risky", input=int, output=int, retry=ONCE)


@risky.step()
async def charge(ctx: StepContext[int]) -> int:
    raise ValueError("no money")


@risky.completed
async def done(ctx: StepContext[int]) -> int:
    return 1


class Sent(NamedTuple):
    """An action on something that is there. `again` is how another process answers it: `changed`, or a
    status.
    """

    act: str
    path: str
    order: dict[str, Any]
    again: bool | int = False


async def _wait_for(provider: EventProvider, job_id: str, state: str) -> None:
    while (await provider.inspector.jobs.get(job_id)).state != state:
        pass


async def _group_of(provider: EventProvider, queue: str) -> str:
    """Return the name of the group of the failed jobs of a queue."""
    (group,) = [each for each in await provider.inspector.queues.failures() if each.queue == queue]
    return hashlib.sha256(f"{group.queue}\n{group.error}".encode()).hexdigest()[:20]


async def _waiting(flows: WorkflowProvider, handles: list[FlowHandle[int]]) -> None:
    for each in handles:
        while not await flows.waits(each.id):
            pass


async def _fill(provider: EventProvider, flows: WorkflowProvider) -> list[Sent]:
    """Make what there is something to do with, and return what is done with it."""
    failing = [provider.emit("charge", n, reply=False) for n in range(2)]
    other = provider.emit("refund", 1, reply=False)
    for each in [*failing, other]:
        await each.enqueued()
        await _wait_for(provider, each.job_id, "failed")
    later = [provider.emit("charge", n, delay="1h", reply=False) for n in range(8)]
    for each in later:
        await each.enqueued()
    bulk = [provider.emit("bulk", n, delay="1h", reply=False) for n in range(3)]
    await asyncio.gather(*(each.enqueued() for each in bulk))
    failed, open_ = await flows.execute(risky, 1), [await flows.execute(ask, 1) for _ in range(2)]
    await _wait_for(provider, failed.id, "failed")
    await _waiting(flows, open_)
    group_id = await _group_of(provider, "event.refund")
    jobs = [each.job_id for each in later]
    begun = await provider.inspector.operations.begin("remove", "bulk", jobs=[bulk[0].job_id])
    return [
        Sent(
            "POST /operations/{operation}/stop", f"/operations/{begun.id}/stop", {}
        ),  # first, because nobody works at it yet
        Sent("POST /queues/{queue}/pause", "/queues/event.charge/pause", {"reason": "away"}),
        Sent("POST /queues/{queue}/limits", "/queues/event.charge/limits", {"rate": "1/1m"}),
        Sent("POST /queues/{queue}/resume", "/queues/event.charge/resume", {}),
        Sent("POST /jobs/{job}/cancel", f"/jobs/{jobs[0]}/cancel", {}),
        Sent("POST /jobs/{job}/retry", f"/jobs/{failing[0].job_id}/retry", {}),
        Sent("DELETE /jobs/{job}", f"/jobs/{jobs[1]}", {}, 404),
        Sent("POST /jobs/{job}/promote", f"/jobs/{jobs[2]}/promote", {}),
        # To another time, or the same priority as before: it is done, and is as it was.
        Sent("POST /jobs/{job}/delay", f"/jobs/{jobs[3]}/delay", {"delay": "2h"}, True),
        Sent("POST /jobs/{job}/priority", f"/jobs/{jobs[4]}/priority", {"priority": 7}, True),
        Sent("PATCH /jobs/{job}", f"/jobs/{jobs[5]}", {"payload": 99, "revision": "REVISION"}, 412),
        Sent("POST /jobs/{job}/reveal", f"/jobs/{jobs[6]}/reveal", {"reason": "why not"}),
        Sent("POST /failures/{failure}/retry", f"/failures/{group_id}/retry", {"expected": 1, "id": "retry"}),
        Sent(
            "POST /queues/{queue}/operations",
            "/queues/bulk/operations",
            {"action": "promote", "state": "delayed", "expected": 3, "id": "promote"},
        ),
        Sent(
            "POST /queues/{queue}/clean",
            "/queues/bulk/clean",
            {"state": "waiting", "expected": 3, "id": "clean"},
        ),
        Sent("POST /flows/{flow}/cancel", f"/flows/{open_[0].id}/cancel", {}),
        Sent("POST /flows/{flow}/retry", f"/flows/{failed.id}/retry", {"run": 1}, 412),
        # A signal may be sent, and a schedule run, as often as somebody wants: only a key says that it is the
        # same wish.
        Sent(
            "POST /flows/{flow}/signals/{signal}",
            f"/flows/{open_[1].id}/signals/approval",
            {"payload": 7},
            True,
        ),
        Sent("POST /emissions", "/emissions", {"event": "charge", "payload": 5, "idempotency_key": "five"}),
        Sent("POST /schedules/{schedule}/pause", "/schedules/nightly/pause", {}),
        Sent("POST /schedules/{schedule}/resume", "/schedules/nightly/resume", {}),
        Sent("POST /schedules/{schedule}/run", "/schedules/nightly/run", {}, True),
        Sent("DELETE /schedules/{schedule}", "/schedules/removed", {}, 404),
    ]


async def _settled(provider: EventProvider) -> None:
    """Wait until nothing runs any more, neither jobs nor bulk operations."""
    await provider.inspector.operations.run()
    while any(each.state == "running" for each in await provider.inspector.operations.list()):
        pass


@pytest.mark.slow
async def test_check_25_each_action_that_is_repeated_changes_nothing_more(
    make_provider: Callable[..., EventProvider],
    open_dashboard: Open,
    stack: AsyncExitStack,
    admin: Callable[..., Any],
    prefix: str,
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(risky)
    flows.register(ask)
    provider.on("bulk")(_nothing)
    provider.on("charge", retry=ONCE)(_fail)
    provider.on("refund", retry=ONCE)(_fail)
    await stack.enter_async_context(provider)
    for name in ("nightly", "removed"):
        await provider.schedules.add("charge", id=name, cron="0 0 1 1 *", payload=1)
    async with provider.worker():
        sent = await _fill(provider, flows)
    assert {each.act for each in sent} == {f"{act.method} {act.path}" for act in ACTS}

    def stored() -> dict[str, Any]:
        """All that the server keeps of this test but the audit, in which each repeat stands, the emitter's
        own stream, and when the emitter was last there.
        """
        keys = sorted(admin("KEYS", f"{prefix}:*"))
        keys = [key for key in keys if not key.endswith((":audit", ":emitters")) and ":replies:" not in key]
        return {key: admin("DUMP", key) for key in keys}

    here, elsewhere = (open_dashboard(provider, flows=flows) for _ in range(2))
    for each in sent:
        method = each.act.partition(" ")[0]
        order = dict(each.order)
        if "revision" in order:
            report = await provider.inspector.jobs.get(each.path.rpartition("/")[2])
            order["revision"] = report.revision
        path, options = (
            f"/api/v1{each.path}",
            {"json": order, "headers": {"idempotency-key": f"k {each.act}"}},
        )
        first = await here.request(method, path, **options)
        assert first.status_code == 200, (each, first.text)
        assert first.json()["changed"] is not each.act.endswith("/reveal"), each
        await _settled(provider)
        before, noted = stored(), await _newest(provider)
        second = await here.request(method, path, **options)
        assert second.json() == first.json(), each
        assert stored() == before, each
        repeated = await _newest(provider)
        assert (repeated.action, repeated.target) == (noted.action, noted.target), each
        assert (repeated.outcome, repeated.id > noted.id) == ("unchanged", True), each
        third = await elsewhere.request(method, path, json=order)
        told = third.json()["changed"] if third.status_code == 200 else third.status_code
        assert told == each.again, (each, third.text)


async def _newest(provider: EventProvider) -> AuditEntry:
    """Return the newest entry of the audit."""
    return (await provider.inspector.audit.list(limit=1)).entries[0]


async def _nothing(_: int) -> None: ...


async def _fail(n: int) -> None:
    raise ValueError("no money")
