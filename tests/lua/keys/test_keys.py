"""Idempotency keys: pointers to jobs, joined, moved and forgotten."""

from __future__ import annotations

from typing import Any

from drivers.shards import QUEUE, Shard, add_queue, row

from eventbus.store.scripting.script_rows import AddRow, AddVerdict

_DAY = 86_400_000


def _keyed(job: str, **given: Any) -> AddRow:
    return row(job, **{"key": "k", "print": "p", **given})


async def _pointer(shard: Shard, queue: str = QUEUE, key: str = "k") -> dict[str, str]:
    flat = await shard.command("HGETALL", shard.key("key", f"{queue}:{key}"))
    return dict(zip(flat[::2], flat[1::2], strict=True))


async def test_an_unknown_key_makes_a_job_and_points_to_it(shard: Shard) -> None:
    assert await shard.add(_keyed("a")) == []
    assert await _pointer(shard) == {"job": "a", "print": "p"}
    assert await shard.ttl("key", f"{QUEUE}:k") == -1


async def test_the_key_of_an_open_job_joins_it(shard: Shard) -> None:
    await shard.open_replies("other")
    await shard.add(_keyed("a"))
    assert await shard.add(_keyed("b"), emitter="other") == [AddVerdict(0, "joined", "a", "open", "")]
    assert await shard.state("b") is None
    await shard.run("completed", text="42")
    assert await shard.replies("other") == [[("a", "completed", 1, "42")]]


async def test_the_key_of_an_active_or_delayed_job_joins_it_too(shard: Shard) -> None:
    await shard.add(_keyed("a"), _keyed("d", key="later", delay=1000))
    await shard.turn()
    verdicts = await shard.add(_keyed("b"), _keyed("e", key="later"))
    assert [each[1:4] for each in verdicts] == [("joined", "a", "open"), ("joined", "d", "open")]


async def test_the_key_of_a_completed_job_brings_its_outcome_at_once(shard: Shard) -> None:
    await shard.add(_keyed("a"), _keyed("l", key="large"))
    await shard.run("completed", text='"r"')
    assert await shard.add(_keyed("b")) == [AddVerdict(0, "joined", "a", "completed", '"r"')]


async def test_a_key_outlives_its_record_with_a_large_outcome_too(shard: Shard) -> None:
    large = '"' + "r" * 9000 + '"'
    await shard.add(_keyed("a"))
    await shard.run("completed", text=large)
    assert "text" not in await _pointer(shard)
    assert (await shard.add(_keyed("b")))[0].text == large
    await shard.command("UNLINK", *(shard.key(kind, "a") for kind in ("job", "more", "result")))
    assert (await shard.add(_keyed("c")))[0][1:] == ("joined", "a", "completed", large)
    assert abs(await shard.ttl("outcome", "a") - await shard.ttl("key", f"{QUEUE}:k")) < 1000


async def test_a_key_outlives_its_record_with_a_small_outcome(shard: Shard) -> None:
    await shard.add(_keyed("a"))
    await shard.run("completed", text='"' + "r" * 8000 + '"')
    await shard.command("UNLINK", *(shard.key(kind, "a") for kind in ("job", "more", "result")))
    assert (await shard.add(_keyed("b")))[0].text == '"' + "r" * 8000 + '"'


async def test_the_key_of_a_failed_job_runs_again_and_points_to_the_new_one(shard: Shard) -> None:
    for first, second, state in (("a", "b", "failed"), ("b", "c", "cancelled")):
        await shard.add(_keyed(first))
        await shard.run(state, text="{}")
        assert await shard.add(_keyed(second)) == []
        assert await _pointer(shard) == {"job": second, "print": "p"}
        assert await shard.ttl("key", f"{QUEUE}:k") == -1  # open again: no expiry until it ends


async def test_on_request_the_recorded_failure_is_the_answer(shard: Shard) -> None:
    await shard.add(_keyed("a"))
    await shard.run("failed", text='{"type":"E"}')
    assert await shard.add(_keyed("b", meeting=1)) == [AddVerdict(0, "joined", "a", "failed", '{"type":"E"}')]


async def test_another_payload_under_the_same_key_is_named_and_the_first_wins(shard: Shard) -> None:
    await shard.add(_keyed("a"))
    assert await shard.add(_keyed("b", print="q")) == [AddVerdict(0, "other", "a", "open", "")]
    await shard.run("completed", text="1")
    assert await shard.add(_keyed("c", print="q")) == [AddVerdict(0, "other", "a", "completed", "1")]


async def test_one_key_twice_in_one_call_makes_one_job(shard: Shard) -> None:
    verdicts = await shard.add(_keyed("a"), _keyed("b"), _keyed("c", print="q"))
    assert verdicts == [AddVerdict(1, "joined", "a", "open", ""), AddVerdict(2, "other", "a", "open", "")]
    assert await shard.members("ready") == ["a"]


async def test_the_emissions_of_one_call_that_meet_a_failed_key_share_the_new_job(shard: Shard) -> None:
    await shard.add(_keyed("a"))
    await shard.run("failed")
    assert await shard.add(_keyed("b"), _keyed("c")) == [AddVerdict(1, "joined", "b", "open", "")]


async def test_a_repeated_joined_emission_gets_the_same_answer(shard: Shard) -> None:
    await shard.add(_keyed("a"))
    first = await shard.add(_keyed("b"))
    assert await shard.add(_keyed("b")) == first
    assert await shard.command("SMEMBERS", shard.key("waiters", "a")) == ["em"]


async def test_a_joined_emission_that_is_repeated_after_the_job_failed_begins_anew(shard: Shard) -> None:
    await shard.add(_keyed("a"))
    await shard.add(_keyed("b"))
    await shard.run("failed", text='"no"')
    assert await shard.add(_keyed("b")) == []  # as if it had been emitted after the failure
    assert (await _pointer(shard))["job"] == "b"


async def test_a_repeat_of_the_first_emission_makes_no_second_job_after_its_failure(shard: Shard) -> None:
    await shard.add(_keyed("a"))
    await shard.run("failed")
    await shard.add(_keyed("b"))
    assert await shard.add(_keyed("a")) == []
    assert (await _pointer(shard))["job"] == "b"
    assert await shard.state("a") == "failed"


async def test_a_key_whose_record_is_lost_is_free(shard: Shard) -> None:
    await shard.add(_keyed("a"))
    await shard.command("UNLINK", shard.key("job", "a"), shard.key("more", "a"))
    assert await shard.add(_keyed("b")) == []
    assert (await _pointer(shard))["job"] == "b"


async def test_keys_are_judged_for_each_group(shard: Shard) -> None:
    await shard.add(_keyed("a"))
    await shard.announce(group="audit")
    assert await shard.add(_keyed("b")) == [AddVerdict(0, "joined", "a", "open", "")]
    assert await shard.members("ready", f"{QUEUE}@audit") == ["b@audit"]
    assert (await _pointer(shard, f"{QUEUE}@audit"))["job"] == "b@audit"
    await shard.add(_keyed("c"))
    assert await shard.members("ready", f"{QUEUE}@audit") == ["b@audit"]


async def test_one_key_of_two_events_is_two_keys(shard: Shard) -> None:
    queues = [add_queue("event.a"), add_queue("event.b")]
    assert await shard.add(_keyed("a", queue=1), _keyed("b", queue=2), queues=queues) == []


async def test_a_key_goes_its_ttl_after_the_end_of_its_job(shard: Shard) -> None:
    await shard.add(_keyed("a"))
    await shard.run("completed")
    assert _DAY - 5000 < await shard.ttl("key", f"{QUEUE}:k") <= _DAY


async def test_the_end_of_an_older_job_leaves_the_key_of_a_newer_one_alone(shard: Shard) -> None:
    await shard.add(_keyed("a"))
    await shard.command("HSET", shard.key("key", f"{QUEUE}:k"), "job", "b", "print", "q")
    await shard.add(row("b", delay=5))
    await shard.run("completed")
    assert await _pointer(shard) == {"job": "b", "print": "q"}
