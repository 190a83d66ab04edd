"""The blocked read of a worker, and the confirmations that travel with it."""

from __future__ import annotations

import asyncio

import pytest

from eventbus.store.store import Store

_HOLD = b"\x01\x90\xff\xc3\xa4\xff0\x00\x01"
"""What stands before the token: times and places are no text."""


@pytest.mark.parametrize(
    ("is_open", "hold", "is_ours"),
    [
        (True, b"w:h", True),
        (False, b"w:h", True),  # a renewal or the worker's leave has confirmed it before
        (False, b"w:7", False),  # it was given back, and this worker has claimed it since
        (False, None, False),  # it was given back
    ],
)
async def test_a_worker_has_what_it_was_handed_unless_it_was_given_back(
    store: Store, planted: set[str], is_open: bool, hold: bytes | None, is_ours: bool
) -> None:
    due, held = store.keys.shard_key("due"), store.keys.of("held", "w")
    planted.update((due, held))
    if is_open:
        await store._caller.command("ZADD", due, 1e15, "hand:w/a")
    if hold is not None:
        await store._caller.command("HSET", held, "a", _HOLD + hold)
    reader = store.open_wakes(pool="p", worker="w")
    await reader.poll()
    answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    reader.confirm("w", "a", answer.set_result)
    assert await asyncio.wait_for(answer, 240) is is_ours
    await reader.aclose()


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
