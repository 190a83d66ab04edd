"""The server's clock is set forward or back by any amount: live workers keep their jobs, and rescue
goes on.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from drivers.shards import LEASE, START, Shard, row
from drivers.tree_driver import TreeDriver, make_tree

_TICK = LEASE // 20
_HOUR = 3_600_000
_SIZES = [1, LEASE // 2 + 1, LEASE, _HOUR]
_MORE_SIZES = [900, LEASE // 2, LEASE - 1, 7 * LEASE, 24 * 365 * _HOUR]

#: Place on the line of time, in leases, and in which direction the clock is set then.
_COURSES = {
    "forward": [(2.0, 1)],
    "back": [(2.0, -1)],
    "forward and back": [(2.0, 1), (4.0, -1)],
    "forward and soon back": [(2.0, 1), (2.35, -1)],
    "back and forward": [(2.0, -1), (4.0, 1)],
    "back and soon forward": [(2.0, -1), (2.35, 1)],
    "forward twice": [(2.0, 1), (2.5, 1)],
    "back twice": [(2.0, -1), (2.5, -1)],
    "to and fro": [(2.0, 1), (2.5, -1), (3.0, -1), (3.5, 1), (4.0, 1)],
}


class _Fleet:
    """A worker that lives, with its rescuer, and one that dies; time passes in ticks, as the server's clock
    is set.
    """

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.tick = 0
        self.rescued: dict[str, float] = {}
        """Job -> when it was, in leases since the beginning."""
        self._leases: dict[str, tuple[str, str]] = {}

    async def claim(self, worker: str, job: str) -> None:
        """The worker takes the job; it renews it as long as it is named here."""
        await self.shard.add(row(job))
        answer = await self.shard.turn(worker=worker)
        assert [each.id for each in answer.claims] == [job]
        self._leases[worker] = (job, answer.token)

    async def renew(self, worker: str) -> None:
        lost = await self.shard.renew(self._leases[worker], worker=worker)
        assert lost == [], f"the job of {worker} was taken away at {self.tick / 20} leases"

    async def run(self, leases: float, *alive: str) -> None:
        """Let time pass; who is alive renews each 0.3 of a lease and looks each 0.4."""
        for _ in range(round(leases * 20)):
            self.tick += 1
            self.shard.now += _TICK
            if self.tick % 6 == 0:
                for worker in alive:
                    await self.renew(worker)
            if self.tick % 8 == 0:
                _, back, ended = await self.shard.rescue(is_heard=False)
                assert ended == []
                self.rescued |= dict.fromkeys(back, self.tick / 20)


@pytest.mark.parametrize(
    "size", [*_SIZES, *(pytest.param(each, marks=pytest.mark.again) for each in _MORE_SIZES)]
)
@pytest.mark.parametrize("course", _COURSES)
@pytest.mark.parametrize("dies", [1.0, 1.9, 2.1, 2.4, 3.0, 3.9, 4.4])
async def test_a_dead_workers_job_is_rescued_soon_and_a_living_ones_never(
    shard: Shard, size: int, course: str, dies: float
) -> None:
    fleet = _Fleet(shard)
    await fleet.claim("alive", "kept")
    await fleet.claim("mortal", "given")
    moments = sorted([(at, direction) for at, direction in _COURSES[course]] + [(dies, 0)])
    living = ["alive", "mortal"]
    await fleet.run(moments[0][0], *living)
    for (at, direction), (then, _) in pairwise([*moments, (moments[-1][0] + 4.0, 0)]):
        if at == dies and not direction:
            living.remove("mortal")
        shard.now += direction * size
        await fleet.run(then - at, *living)
    assert list(fleet.rescued) == ["given"]
    last = max(at for at, _ in moments)
    assert fleet.rescued["given"] <= last + 1.8, "in leases: the lease or the grace, and two looks"
    assert (await shard.record("given"))["stalls"] == "1"
    assert await shard.state("kept") == "active"


async def test_a_claim_made_while_the_clock_was_ahead_is_rescued_though_its_worker_never_renewed(
    shard: Shard,
) -> None:
    fleet = _Fleet(shard)
    await fleet.claim("alive", "kept")
    await fleet.run(1, "alive")
    shard.now += _HOUR
    await fleet.claim("mortal", "given")
    await fleet.run(0.2, "alive")
    shard.now -= _HOUR
    await fleet.run(7.5, "alive")  # nothing says what lease it had: a minute is taken for it
    assert list(fleet.rescued) == ["given"]


async def test_a_lease_that_is_longer_than_others_is_not_cut(shard: Shard) -> None:
    await shard.add(row("long"))
    answer = await shard.turn(worker="slow")
    lease = 30 * LEASE

    async def renew() -> list[str]:
        lost, *_ = await shard.script("renew", [shard.now, "slow", 0, lease, 0, 0, 1, "long", answer.token])
        return lost

    assert await renew() == []
    for _ in range(20):
        shard.now += LEASE // 4
        await shard.rescue()
        assert await shard.lease_end("slow") == START + lease
    shard.now -= _HOUR
    await shard.rescue()
    assert await shard.lease_end("slow") == shard.now + lease, "one lease of its own"
    assert await renew() == []


async def test_a_grace_of_somebody_with_a_longer_lease_holds(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.turn()
    await shard.renew()
    shard.now += 100 * LEASE
    await shard.script("renew", [shard.now, "slow", 0, 30 * LEASE, 0, 0, 0])  # the first one after the gap
    for _ in range(4 * 30 - 1):
        shard.now += LEASE // 4
        assert (await shard.rescue(is_heard=False))[1] == []
    shard.now += LEASE // 4
    assert (await shard.rescue(is_heard=False))[1] == ["a"]


async def test_of_many_leases_that_lie_ahead_all_are_rescued(shard: Shard) -> None:
    jobs = [f"j{n:03}" for n in range(350)]
    await shard.add(*(row(job) for job in jobs))
    shard.now += _HOUR
    await shard.renew(worker="w")
    await shard.turn(worker="w")
    shard.now -= _HOUR
    rescued: list[str] = []
    for _ in range(10):
        rescued += (await shard.rescue(limit=100))[1]
        shard.now += LEASE // 4
    assert sorted(rescued) == jobs


@pytest.mark.parametrize("size", [1, LEASE, _HOUR])
async def test_chores_of_trees_go_on_when_the_clock_is_set_back(driver: TreeDriver, size: int) -> None:
    await driver.add(make_tree({f"m{n}": "" for n in range(350)}))
    await driver.claim(want=1)
    await driver.cancel()
    await driver.end("cancelled", *list(driver.held), text="{}")
    assert await driver.shard.members("due", "") == ["stop:f"]
    driver.shard.now -= size
    await driver.do_chores()
    assert set((await driver.states()).values()) == {"cancelled", "waiting"}
    await driver.undo(cause="cancelled")


async def test_a_chore_waits_its_turn_behind_those_before_it(shard: Shard) -> None:
    """Each call takes the first twenty, although jobs that are not finished come back."""
    driver = TreeDriver(shard, repeats=False)
    for n in range(30):
        await driver.add(make_tree({f"m{i}": "" for i in range(120)}, root=f"f{n:02}"))
    for n in reversed(range(30)):
        await driver.cancel(f"f{n:02}")
    waiting = await shard.members("due", "")
    assert waiting == [f"stop:f{n:02}" for n in reversed(range(30))]
    await driver.turn(want=0)
    left = await shard.members("due", "")
    assert left[:10] == waiting[20:]
