"""Fleets that die, on the real scripts and the real gate, with a clock that the test moves: who fails, and
how soon all goes on at full width.

These are the rows of the simulation by which the rule was chosen: leases of 10 s, workers that are back after
2 s.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from drivers.fleets import Fleet, Work
from drivers.shards import Shard

from eventbus.model import clock

MakeFleet = Callable[..., Fleet]


@pytest.fixture
def make_fleet(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeFleet]:
    fleets: list[Fleet] = []

    def make(workers: int, slots: int) -> Fleet:
        fleet = Fleet(shard, workers, slots)
        fleets.append(fleet)
        monkeypatch.setattr(clock, "monotonic", lambda: fleet.now)
        return fleet

    yield make
    for fleet in fleets:
        fleet.close()


async def _add(fleet: Fleet, count: int, seconds: float, *poisons: float) -> None:
    works = [Work(f"j{n:03}", seconds) for n in range(count)]
    works += [Work(f"poison{n}", 1e9, kills_after=after) for n, after in enumerate(poisons)]
    random.Random(1).shuffle(works)
    await fleet.add(works)


async def test_short_jobs_whose_fleet_was_killed_twice_are_over_after_one_lease(
    make_fleet: MakeFleet,
) -> None:
    fleet = make_fleet(2, 50)
    await _add(fleet, 60, 1.0)
    await fleet.run(kills=[0.5, 10.75])
    assert (fleet.failed, fleet.most_stalls, fleet.deaths) == ([], 2, 4)
    assert fleet.now < 10.75 + 10 + 2


@pytest.mark.parametrize(("count", "kills"), [(60, [60.0, 120.0]), (100, [60.0, 75.0])])
async def test_long_jobs_whose_fleet_was_killed_twice_run_at_full_width_after_one_lease(
    make_fleet: MakeFleet, count: int, kills: list[float]
) -> None:
    fleet = make_fleet(2, 50)
    await _add(fleet, count, 300.0)
    await fleet.run(kills=kills, until=lambda: fleet.deaths == 4 and fleet.width == count)
    assert fleet.now - kills[-1] < 10 + 2
    assert (fleet.failed, fleet.most_stalls) == ([], 2)


async def test_long_jobs_whose_fleet_was_killed_four_times_all_complete(make_fleet: MakeFleet) -> None:
    """They run in small groups until each has outlived its last end."""
    fleet = make_fleet(2, 50)
    await _add(fleet, 60, 300.0)
    await fleet.run(kills=[30.0, 60.0, 90.0, 120.0], until=lambda: fleet.deaths == 8 and fleet.width == 60)
    assert fleet.now < 120 + 200
    await fleet.run()
    assert (fleet.failed, len(fleet.completed)) == ([], 60)


@pytest.mark.parametrize("seconds", [5.0, 300.0])
@pytest.mark.parametrize("kills_after", [0.0, 1.0, 2.0, 60.0])
async def test_a_poison_among_a_hundred_fails_and_nobody_else(
    make_fleet: MakeFleet, seconds: float, kills_after: float
) -> None:
    fleet = make_fleet(2, 100)
    await _add(fleet, 100, seconds, kills_after)
    await fleet.run()
    assert fleet.failed == ["poison0"]
    assert len(fleet.completed) == 100
    assert 4 <= fleet.deaths <= 7


async def test_four_poisons_among_four_hundred_fail_and_nobody_else(make_fleet: MakeFleet) -> None:
    fleet = make_fleet(4, 50)
    await _add(fleet, 400, 20.0, 0.5, 0.5, 0.5, 0.5)
    await fleet.run()
    assert sorted(fleet.failed) == [f"poison{n}" for n in range(4)]
    assert len(fleet.completed) == 400
    assert fleet.deaths <= 23
