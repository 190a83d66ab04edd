"""One server with a store on it, for tests that have no event loop of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import redis
from models.job_model import JobModel
from models.job_model_values import Turn
from models.strategies import LEASE

from eventbus.store.connection.connector import Connector
from eventbus.store.scripting.packing import TurnRequest
from eventbus.store.scripting.script_rows import TurnAnswer, TurnQueue
from eventbus.store.store import Store

__all__ = ["Bench"]


class Bench:
    """One server with a store on it, which the caller uses without an event loop."""

    def __init__(self, url: str, runner: asyncio.Runner, scripting: Any) -> None:
        self.client: Any = redis.Redis.from_url(url, decode_responses=True, encoding_errors="surrogateescape")
        self.store = Store(Connector(url), prefix="m", name="model", scripting=scripting)
        self._runner = runner
        self.run(self.store.start, deadline=None)

    def run(self, method: Callable[..., Awaitable[Any]], *arguments: Any, **named: Any) -> Any:
        async def call() -> Any:
            return await method(*arguments, **named)

        return self._runner.run(call())

    def script(self, name: str, arguments: list[Any]) -> Any:
        return self.run(self.store._caller.script, name, arguments)  # pyright: ignore[reportPrivateUsage]

    def turn(self, model: JobModel, turn: Turn) -> TurnAnswer:
        """Send a worker's turn, with the retention of each queue, at the model's time."""
        rows: list[TurnQueue] = []
        for name, quota in turn.queues:
            queue = model.queues[name.partition("@")[0]]
            rows.append(TurnQueue(name, quota, *queue.kept[1:], queue.key_ttl))
        request = TurnRequest(
            lane=turn.worker,
            call=turn.call,
            lease_ms=LEASE,
            pool=turn.pool,
            idle=turn.idle,
            want=turn.want,
            suspects=turn.suspects,
            watched=turn.watched,
            is_alone=turn.is_alone,
            max_bytes=turn.max_bytes,
            queues=rows,
            settles=turn.settles,
            appends=turn.appends,
        )
        return self.run(self.store.turn, request, now=model.now)

    def close(self) -> None:
        self.run(self.store.aclose)
        self.client.close()
