"""The blocked read of a worker, and the confirmations that travel with it."""

from __future__ import annotations

from eventbus.store.store import Store


async def test_a_foreign_index_of_times_keeps_no_worker_from_reading(store: Store, planted: set[str]) -> None:
    """The confirmation of a hand-over is refused then, and not repeated for ever."""
    due = store.keys.shard_key("due")
    planted.add(due)
    await store._caller.command("SET", due, "of somebody else")
    reader = store.open_wakes(pool="p", worker="w")
    assert await reader.poll() is None
    reader.confirm("w", "a", lambda _: None)
    assert await reader.poll() is None
    assert await reader.poll() is None
    await reader.aclose()
