"""A server that forgets all, under a worker that goes on: what that declared is there again by itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

import pytest
import redis
from drivers.servers import Server

from eventbus import Event, EventProvider, Limit
from eventbus.engine import presence
from workflows import FlowContext, WorkflowProvider, durable

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


@pytest.fixture
def own_server() -> Iterator[Server]:
    server = Server()
    server.start()
    yield server
    server.stop()


@durable("nightly")
async def nightly(ctx: FlowContext[int]) -> int:
    return ctx.input


def _look(server: Server, prefix: str) -> dict[str, Any]:
    """Return what the server keeps of the kinds that a worker declares, by key."""
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        kinds = (
            ":groups",
            ":schedule:",
            ":schedules",
            ":limit:",
            ":keeps",
            ":definition",
            ":fleet",
            ":pools",
            ":orders",
        )
        names = [name for name in client.scan_iter(f"{prefix}:*") if any(kind in name for kind in kinds)]
        return {name: client.type(name) for name in names}


@pytest.mark.parametrize("fault", ["emptied", "restarted-empty"])
async def test_what_a_worker_declares_is_declared_again(
    fault: str,
    own_server: Server,
    make_provider: MakeProvider,
    prefix: str,
    until: Until,
    logs: list[MutableMapping[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(presence, "_INTERVAL", 0.05)
    provider = make_provider(url=own_server.url)
    flows = WorkflowProvider(provider)
    flows.register(nightly)
    flows.schedules.cron("0 3 * * *", nightly, id="flow", input=1)
    provider.schedules.cron("0 4 * * *", "ask", id="event")

    @provider.on(Event("ask", limit=Limit(at_once=3), keep_completed=7))
    async def ask(_: Any) -> None: ...

    @provider.on("ask", group="audit")
    async def audit(_: Any) -> None: ...

    async with provider, provider.worker():
        await until(lambda: any(":definition" in name for name in _look(own_server, prefix)), "all is told")
        before = _look(own_server, prefix)
        assert {each.id for each in await provider.schedules.list()} == {"event", "flow"}
        if fault == "emptied":
            with redis.Redis.from_url(own_server.url) as client:
                client.flushall()
        else:
            own_server.restart()
        await until(lambda: _look(own_server, prefix) == before, "all is told again")
        assert {each.id for each in await provider.schedules.list()} == {"event", "flow"}
    told = [
        each for each in logs if each["event"] == "the server had forgotten this worker, declaring all again"
    ]
    assert len(told) == 1
