"""The audit in the server: entries, their outcomes, pages and filters."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import DefinitionError, EventProvider

MakeProvider = Callable[..., EventProvider]


async def _note(provider: EventProvider, outcome: str, **fields: str) -> str:
    replaced = fields.pop("replaced", "")
    told = {"actor": "ann", "action": "job.retry", "target": "j", "queue": "event.charge", **fields}
    return await provider.inspector.audit.note({**told, "outcome": outcome}, replaced=replaced)


async def test_the_outcome_of_an_action_takes_the_place_of_its_beginning_once(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    async with provider:
        cut_off = await _note(provider, "begun", target="lost")
        begun = await _note(provider, "begun")
        first = await _note(provider, "changed", replaced=begun)
        again = await _note(provider, "changed", replaced=begun)
        assert (bool(first), again) == (True, ""), "the call was sent again after a lost answer"
        found = (await provider.inspector.audit.list()).entries
        assert [(each.id, each.outcome) for each in found] == [(first, "changed"), (cut_off, "begun")]
        assert found[0].at_ms == int(first.partition("-")[0])


async def test_pages_and_filters_miss_none_and_repeat_none(make_provider: MakeProvider) -> None:
    provider = make_provider()
    async with provider:
        expected = list[str]()
        for n in range(30):
            told = {"actor": f"a{n % 2}", "kind": f"k{n}"}
            id_ = await _note(provider, "refused" if n % 3 else "changed", **told)
            if n % 3 and n % 2:
                expected.insert(0, id_)
        found, cursor = list[str](), None
        while True:
            page = await provider.inspector.audit.list(actor="a1", outcome="refused", limit=4, cursor=cursor)
            found += [each.id for each in page.entries]
            cursor = page.cursor
            if cursor is None:
                break
        assert found == expected
        whole: dict[str, Any] = {"action": "job.retry", "target": "event.charge", "limit": 1000}
        assert len((await provider.inspector.audit.list(**whole)).entries) == 30
        with pytest.raises(DefinitionError, match="expected the cursor of a page of the audit"):
            await provider.inspector.audit.list(cursor="x")


async def test_refusals_are_counted_and_push_no_action_out(make_provider: MakeProvider) -> None:
    provider = make_provider()
    async with provider:
        revealed = await _note(provider, "changed", actor="admin", action="payload.reveal")
        other = await _note(provider, "refused", actor="eve", action="job.cancel", detail="no right")
        last = ""
        for n in range(150):
            last = await _note(provider, "refused", actor="viewer", target=f"j{n}", detail="no right")
        found = (await provider.inspector.audit.list()).entries
        assert [(each.id, each.times) for each in found] == [(last, 150), (other, 1), (revealed, 1)]
        assert (found[0].target, found[0].detail) == ("j149", "no right (150 times)")
        assert found[1].detail == "no right"
        store = provider._life.running("look").store
        lengths = [
            await store._caller.command("XLEN", store.keys.shard_key(each)) for each in ("audit", "refusals")
        ]
        assert lengths == [1, 2]


async def test_a_refusal_after_an_hour_is_an_entry_of_its_own(make_provider: MakeProvider) -> None:
    provider = make_provider()
    async with provider:
        store = provider._life.running("look").store
        name = store.keys.shard_key("refusals")
        told = [
            "actor",
            "ann",
            "action",
            "job.retry",
            "target",
            "j",
            "queue",
            "event.charge",
            "outcome",
            "refused",
        ]
        old = int(time.time() * 1000) - 3_600_000
        await store._caller.command("XADD", name, f"{old}-1", *told)
        id_ = await _note(provider, "refused")
        again = await _note(provider, "refused")
        entries = (await provider.inspector.audit.list()).entries
        assert [(each.id, each.times) for each in entries] == [(again, 2), (f"{old}-1", 1)]
        assert id_ != again


async def test_an_action_that_began_and_was_refused_stays_among_the_actions(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    async with provider:
        ends = [await _note(provider, "refused", replaced=await _note(provider, "begun")) for _ in range(2)]
        entries = (await provider.inspector.audit.list()).entries
        assert [each.id for each in entries] == ends[::-1]


async def test_refusals_of_older_releases_are_read_where_they_stand(make_provider: MakeProvider) -> None:
    provider = make_provider()
    async with provider:
        store = provider._life.running("look").store
        await _note(provider, "changed", actor="c")
        await store._caller.command(
            "XADD", store.keys.shard_key("audit"), "*", "actor", "b", "outcome", "refused"
        )
        await _note(provider, "refused")
        entries = (await provider.inspector.audit.list(outcome="refused")).entries
        assert [(each.actor, each.times) for each in entries] == [("ann", 1), ("b", 1)]


async def test_it_keeps_the_newest_ten_thousand_of_ninety_days(make_provider: MakeProvider) -> None:
    provider = make_provider()
    async with provider:
        store = provider._life.running("look").store
        name = store.keys.shard_key("audit")
        for n in range(300):
            await store._caller.command("XADD", name, f"{n + 1}-1", "actor", "old")  # in 1970
        id_ = await _note(provider, "changed")
        # Servers cut off whole blocks of 100 entries.
        kept = await store._caller.command("XLEN", name)
        assert kept < 150
        assert (await provider.inspector.audit.list(limit=1)).entries[0].id == id_
        assert 0 < await store._caller.command("PTTL", name) <= 90 * 24 * 3600 * 1000
