"""The low-level API alone: a user's own system on jobs, trees and checkpoints, without workflows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from drivers.lowlevel import Mine, Reading

from eventbus import EventProvider, UnknownJob
from eventbus.lowlevel import Job, Member, Settle, Tree, complete, fail
from eventbus.model import clock

pytestmark = pytest.mark.virtual


async def _fails(job: Job) -> Settle:
    return fail('{"type":"Oops","message":"no luck"}')


@pytest.fixture
def provider(make_provider: Callable[..., EventProvider]) -> EventProvider:
    return make_provider()


async def test_members_run_after_what_they_need_and_the_root_at_the_end(provider: EventProvider) -> None:
    mine = Mine(provider)
    async with provider, provider.worker():
        members = [
            Member("t/a", "mine"),
            Member("t/b", "mine", needs=["t/a"], body="own"),
            Member("t/c", "mine", needs=["t/a"]),
        ]
        tree = Tree("t", "mine", "shared", members, needs=["t/b", "t/c"])
        assert await mine.jobs.add(tree, Reading()) == '"shared"'
        assert mine.ran[0] == "t/a"
        assert mine.ran[-1] == "t"
        outcomes = await mine.jobs.outcomes(["t/a", "t/b", "never"])
        assert [(each.state, each.text) for each in outcomes] == [
            ("completed", '"shared"'),
            ("completed", '"own"'),
            ("unknown", ""),
        ]


async def test_a_member_and_a_root_with_needs_honour_their_delays(provider: EventProvider) -> None:
    mine = Mine(provider)
    started: dict[str, float] = {}

    async def note(job: Job) -> Settle:
        started[job.id] = clock.now()
        return complete('""')

    mine.answers.update(dict.fromkeys("abct", note))
    async with provider, provider.worker():
        members = [
            Member("t/a", "mine"),
            Member("t/b", "mine", needs=["t/a"], delay=0.3),
            Member("t/c", "mine", needs=["t/a"]),
        ]
        added = clock.now()
        await mine.jobs.add(Tree("t", "mine", "x", members, needs=["t/b", "t/c"], delay=0.6), Reading())
        assert mine.ran == ["t/a", "t/c", "t/b", "t"]
        assert started["t/b"] - added >= 0.299  # the server counts whole ms
        assert started["t"] - added >= 0.599


@pytest.mark.parametrize(("up", "ran"), [("", ["t/a"]), ("ignore", ["t/a", "t"])])
async def test_a_failed_child_fails_its_parent_unless_it_says_otherwise(
    provider: EventProvider, up: Any, ran: list[str]
) -> None:
    mine = Mine(provider)
    mine.answers["a"] = _fails
    async with provider, provider.worker():
        emission = mine.jobs.add(
            Tree("t", "mine", "x", [Member("t/a", "mine", up=up)], needs=["t/a"], on="fail"), Reading()
        )
        if up == "ignore":
            await emission
        else:
            with pytest.raises(RuntimeError, match=r"t failed: .*ChildFailed.* failed: no luck"):
                await emission
    assert mine.ran == ran


async def test_a_running_job_adds_children_and_waits_for_them_in_the_call_that_saves(
    provider: EventProvider,
) -> None:
    mine = Mine(provider)

    async def parent(job: Job) -> Settle | None:
        page = await mine.jobs.look(job.id)
        if "begun" not in page.saved:
            children = [Member(f"t/{n}", "mine", body=str(n)) for n in range(3)]
            ids = [each.id for each in children]
            assert (
                await mine.jobs.spawn(job, children, tree="t", awaited=ids, saved={"begun": "1"}) == "waiting"
            )
            return None
        found = await mine.jobs.outcomes([each.id for each in page.members])
        return complete(f"[{','.join(each.text or '' for each in found)}]")

    mine.answers["t"] = parent
    async with provider, provider.worker():
        assert await mine.jobs.add(Tree("t", "mine", "x"), Reading()) == '["0","1","2"]'
    assert mine.ran == ["t", "t/0", "t/1", "t/2", "t"]


async def test_a_tree_is_cancelled_whole_and_its_root_told_where_it_deals_with_that(
    provider: EventProvider,
) -> None:
    mine = Mine(provider)
    told: list[str] = []

    async def root(job: Job) -> Settle:
        told.append(job.stop)
        assert await mine.jobs.checkpoint(job, {"undone": "all"}, acknowledges=True)
        return fail('"undone"')

    mine.answers["t"] = root
    async with provider:
        tree = Tree("t", "mine", "x", [Member("t/a", "mine")], needs=["t/a"])
        emission = mine.jobs.add(tree, Reading())
        await emission.enqueued()
        assert await mine.jobs.cancel("t", "enough")
        assert not await mine.jobs.cancel("t", "enough again")
        async with provider.worker():
            with pytest.raises(RuntimeError, match='t cancelled: "undone"'):
                await emission
        page = await mine.jobs.look("t")
        assert [each.state for each in page.members] == ["cancelled"]
        assert page.saved == {"undone": "all"}
        with pytest.raises(UnknownJob):
            await mine.jobs.cancel("never", "")
    assert told == ["cancelled"]
    assert mine.ran == ["t"]


async def test_a_workers_queues_may_leave_those_of_guests_out(provider: EventProvider) -> None:
    Mine(provider)

    @provider.on("ping")
    async def pong(n: Any) -> Any:
        return n

    async with provider, provider.worker(queues=["ping"]) as runner:
        assert runner.queues == ["event.ping"]
    async with provider, provider.worker() as runner:
        assert runner.queues == ["event.ping", "mine"]
