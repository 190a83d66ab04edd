"""add.lua: emissions that need a worker are refused where nobody serves their queue, before anything is
written.
"""

from __future__ import annotations

import pytest
from drivers.shards import QUEUE, Shard, add_queue, row

from eventbus.store.scripting.script_rows import (
    DEBOUNCE,
    KEEP_LAST,
    NEEDS_WORKER,
    SUPERSEDE,
    THROTTLE,
    AddVerdict,
)

NEEDY = add_queue()._replace(traits=NEEDS_WORKER)


async def test_an_emission_that_needs_a_worker_is_refused_without_one_and_leaves_nothing(
    shard: Shard,
) -> None:
    rows = [row("a"), row("b", key="k", print="p"), row("c", delay=10)]
    for given in rows:
        assert await shard.add(given, queues=[NEEDY]) == [AddVerdict(0, "unserved", given.id, "", QUEUE)]
        assert await shard.state(given.id) is None
    assert await shard.command("EXISTS", shard.key("key", f"{QUEUE}:k"), shard.key("delayed", QUEUE)) == 0
    await shard.announce()
    for given in rows:
        assert await shard.add(given, queues=[NEEDY]) == []


async def test_the_need_of_a_worker_is_that_of_its_rows_alone(shard: Shard) -> None:
    verdicts = await shard.add(row("a"), row("b", queue=2), queues=[NEEDY, add_queue()])
    assert verdicts == [AddVerdict(0, "unserved", "a", "", QUEUE)]
    assert await shard.members("ready") == ["b"]


async def test_a_worker_that_was_killed_counts_until_its_announcement_is_too_old(shard: Shard) -> None:
    await shard.announce()
    shard.now += 20_000
    assert await shard.add(row("a"), queues=[NEEDY]) == []
    shard.now += 1
    assert [each.word for each in await shard.add(row("b"), queues=[NEEDY])] == ["unserved"]
    assert await shard.add(row("a"), queues=[NEEDY]) == [], "a repeat whose answer was lost"


async def test_each_group_that_takes_the_emission_needs_a_worker(shard: Shard) -> None:
    await shard.announce()
    await shard.store.groups.add(QUEUE, "audit")
    expected = [AddVerdict(0, "unserved", "a", "", f"{QUEUE}@audit")]
    assert await shard.add(row("a"), queues=[NEEDY]) == expected
    assert await shard.members("ready") == []
    await shard.announce(group="audit")
    assert await shard.add(row("a"), queues=[NEEDY]) == []


async def test_an_event_without_a_default_group_needs_a_group(shard: Shard) -> None:
    queues = [add_queue(has_default=0)._replace(traits=NEEDS_WORKER)]
    assert await shard.add(row("a"), queues=queues) == [AddVerdict(0, "unserved", "a", "", QUEUE)]
    await shard.announce(group="audit")
    assert await shard.add(row("a"), queues=queues) == []


async def test_who_joins_a_job_needs_a_worker_while_it_is_open_and_none_for_its_outcome(shard: Shard) -> None:
    given = row("a", key="k", print="p")
    await shard.add(given)
    later = [given._replace(id=each) for each in "bc"]
    assert [each.word for each in await shard.add(later[0], queues=[NEEDY])] == ["unserved"]
    await shard.run("completed")
    assert [each.word for each in await shard.add(later[1], queues=[NEEDY])] == ["joined"]


async def test_what_would_supersede_a_job_leaves_it_where_nobody_serves_the_queue(shard: Shard) -> None:
    await shard.add(row("a", key="k", print="p"))
    newer = row("b", key="k", print="q", meeting=SUPERSEDE)
    assert [each.word for each in await shard.add(newer, queues=[NEEDY])] == ["unserved"]
    assert await shard.state("a") == "waiting"


@pytest.mark.parametrize("meeting", [THROTTLE, DEBOUNCE, KEEP_LAST])
async def test_emissions_that_merge_need_a_worker_too(shard: Shard, meeting: int) -> None:
    given = row("a", key="k", print="p", meeting=meeting, span=1000, delay=10 if meeting == DEBOUNCE else "")
    assert [each.word for each in await shard.add(given, queues=[NEEDY])] == ["unserved"]
    await shard.announce()
    assert await shard.add(given, queues=[NEEDY]) == []
