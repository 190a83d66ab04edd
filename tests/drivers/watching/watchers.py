"""A watcher under test: it reads what the server has told so far, without waiting for more."""

from __future__ import annotations

from collections.abc import Sequence

from drivers.shards import QUEUE, Shard

from eventbus.store.change_stream import ALL, ChangeStream
from eventbus.telemetry.change import Change

__all__ = ["Watcher", "shown"]

_END = "event.end.of.what.was.told"


def shown(changes: Sequence[Change]) -> list[str]:
    """Return each change as `what job state`, without what it does not have."""
    return [" ".join(filter(None, (each.what, each.job_id, each.state))) for each in changes]


class Watcher:
    """Watches queues of one shard; by default one."""

    def __init__(self, shard: Shard, *scopes: str, since: int | None = None) -> None:
        self.shard = shard
        self.stream: ChangeStream = ChangeStream(shard.store, [*(scopes or (QUEUE,)), _END], since=since)
        if ALL in scopes:
            self.stream = ChangeStream(shard.store, [ALL], since=since)

    async def begin(self) -> None:
        await self.stream.renew()

    async def take(self) -> list[Change]:
        """Return what was told since the last call. A pause of another queue ends it."""
        await self.shard.store.controls.pause(_END, by="test", reason="", now=self.shard.now)
        await self.shard.store.controls.resume(_END, now=self.shard.now)
        found: list[Change] = []
        while not found or found[-1].what != "resumed" or found[-1].queue != _END:
            found += await self.stream.read()
        return [each for each in found if each.queue != _END]

    async def see(self) -> list[str]:
        return shown(await self.take())

    async def aclose(self) -> None:
        await self.stream.aclose()
