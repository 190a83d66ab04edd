"""Emissions of an event with many groups: each group hears each of them, in calls that stay small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eventbus import EventProvider
from eventbus.store.scripting.packing import AddRows
from eventbus.store.store import Store

GROUPS = 24


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each add had."""
    counts: list[int] = []
    add = Store.add

    def count(store: Store, emitter: str, queues: Any, rows: AddRows, **given: Any) -> Any:
        counts.append(len(rows))
        return add(store, emitter, queues, rows, **given)

    monkeypatch.setattr(Store, "add", count)
    return counts


@pytest.mark.parametrize("keyed", [False, True])
async def test_each_group_hears_each_emission_once_and_calls_are_cut_to_200_jobs(
    make_provider: Callable[..., EventProvider], calls: list[int], until: Callable[..., Any], keyed: bool
) -> None:
    heard: dict[str, list[int]] = {}
    provider = make_provider()

    def subscribe(name: str) -> None:
        @provider.on("tell", group=name)
        async def hear(number: int) -> None:
            heard.setdefault(name, []).append(number)

    for number in range(GROUPS - 1):
        subscribe(f"g{number}")

    @provider.on("tell")
    async def answer(number: int) -> int:
        return number

    async with provider, provider.worker():
        emissions = [
            provider.emit("tell", number, idempotency_key=f"k{number}" if keyed else None)
            for number in range(300)
        ]
        assert [await each for each in emissions] == list(range(300))
        first = len(calls)
        assert sum(calls) < 300 + 4 * 200, "a batch under way when the groups are not known yet is sent twice"
        assert all(count <= 200 // GROUPS for count in calls[8:])
        again = [provider.emit("tell", 300 + number) for number in range(100)]
        assert [await each for each in again] == list(range(300, 400))
        assert sum(calls[first:]) == 100, "now they are known, and no row is sent twice"
        await until(lambda: sum(map(len, heard.values())) == 400 * (GROUPS - 1), "all groups heard all")
    assert {name: sorted(each) for name, each in heard.items()} == {
        f"g{number}": list(range(400)) for number in range(GROUPS - 1)
    }
