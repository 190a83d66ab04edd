"""A root that runs stops its own tree, because it has failed, and goes on until it settles."""

from __future__ import annotations

from drivers.shards import Shard, settle, turn_queue

from eventbus.emit.job_tree import Member, Tree, chunks_of
from eventbus.store.scripting.script_rows import ClaimRow

_FAR = 1e18
_QUEUES = [turn_queue("roots"), turn_queue("leaves")]
_ERROR = '{"type":"ValueError","message":"no"}'


async def _claim_root(shard: Shard, *leaves: str) -> tuple[ClaimRow, str]:
    """Add a tree whose root does not wait for its members; claim the root, return the claim and its token."""
    members = [Member(f"r/{each}", "leaves", delay=3600) for each in leaves]
    tree = Tree("r", "roots", "{}", members, [])
    await shard.store.trees.add("em", chunks_of(tree, reply=True), deadline=_FAR, now=shard.now)
    answer = await shard.turn(queues=_QUEUES)
    (claim,) = answer.claims
    return claim, answer.token


async def _fail(shard: Shard, token: str, job: str = "r", text: str = _ERROR) -> str:
    return await shard.store.trees.fail(job, token, text, deadline=_FAR)


async def _root(shard: Shard) -> dict[str, str]:
    return (await shard.store.trees.look("r", limit=0)).root


async def test_the_tree_stops_at_once_and_the_root_keeps_its_lease(shard: Shard) -> None:
    _, token = await _claim_root(shard, "later")
    assert await _fail(shard, token) == "ok"
    root = await _root(shard)
    assert (root["state"], root["stop"], root["stopper"], root["text"]) == ("active", "failed", "r", _ERROR)
    (member,) = (await shard.store.trees.look("r")).members
    assert member.state == "cancelled"
    word, _ = await shard.append("r", token, 0, "one")
    assert word == "stopping"
    assert await shard.store.journals.entries("r", first=0, limit=9) == ["one"]


async def test_when_it_settles_it_is_claimed_again_to_undo(shard: Shard) -> None:
    claim, token = await _claim_root(shard)
    await _fail(shard, token)
    assert await _fail(shard, token, text='{"type":"Other"}') == "stopping"
    assert list((await shard.turn(queues=_QUEUES)).claims) == []
    answer = await shard.turn(settle(claim, token, "failed", _ERROR), queues=_QUEUES)
    (again,) = answer.claims
    assert (again.id, again.stop) == ("r", "failed")
    assert (await _root(shard))["text"] == _ERROR
    assert await _fail(shard, token) == "lost"


async def test_a_cancel_afterwards_is_too_late_and_asks_the_holder_to_hurry(shard: Shard) -> None:
    claim, token = await _claim_root(shard)
    await _fail(shard, token)
    await shard.cancel("r")
    assert (await _root(shard))["stop"] == "failed"
    await shard.renew((claim.id, token))
    assert shard.cancelled == ["r"]


async def test_only_the_holder_of_a_root_stops_its_tree(shard: Shard) -> None:
    _, token = await _claim_root(shard)
    assert await _fail(shard, "w:77") == "lost"
    assert await _fail(shard, token, "none") == "lost"
    assert "stop" not in await _root(shard)
