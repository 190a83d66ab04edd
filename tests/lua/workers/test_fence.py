"""Every write of a worker proves its lease: without it the answer is "lost", and nothing is written."""

from __future__ import annotations

from typing import Any

import pytest
from drivers.shards import LEASE, Shard, row, settle

from eventbus.store.scripting.script_rows import ClaimRow

_STATES = ["completed", "failed", "cancelled", "delayed", "waiting", "parked"]
_ABOUT_WORKERS = ("held", "workers", "worker", "clock")


async def _dump(shard: Shard) -> dict[str, Any]:
    """All that lies in the shard about jobs."""
    names = await shard.command("KEYS", f"{shard.store.keys.root}:*")
    about_jobs = [name for name in names if name.partition("}:")[2].partition(":")[0] not in _ABOUT_WORKERS]
    return {name: await shard.command("DUMP", name) for name in sorted(about_jobs)}


async def _lose(shard: Shard, how: str) -> tuple[ClaimRow, str]:
    """A claim of worker `w` whose lease is not its own any more."""
    await shard.open_replies()
    await shard.add(row("a", key="k"), row("b"))
    answer = await shard.turn(want=1)
    shard.now += LEASE
    if how == "ended":
        await shard.turn(settle(answer.claims[0], answer.token), want=0)
        return answer.claims[0], "w:999"
    await shard.rescue()
    if how == "retaken":
        assert [each.id for each in (await shard.turn(worker="x", want=1)).claims] == ["a"]
    return answer.claims[0], answer.token


@pytest.mark.parametrize("how", ["given back", "retaken", "ended"])
@pytest.mark.parametrize("state", _STATES)
async def test_a_settle_without_the_lease_is_told_so_and_changes_nothing(
    shard: Shard, state: str, how: str
) -> None:
    claim, token = await _lose(shard, how)
    before = await _dump(shard)
    late = settle(claim, token, state, '"late"', attempts=1, delay=500 if state == "delayed" else 0)
    assert (await shard.turn(late, want=0)).lost == ["a"]
    assert await _dump(shard) == before


@pytest.mark.parametrize("how", ["given back", "retaken", "ended"])
async def test_progress_without_the_lease_is_told_so_and_changes_nothing(shard: Shard, how: str) -> None:
    claim, token = await _lose(shard, how)
    before = await _dump(shard)
    assert await shard.note(claim.id, token, "1") == ["a"]
    assert await _dump(shard) == before


@pytest.mark.parametrize("how", ["given back", "retaken", "ended"])
async def test_a_renewal_without_the_lease_is_told_so_and_changes_nothing(shard: Shard, how: str) -> None:
    claim, token = await _lose(shard, how)
    before = await _dump(shard)
    shard.now += 1
    assert await shard.renew((claim.id, token)) == ["a"]
    assert await _dump(shard) == before


async def test_a_settle_of_a_mixed_batch_is_carried_out_but_for_what_is_lost(shard: Shard) -> None:
    await shard.add(row("a"), row("b"))
    answer = await shard.turn()
    lost, held = answer.claims
    after = await shard.turn(settle(lost, "x:1"), settle(held, answer.token), want=0)
    assert after.lost == ["a"]
    assert [await shard.state(each) for each in "ab"] == ["active", "completed"]
