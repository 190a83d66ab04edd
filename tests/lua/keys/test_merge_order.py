"""Rows that merge, among rows of their key that do not: no older payload takes the place of a newer one."""

from __future__ import annotations

from typing import Any

import pytest
from drivers.shards import Shard, row, settle

from eventbus.store.scripting.script_rows import DEBOUNCE, JOIN, KEEP_LAST, SUPERSEDE, THROTTLE, AddVerdict

_MERGING: dict[int, dict[str, Any]] = {THROTTLE: {"span": 10_000}, DEBOUNCE: {"delay": 5_000}, KEEP_LAST: {}}


@pytest.mark.parametrize("merging", [DEBOUNCE, KEEP_LAST])
@pytest.mark.parametrize("meeting", [JOIN, SUPERSEDE])
async def test_a_row_that_is_late_keeps_the_body_of_a_newer_one(
    shard: Shard, merging: int, meeting: int
) -> None:
    """The call of the older one was lost, and is made again behind that of a newer one that does not
    merge.
    """
    await shard.add(row("0-em-00000002", key="k", print="p", meeting=meeting))
    late = row("0-em-00000001", key="k", print="q", meeting=merging, **_MERGING[merging])
    assert await shard.add(late) == [AddVerdict(0, "joined", "0-em-00000002", "open", "")]
    assert [each.body for each in (await shard.turn()).claims] == ['{"d":"0-em-00000002"}']


@pytest.mark.parametrize("merging", _MERGING)
@pytest.mark.parametrize("meeting", [JOIN, SUPERSEDE])
async def test_a_row_behind_one_that_merges_with_its_key_waits_for_the_next_call(
    shard: Shard, merging: int, meeting: int
) -> None:
    """What merges is written after the other rows of a call, so an older body would take the place of a newer
    one.
    """
    behind = [row("b", key="k", print="b", meeting=meeting), row("c"), row("d", key="l", print="d")]
    first = row("a", key="k", print="a", meeting=merging, **_MERGING[merging])
    answer = await shard.add(row("x", key="k2"), first, row("y", key="l2"), *behind)
    assert [(each.place, each.word) for each in answer] == [(3, "later"), (4, "later"), (5, "later")]
    await shard.add(*behind)
    shard.now += 5_000
    ids = [each.id for each in (await shard.turn()).claims]
    assert set(ids) == {"x", "y", "c", "d", "b" if meeting == SUPERSEDE else "a"}


@pytest.mark.parametrize("text", ["begun", ""])
async def test_what_was_given_back_unfinished_has_begun(shard: Shard, text: str) -> None:
    first, then = (row(job, key="k", print=job, meeting=KEEP_LAST) for job in "ab")
    await shard.add(first)
    answer = await shard.turn()
    await shard.turn(settle(answer.claims[0], answer.token, "waiting", text), want=0)
    assert await shard.add(then) == ([] if text else [AddVerdict(0, "joined", "a", "open", "")])
    claims = (await shard.turn()).claims
    assert [(each.id, each.body, each.due < 0) for each in claims] == [
        ("a", first.body if text else then.body, bool(text))
    ]
