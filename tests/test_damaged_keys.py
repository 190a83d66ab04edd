"""One damaged value in each kind of key: everybody who reads still answers, and says which row cannot be read.

A damage is a key of another type, a member or a field that is no UTF-8, or a value that is no number, no JSON and no record. After
each one all lists are read: what is damaged may be missing or be told as such, and everything else is there as before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

from eventbus import EventProvider
from workflows import FlowContext, Signal, StepContext, Workflow, WorkflowProvider, durable

_BAD = [b"\xff\xfe", b"nan", b"{", b"1e999", b"", b"\x00\x01"]
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
        for field in sorted(call("HKEYS", key))[:12]:
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


async def _nothing(_: Any) -> None: ...


async def _fail(_: Any) -> None:
    raise ValueError("no money")


async def _wait_for(provider: EventProvider, job_id: str, state: str) -> None:
    while (await provider.inspector.job(job_id)).state != state:
        pass


def readers(
    provider: EventProvider, flows: WorkflowProvider, jobs: dict[str, str]
) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Return all that reads, by a name. Those of one thing begin with `one`: they may say that it is damaged."""
    inspector = provider.inspector
    found: dict[str, Callable[[], Awaitable[Any]]] = {
        "queues": inspector.queues,
        "queue_names": inspector.queue_names,
        "workers": inspector.workers,
        "groups": inspector.groups,
        "controls": inspector.controls,
        "failures": inspector.failures,
        "operations": inspector.operations,
        "audit": inspector.audit,
        "server": inspector.server,
        "check_server": inspector.check_server,
        "find by key": lambda: inspector.find(_GOOD, idempotency_key="seven"),
        "find by chain": lambda: inspector.find(correlation_id="chain"),
        "history": lambda: inspector.history(_GOOD),
        "schedules": provider.schedules.list,
        "flows": flows.flow_page,
        "versions": flows.versions,
        "one queue": lambda: inspector.queues(_GOOD),
        "one control": lambda: inspector.controls(_GOOD),
        "one schedule": lambda: provider.schedules.get("nightly").report(),
    }
    for state in _STATES:
        found[f"jobs {state}"] = lambda state=state: inspector.jobs(_GOOD, state=state)
    found["counts"] = lambda: inspector.counts(_GOOD)
    for name, job in jobs.items():
        found[f"one job {name}"] = lambda job=job: inspector.job(job)
        found[f"one why {name}"] = lambda job=job: inspector.why(job)
    for name in ("asking", "graph"):
        found[f"one tree {name}"] = lambda name=name: flows.tree(jobs[name])
        found[f"one members {name}"] = lambda name=name: inspector.tree(jobs[name])
        found[f"one wait {name}"] = lambda name=name: flows.waits(jobs[name])
    return found


PAGES = (
    "/", "/events", "/server", "/find?q=good", "/flows", "/schedules", "/workers", "/failures", "/operations",
    "/audit", "/tail", "/queues/event.good?state=delayed",
)  # fmt: skip
