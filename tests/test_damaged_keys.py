"""One damaged value in each kind of key: everybody who reads still answers, and says which row cannot be
read.

A damage is a key of another type, a member or a field that is no UTF-8, or a value that is no number, no
JSON and no record. After
each one all lists are read: what is damaged may be missing or be told as such, and everything else is there
as before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import httpx2
import msgspec
import pytest

from eventbus import Event, EventProvider, Limit, Retry
from eventbus.dashboard import Dashboard
from eventbus.errors import EventBusError, StoreUnavailable
from eventbus.store.keys import KINDS
from workflows import FlowContext, Signal, StepContext, Workflow, WorkflowProvider, durable

_BAD = [b"\xff\xfe", b"nan", b"{"]
_GOOD = "good"
_STATES = ("waiting", "active", "delayed", "parked", "completed", "failed", "cancelled", "waiting-children")
go = Signal("go", int)


@durable("asking", signals=[go])
async def asking(ctx: FlowContext[int]) -> int:
    """Wait for a number."""
    return await ctx.wait_for(go)


graph: Workflow[int, int] = Workflow("graph", input=int, output=int, spread=True)


@graph.step()
async def only(ctx: StepContext[int]) -> int:
    return ctx.input


@graph.completed
async def done(ctx: StepContext[int]) -> int:
    return 1


class Damage(NamedTuple):
    """What is done to a key: `what` says it, `command` does it."""

    what: str
    command: tuple[Any, ...]


def damages(kind: str, call: Callable[..., Any], key: str) -> Iterator[Damage]:
    """Name the ways in which a key can be damaged, from what stands there."""
    if kind == "hash":
        for field in sorted(call("HKEYS", key))[:10]:
            for bad in _BAD:
                yield Damage(f"{field!r} is {bad!r}", ("HSET", key, field, bad))
        yield Damage("an odd field", ("HSET", key, b"\xff", b"\xff"))
    elif kind == "zset":
        for member in (b"\xff\xfe", b"", b"\x00"):
            yield Damage(f"member {member!r}", ("ZADD", key, "1", member))
        for member in call("ZRANGE", key, "0", "0"):
            yield Damage("no time", ("ZADD", key, "inf", member))
    elif kind == "set":
        for member in (b"\xff\xfe", b"", b"\x00"):
            yield Damage(f"member {member!r}", ("SADD", key, member))
    elif kind == "list":
        for member in _BAD:
            yield Damage(f"first {member!r}", ("LPUSH", key, member))
            yield Damage(f"last {member!r}", ("RPUSH", key, member))
    elif kind == "string":
        for bad in _BAD:
            yield Damage(f"text {bad!r}", ("SET", key, bad))
    elif kind == "stream":
        yield Damage("an odd entry", ("XADD", key, "*", b"\xff", b"\xff"))
    yield Damage("another type", (("SADD", key, "x") if kind != "set" else ("RPUSH", key, "x")))


async def _nothing(_: Any) -> None: ...


async def _fail(_: Any) -> None:
    raise ValueError("no money")


async def _wait_for(provider: EventProvider, job_id: str, state: str) -> None:
    while (await provider.inspector.jobs.get(job_id)).state != state:
        pass


def readers(
    provider: EventProvider, flows: WorkflowProvider, jobs: dict[str, str]
) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Return all that reads, by a name.

    Those of one thing begin with `one`: they may say that it is damaged.
    """
    inspector = provider.inspector
    found: dict[str, Callable[[], Awaitable[Any]]] = {
        "queues": inspector.queues.list,
        "queue_names": inspector.queues.names,
        "workers": inspector.workers.list,
        "groups": inspector.queues.groups,
        "controls": inspector.queues.controls,
        "failures": inspector.queues.failures,
        "operations": inspector.operations.list,
        "audit": inspector.audit.list,
        "server": inspector.server.report,
        "check_server": inspector.server.check,
        "find by key": lambda: inspector.jobs.find(_GOOD, idempotency_key="seven"),
        "find by chain": lambda: inspector.jobs.find(correlation_id="chain"),
        "history": lambda: inspector.queues.history(_GOOD),
        "schedules": provider.schedules.list,
        "flows": flows.flow_page,
        "versions": flows.versions,
        "one queue": lambda: inspector.queues.list(_GOOD),
        "one control": lambda: inspector.queues.controls(_GOOD),
        "one schedule": lambda: provider.schedules.get("nightly").report(),
    }
    for state in _STATES:
        found[f"jobs {state}"] = lambda state=state: inspector.jobs.list(_GOOD, state=state)
    found["counts"] = lambda: inspector.queues.count(_GOOD)
    for name, job in jobs.items():
        found[f"one job {name}"] = lambda job=job: inspector.jobs.get(job)
        found[f"one why {name}"] = lambda job=job: inspector.jobs.why(job)
    for name in ("asking", "graph"):
        found[f"one tree {name}"] = lambda name=name: flows.tree(jobs[name])
        found[f"one members {name}"] = lambda name=name: inspector.trees.get(jobs[name])
        found[f"one wait {name}"] = lambda name=name: flows.waits(jobs[name])
    return found


PAGES = (
    "/", "/events", "/server", "/find?q=good", "/flows", "/schedules", "/workers", "/failures", "/operations",
    "/audit", "/tail", "/queues/event.good?state=delayed",
)  # fmt: skip

_ELSEWHERE = frozenset(
    [
        "none",
        "changes",
        "watched",
        "control",
        "cuts",
        "dead",
        "gauges",
        "inbox",
        "leaves",
        "leaving",
        "lines",
        "live",
        "needs",
        "order",
        "outcome",
        "parked",
        "progress",
        "raw",
        "rawmore",
        "ready+",
        "resting",
        "result",
        "scratch",
        "suspects",
        "touch",
        "unfinished",
        "waiters",
        "wake",
        "idle",
        "lane",
        "turns",
        "ready",
        "checkpoints",
        "done",
        "feeds",
        "history",
        "tally",
        "minutes",
        "hours",
        "rooted",
        "log",
        "members",
        "slots",
        "journal",
        "roots",
        "pools",
        "body",
        "clock",
        "delayed",
        "held",
        "replies",
        "emitters",
    ]
)
"""What stands only for a moment, or in cases that their own tests make."""


_PARTS = 6
"""The kinds are damaged in so many tests, each by itself."""


async def _fill(provider: EventProvider, flows: WorkflowProvider, good: Event[Any, Any]) -> dict[str, str]:
    """Make jobs in each state, flows, schedules, orders and an operation; return the ids of jobs."""
    for name in ("nightly", "daily"):
        await provider.schedules.add(_GOOD, id=name, cron="0 0 1 1 *", payload=1)
    failed = provider.emit("bad", 1, reply=False)
    whole = provider.emit(good, "y" * 300, reply=False, idempotency_key="seven", correlation_id="chain")
    await failed.enqueued()
    await whole.enqueued()
    waits, ended = await flows.execute(asking, 1), await flows.execute(graph, 1)
    await _wait_for(provider, failed.job_id, "failed")
    await _wait_for(provider, ended.id, "completed")
    while not await flows.waits(waits.id):
        pass
    await provider.pause(_GOOD, reason="because")
    await provider.set_limit(_GOOD, Limit(at_once=3))
    waiting, delayed, dropped = (
        provider.emit(good, n, reply=False, delay=delay) for n, delay in enumerate((None, 3600, 3600))
    )
    for each in (waiting, delayed, dropped):
        await each.enqueued()
    await provider.cancel(dropped.job_id)
    await provider.inspector.operations.begin("retry", "bad", state="failed")
    await provider.inspector.operations.run()
    for outcome in ("changed", "refused"):  # two streams
        await provider.inspector.audit.note({"actor": "x", "action": "y", "outcome": outcome})
    return {
        "failed": failed.job_id,
        "done": whole.job_id,
        "asking": waits.id,
        "graph": ended.id,
        "waiting": waiting.job_id,
        "delayed": delayed.job_id,
    }


async def _ask(name: str, read: Callable[[], Awaitable[Any]]) -> Any:
    """Return what a reader answers, None where one thing says that it cannot be read."""
    try:
        found = await read()
    except EventBusError as error:
        if name.startswith("one ") and not isinstance(error, StoreUnavailable):
            return None
        raise
    msgspec.json.encode(found, enc_hook=str)  # as the API and `--json` do
    return found


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.parametrize("part", range(_PARTS))
async def test_one_damaged_value_takes_down_no_reader_and_no_worker(
    make_provider: Callable[..., EventProvider],
    admin: Callable[..., Any],
    prefix: str,
    planted: set[str],
    part: int,
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(asking)
    flows.register(graph)
    good = Event(_GOOD, limit=Limit(at_once=5, by=str, each=2))
    provider.on(good)(_nothing)
    provider.on(_GOOD, group="g")(_nothing)
    provider.on("bad", retry=Retry(attempts=1))(_fail)
    kinds = set(sorted(KINDS)[part::_PARTS])
    troubles = dict[str, str]()
    """What answered how after which kind was damaged, with the first damage."""
    async with provider, provider.worker():
        jobs = await _fill(provider, flows, good)
        every = readers(provider, flows, jobs)
        dashboard = Dashboard(provider, flows=flows, insecure_allow_anyone=True)
        transport = httpx2.ASGITransport(app=dashboard)
        client = httpx2.AsyncClient(transport=transport, base_url="http://localhost")
        desk = dashboard._desk

        async def look(kind: str, where: str, *, with_pages: bool) -> dict[str, Any]:
            found = dict[str, Any]()
            for name, read in every.items():
                try:
                    found[name] = await _ask(name, read)
                except Exception as error:  # noqa: BLE001  (each is told)
                    troubles.setdefault(f"{kind}: {name}: {type(error).__name__}", f"{where}: {error}")
            for share in (desk.queues, desk.failures, desk.versions, desk.server, desk.checks):
                share.forget()
            for page in PAGES if with_pages else ():
                status = (await client.get(page)).status_code
                if status not in (200, 303):
                    troubles.setdefault(f"{kind}: {page}: {status}", where)
            return found

        whole = await look("", "", with_pages=True)
        assert troubles == {}
        seen = set[str]()
        for key in sorted(admin("KEYS", f"{prefix}:2:*")):
            kind = key.partition("}:")[2].partition(":")[0]
            name = key.rpartition(":")[2]
            if kind not in kinds:
                continue
            if kind in seen and name not in (f"event.{_GOOD}", "nightly"):
                continue
            type_, kept = admin("TYPE", key), admin("DUMP", key)
            for damage in damages(type_, admin, key) if kept is not None else ():
                admin("MULTI")  # otherwise the worker makes the key anew in between
                if damage.what == "another type":
                    admin("DEL", key)
                admin(*damage.command)
                admin("EXEC")
                where = f"{name}: {damage.what}"
                found = await look(kind, where, with_pages=kind not in seen or damage.what == "another type")
                seen.add(kind)
                if damage.what != "another type":
                    for listed in ("queues", "schedules", "workers", "operations"):
                        if len(found.get(listed, whole[listed])) < len(whole[listed]):
                            troubles.setdefault(f"{kind}: {listed}: fewer", where)
                admin("RESTORE", key, "0", kept, "REPLACE")
        await client.aclose()
        assert troubles == {}
        assert kinds - seen - _ELSEWHERE == set()
        await provider.resume(_GOOD)
        assert await provider.emit(good, 7) is None  # the worker lives
        planted.update(admin("KEYS", f"{prefix}:*"))
