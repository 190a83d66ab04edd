"""The low-level API alone: a user's own system on jobs, trees and checkpoints, without workflows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from eventbus import EventProvider, UnknownJob
from eventbus.lowlevel import (
    Consumer,
    Job,
    JobClient,
    Member,
    Settle,
    Tree,
    WorkerServices,
    complete,
    describe,
    fail,
)

Work = Callable[[Job], Awaitable[Settle | None]]


class Reading:
    """Outcomes of these jobs are their texts."""

    name = "mine"
    queue = "mine"

    def decode_result(self, text: str) -> Any:
        return text

    def revive(self, state: str, text: str, job_id: str) -> Exception:
        return RuntimeError(f"{job_id} {state}: {text}")


class Hand:
    """A consumer that does what the test says."""

    base = queue = "mine"
    group = ""
    concurrency = 10
    follows: Sequence[str] = ("mine",)

    def __init__(self, host: WorkerServices, work: Work) -> None:
        self.retention = host.retention
        self._work = work

    def settled(self, job_id: str, state: str, text: str) -> None:
        pass

    def surround(self) -> None:
        pass

    def facts(self, job: Job) -> dict[str, Any]:
        return {}

    def failed(self, job: Job, settle: Settle) -> None:
        pass

    def timeout_of(self, job: Job) -> float | None:
        return None

    async def run(self, job: Job) -> Settle | None:
        return await self._work(job)

    def decide(self, job: Job, error: BaseException) -> Settle:
        return fail(describe(error, attempts=1))


class Mine:
    """An extension with one queue, and what it saw."""

    queues = ("mine",)

    def __init__(self, provider: EventProvider) -> None:
        self.jobs: JobClient = provider.jobs
        self.ran: list[str] = []
        self.answers: dict[str, Work] = {}
        provider.jobs.attach(self)

    def make_consumer(self, queue: str, services: WorkerServices) -> Consumer:
        return Hand(services, self._run)

    async def _run(self, job: Job) -> Settle | None:
        self.ran.append(job.id)
        work = self.answers.get(job.id.rpartition("/")[2])
        return complete(f'"{job.body}"') if work is None else await work(job)


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
