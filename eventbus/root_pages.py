"""Pages of the roots of many queues, by time, and what the versions of their jobs are: a part of the job
client. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from eventbus.lifecycle import Lifecycle
from eventbus.model.durations import Duration
from eventbus.settings.settings import Settings
from eventbus.store.calls.tree_store import RootPlace, RootRow

__all__ = ["RootPages"]


class RootPages:
    """The methods of the job client that look at many trees."""

    _life: Lifecycle
    settings: Settings

    async def root_page(
        self,
        queues: Sequence[str],
        kinds: Sequence[str],
        *,
        after: RootPlace | None = None,
        limit: int = 50,
        deadline: float,
    ) -> list[RootRow]:
        """Return at most `limit` roots of queues behind a place, newest first, those of all queues in one
        row.

        `kinds` are `open` (by when it was added), `completed`, `failed` and `cancelled` (by their ends), and
        `leaving`: ended ones that go at a time of their own, by that time. `deadline` is a time of the
        monotonic clock. A queue may be asked for as often as there are pages: none is read from its
        beginning. Raises ProviderStopped and StoreError.
        """
        trees = self._life.running("list trees").store.trees
        return await trees.root_page(queues, kinds, after=after, limit=limit, deadline=deadline)

    async def definition(self, queue: str, version: str, *, call_timeout: Duration | None = None) -> str:
        """Return what a version of the jobs of a queue is, as a worker of it told at its start: JSON; `''` if
        none did.

        The server keeps it for 90 days. Raises ProviderStopped and StoreError.
        """
        deadline = self.settings.deadline(call_timeout)
        store = self._life.running("look at a definition").store
        return await store.presence.definition(queue, version, deadline=deadline)
