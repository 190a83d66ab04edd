"""Another program's value in the place of a queue's key: it harms that queue alone, and no accepted job is
lost.
"""

from __future__ import annotations

import pytest
from drivers.shards import LEASE, QUEUE, Shard, add_queue, row, settle, turn_queue

from eventbus.store.scripting.script_rows import AddVerdict, SweepQueue

_BAD = "event.bad"
_QUEUES = [add_queue(_BAD), add_queue()]
_TURN = [turn_queue(_BAD), turn_queue()]
_OPTIONS = {"plain": {}, "with options": {"priority": 1}, "with a key": {"key": "k", "print": "p"}}


async def _spoil(shard: Shard, planted: set[str], *kinds: str, queue: str = _BAD) -> None:
    for kind in kinds:
        planted.add(shard.key(kind, queue))
        await shard.command("SET", shard.key(kind, queue), "junk")


async def _mend(shard: Shard, planted: set[str]) -> None:
    for name in planted:
        await shard.command("DEL", name)


def _foreign(shard: Shard, place: int, job: str, kind: str) -> AddVerdict:
    return AddVerdict(place, "foreign", job, "", shard.key(kind, _BAD))


@pytest.mark.parametrize("options", _OPTIONS)
async def test_emissions_into_a_foreign_queue_are_refused_and_those_beside_them_run(
    shard: Shard, planted: set[str], options: str
) -> None:
    await _spoil(shard, planted, "ready", "ready+")
    given = _OPTIONS[options]
    first = "ready+" if "priority" in given else "ready"
    rows = [row("a", **given), row("b", queue=2), row("c", body="x" * 100), row("d", queue=2)]
    for _ in ("once", "again"):
        verdicts = await shard.add(*rows, queues=_QUEUES)
        assert verdicts == [_foreign(shard, 0, "a", first), _foreign(shard, 2, "c", "ready")]
        assert await shard.members("ready") == ["b", "d"]
        names = await shard.command(
            "KEYS", f"{shard.store.keys.root}:*".replace("{", "[{]").replace("}", "[}]")
        )
        assert not [name for name in names if name.endswith((":a", ":c", ":k"))]
    await _mend(shard, planted)
    assert await shard.add(*rows, queues=_QUEUES) == []
    answer = await shard.turn(queues=_TURN)
    assert {each.id for each in answer.claims} == {"a", "b", "c", "d"}


async def test_who_joins_a_job_that_is_refused_is_refused_too(shard: Shard, planted: set[str]) -> None:
    await _spoil(shard, planted, "ready")
    rows = [row("a", key="k", print="p"), row("b", key="k", print="p")]
    verdicts = await shard.add(*rows, queues=_QUEUES)
    assert sorted(each.word for each in verdicts) == ["foreign", "foreign"]
    assert {each.place for each in verdicts} == {0, 1}


async def test_emissions_whose_groups_cannot_be_read_are_refused(shard: Shard, planted: set[str]) -> None:
    await shard.store.groups.add(_BAD, "audit")
    await _spoil(shard, planted, "groups")
    verdicts = await shard.add(row("a"), row("b", queue=2), queues=_QUEUES)
    assert verdicts == [_foreign(shard, 0, "a", "groups")]
    assert await shard.members("ready") == ["b"]
    assert await shard.announce(queue=_BAD, group="audit") == 0, "a worker starts all the same"


async def test_a_group_whose_queue_is_foreign_gets_its_job_when_it_is_not_any_more(
    shard: Shard, planted: set[str]
) -> None:
    await shard.store.groups.add(QUEUE, "audit")
    await _spoil(shard, planted, "ready", queue=f"{QUEUE}@audit")
    assert await shard.add(row("a")) == []
    assert await shard.state("a@audit") == "delayed"
    await _mend(shard, planted)
    shard.now += 60_000
    answer = await shard.turn(queues=[turn_queue(), turn_queue(f"{QUEUE}@audit")])
    assert {each.id for each in answer.claims} == {"a", "a@audit"}


@pytest.mark.parametrize("kind", ["pools", "wake"])
async def test_emissions_whose_wakes_cannot_be_written_are_accepted(
    shard: Shard, planted: set[str], kind: str
) -> None:
    await shard.announce(queue=_BAD)
    await _spoil(shard, planted, kind, queue=_BAD if kind == "pools" else "pool")
    assert await shard.add(row("a"), row("b", queue=2), queues=_QUEUES) == []
    assert await shard.announce(queue=_BAD) == 0
    if kind == "pools":
        assert {each.id for each in (await shard.turn(queues=_TURN)).claims} == {"a", "b"}


async def test_a_turn_passes_over_a_foreign_queue_and_names_it(shard: Shard, planted: set[str]) -> None:
    await shard.add(row("b", queue=2), queues=_QUEUES)
    await _spoil(shard, planted, "ready")
    answer = await shard.turn(queues=_TURN)
    assert ([each.id for each in answer.claims], answer.foreign) == (["b"], [_BAD])
    await _mend(shard, planted)
    assert (await shard.turn(queues=_TURN)).foreign == []


@pytest.mark.parametrize("way", ["retried", "given back", "rescued", "promoted"])
async def test_a_job_that_cannot_go_back_to_its_queue_is_tried_again_each_minute(
    shard: Shard, planted: set[str], way: str
) -> None:
    delay = 5 if way == "promoted" else ""
    await shard.add(row("a", delay=delay), row("b", queue=2), queues=_QUEUES)
    answer = await shard.turn(queues=_TURN)
    claims = {each.id: each for each in answer.claims}
    await _spoil(shard, planted, "ready")
    if way == "rescued":
        shard.now += LEASE + 1
        await shard.rescue()
    elif way == "promoted":
        shard.now += 5
        await shard.turn(queues=_TURN)
    else:
        state, attempts = ("delayed", 1) if way == "retried" else ("waiting", "")
        await shard.turn(settle(claims["a"], answer.token, state, attempts=attempts), queues=_TURN)
    for _ in range(3):
        assert await shard.state("a") == "delayed"
        shard.now += 60_000
        await shard.turn(queues=_TURN)
    await _mend(shard, planted)
    shard.now += 60_000
    assert "a" in {each.id for each in (await shard.turn(queues=_TURN)).claims}


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
async def test_what_ends_and_cannot_be_listed_is_told_and_goes_after_a_week(
    shard: Shard, planted: set[str], state: str
) -> None:
    await shard.open_replies()
    await shard.add(row("a", body="x" * 300), row("b", queue=2), queues=_QUEUES)
    await _spoil(shard, planted, state)
    answer = await shard.turn(queues=_TURN)
    await shard.turn(*(settle(each, answer.token, state, "y" * 300) for each in answer.claims), queues=_TURN)
    ((*told,),) = await shard.replies()
    assert {each[0] for each in told} == {"a", "b"}
    assert await shard.members(state) == ["b"]
    for kind in ("job", "body", "result"):
        assert 0 < await shard.ttl(kind, "a") <= 7 * 86_400_000
        assert await shard.ttl(kind, "b") in (-1, -2)
    shard.now += 200_000
    assert await shard.sweep(SweepQueue(_BAD, 0, 0, 0, 0), SweepQueue(QUEUE, 0, 0, 0, 0)) == 1


async def test_what_cannot_be_parked_is_tried_again(shard: Shard, planted: set[str]) -> None:
    await shard.add(row("a"), queues=_QUEUES)
    await _spoil(shard, planted, "parked")
    answer = await shard.turn(queues=_TURN)
    await shard.turn(settle(answer.claims[0], answer.token, "parked"), queues=_TURN)
    assert await shard.state("a") == "delayed"
    assert await shard.announce(queue=_BAD, unpark=True) == 0


@pytest.mark.parametrize("kind", ["ready", "delayed"])
async def test_an_emission_that_would_supersede_is_refused_before_the_older_job_ends(
    shard: Shard, planted: set[str], kind: str
) -> None:
    older = {"ready": "delayed", "delayed": "ready"}[kind]
    delays = {"ready": {}, "delayed": {"delay": 50}}
    await shard.add(row("a", key="k", print="p", **delays[older]), queues=_QUEUES)
    await _spoil(shard, planted, kind)
    newer = row("b", key="k", print="p", meeting=2, **delays[kind])
    assert await shard.add(newer, queues=_QUEUES) == [_foreign(shard, 0, "b", kind)]
    assert await shard.state("a") == ("waiting" if older == "ready" else "delayed")
    await _mend(shard, planted)
    assert await shard.add(row("c", key="k", print="p"), queues=_QUEUES) == [
        AddVerdict(0, "joined", "a", "open", "")
    ]


async def test_delayed_emissions_into_a_foreign_set_are_refused(shard: Shard, planted: set[str]) -> None:
    await _spoil(shard, planted, "delayed")
    rows = [row("a", delay=5), row("b", queue=2, delay=5), row("c")]
    assert await shard.add(*rows, queues=_QUEUES) == [_foreign(shard, 0, "a", "delayed")]
    assert await shard.members("delayed") == ["b"]
    assert await shard.members("ready", _BAD) == ["c"]


async def test_a_retry_that_can_stand_nowhere_is_set_apart(shard: Shard, planted: set[str]) -> None:
    await shard.add(row("a"), queues=_QUEUES)
    answer = await shard.turn(queues=_TURN)
    await _spoil(shard, planted, "ready", "delayed")
    late = settle(answer.claims[0], answer.token, "delayed", attempts=1, delay=5)
    assert (await shard.turn(late, queues=_TURN)).lost == []
    assert await shard.state("a") == "failed"
    assert await shard.members("failed", _BAD) == ["a"]


async def test_the_job_of_a_group_that_can_stand_nowhere_is_failed_and_goes_after_a_week(
    shard: Shard, planted: set[str]
) -> None:
    await shard.store.groups.add(QUEUE, "audit")
    await _spoil(shard, planted, "ready", "delayed", queue=f"{QUEUE}@audit")
    assert await shard.add(row("a", body="x" * 300)) == []
    assert await shard.members("ready") == ["a"]
    assert await shard.state("a@audit") == "failed"
    for kind in ("job", "body"):
        assert 0 < await shard.ttl(kind, "a@audit") <= 7 * 86_400_000
