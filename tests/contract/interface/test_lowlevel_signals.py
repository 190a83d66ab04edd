"""Sleep and signals of the low-level API: jobs that wait without a worker, also in trees that stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from drivers.lowlevel import Mine, Reading

from eventbus import EventProvider, SignalRefused, UnknownJob, UsageError
from eventbus.lowlevel import Job, Member, Settle, Tree, complete, fail, suspend

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


@pytest.fixture
def provider(make_provider: MakeProvider) -> EventProvider:
    return make_provider()


async def test_a_job_sleeps_until_a_signal_that_its_entry_takes(provider: EventProvider) -> None:
    mine = Mine(provider)

    async def waits(job: Job) -> Settle:
        for each in job.signals:
            await mine.jobs.append(job, [f"{each.name}: {each.payload}"], taken=[each.id])
        return suspend(heard=job.heard) if len(job.journal) < 2 else complete(f'"{job.journal}"')

    mine.answers["t"] = waits
    async with provider, provider.worker():
        emission = mine.jobs.add(Tree("t", "mine", "x"), Reading())
        await emission.enqueued()
        await mine.jobs.signal("t", "verdict", "yes", signal="s1")
        await mine.jobs.signal("t", "verdict", "no", signal="s2")
        assert await emission == "\"['verdict: yes', 'verdict: no']\""
        with pytest.raises(
            SignalRefused, match="signal verdict was not sent to job t: the job has ended"
        ) as told:
            await mine.jobs.signal("t", "verdict")
        assert (told.value.job_id, told.value.reason) == ("t", "ended")
        with pytest.raises(UnknownJob):
            await mine.jobs.signal("never", "verdict")
        for name in ("", "two words", "tab\t"):
            with pytest.raises(UsageError, match="no name of a signal"):
                await mine.jobs.signal("t", name)


async def test_a_job_sleeps_for_a_time_and_no_worker_waits_for_it(
    provider: EventProvider, until: Until
) -> None:
    mine = Mine(provider)

    async def naps(job: Job) -> Settle:
        if not job.journal:
            await mine.jobs.append(job, ["asleep"])
            return suspend(delay_ms=300)
        return complete(str(job.claimed_ms - job.due_ms))

    mine.answers["t"] = naps
    async with provider, provider.worker() as worker:
        emission = mine.jobs.add(Tree("t", "mine", "x"), Reading())
        await until(lambda: mine.ran == ["t"] and worker.is_idle, "the job sleeps")
        assert 0 <= int(await emission) < 2000
    assert mine.ran == ["t", "t"]
    with pytest.raises(ValueError, match="nothing would wake the job"):
        suspend()


async def test_no_signal_at_the_instant_of_the_sleep_is_missed(provider: EventProvider) -> None:
    """1,000 signals to 20 jobs, each sent without regard to whether the job runs, sleeps or is just falling
    asleep.
    """
    mine = Mine(provider)
    jobs, each_gets = [f"t{n}" for n in range(20)], 50

    async def counts(job: Job) -> Settle:
        if job.signals:
            entries = [signal.payload for signal in job.signals]
            await mine.jobs.append(job, entries, taken=[signal.id for signal in job.signals])
        return (
            suspend(heard=job.heard) if len(job.journal) < each_gets else complete(str(len(set(job.journal))))
        )

    mine.answers |= dict.fromkeys(jobs, counts)
    async with provider, provider.worker():
        emissions = [mine.jobs.add(Tree(job, "mine", "x"), Reading()) for job in jobs]
        await asyncio.gather(*(emission.enqueued() for emission in emissions))

        async def send(job: str) -> None:
            for n in range(each_gets):
                await mine.jobs.signal(job, "n", str(n))

        await asyncio.gather(*(send(job) for job in jobs))
        assert await asyncio.gather(*emissions) == [str(each_gets)] * len(jobs)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"signal": "#"}, "no id of a signal"),
        ({"signal": "x" * 257}, "the id of a signal has 257 bytes; at most 256"),
        ({"payload": "\ud800"}, "UTF-8"),
        ({"payload": "x" * 1001}, "1001"),
    ],
)
async def test_a_signal_that_cannot_be_kept_is_refused_at_once(
    make_provider: MakeProvider, given: dict[str, Any], message: str
) -> None:
    provider = make_provider(max_payload=1000)
    async with provider:
        with pytest.raises(UsageError, match=message):
            await provider.jobs.signal("t", "name", **given)


async def test_a_member_hears_that_its_tree_stops(provider: EventProvider) -> None:
    mine = Mine(provider)
    has_begun = asyncio.Event()

    async def fails(job: Job) -> Settle:
        await has_begun.wait()
        return fail('{"type":"Oops","message":"no luck"}')

    async def works(job: Job) -> Settle:
        has_begun.set()
        word = "ok"
        while word == "ok":
            word = await mine.jobs.append(job, ["x"])
        with pytest.raises(SignalRefused, match="cancelled or rolled back"):
            await mine.jobs.signal("t/b", "go")
        return complete("1")

    mine.answers |= {"a": fails, "b": works}
    async with provider, provider.worker():
        members = [Member("t/a", "mine"), Member("t/b", "mine")]
        tree = Tree("t", "mine", "x", members, needs=["t/a", "t/b"], on="fail")
        with pytest.raises(RuntimeError, match="no luck"):
            await mine.jobs.add(tree, Reading())
        (outcome,) = await mine.jobs.outcomes(["t/b"])
        assert outcome.state == "completed"


async def test_a_member_that_falls_asleep_while_its_tree_stops_ends(provider: EventProvider) -> None:
    mine = Mine(provider)
    has_begun = asyncio.Event()

    async def fails(job: Job) -> Settle:
        await has_begun.wait()
        return fail('{"type":"Oops","message":"no luck"}')

    async def sleeps(job: Job) -> Settle:
        has_begun.set()
        while True:
            if (await mine.jobs.look("t")).root.get("stop"):
                break
            await asyncio.sleep(0.01)
        return suspend(heard=job.heard)

    async def undoes(job: Job) -> Settle:
        assert job.stop == "failed"
        await mine.jobs.checkpoint(job, acknowledges=True)
        return fail('"undone"')

    mine.answers |= {"a": fails, "b": sleeps, "t": undoes}
    async with provider, provider.worker():
        members = [Member("t/a", "mine"), Member("t/b", "mine")]
        with pytest.raises(RuntimeError, match="undone"):
            await mine.jobs.add(Tree("t", "mine", "x", members, needs=["t/a", "t/b"]), Reading())
        states = [(each.state, each.text) for each in (await mine.jobs.outcomes(["t/b"]))]
        assert states == [("cancelled", '{"type":"JobCancelled","message":"its tree stopped"}')]


@pytest.mark.parametrize("acknowledges", [True, False])
@pytest.mark.parametrize("cause", ["cancelled", "failed"])
async def test_a_root_that_undoes_may_sleep_until_a_signal(
    provider: EventProvider, until: Until, cause: str, acknowledges: bool
) -> None:
    mine = Mine(provider)
    is_undoing = asyncio.Event()

    async def root(job: Job) -> Settle:
        if not job.stop:
            return fail('"first"') if cause == "failed" else suspend(delay_ms=60_000)
        if acknowledges:
            await mine.jobs.checkpoint(job, acknowledges=True)
        if not job.signals:
            is_undoing.set()
            return suspend(heard=job.heard)
        await mine.jobs.checkpoint(job, acknowledges=True)
        return fail('"undone"')

    mine.answers["t"] = root
    async with provider, provider.worker():
        emission = mine.jobs.add(Tree("t", "mine", "x"), Reading())
        await emission.enqueued()
        if cause == "cancelled":
            await until(lambda: mine.ran == ["t"], "the job sleeps")
            assert await mine.jobs.cancel("t", "enough")
        await is_undoing.wait()
        await mine.jobs.signal("t", "approved")
        with pytest.raises(RuntimeError, match="undone"):
            await emission


async def test_the_end_of_a_tree_is_told_by_the_next_append(provider: EventProvider) -> None:
    mine = Mine(provider)
    is_running = asyncio.Event()

    async def works(job: Job) -> Settle:
        if job.stop:
            assert job.journal == ["before", "after"]
            await mine.jobs.checkpoint(job, acknowledges=True)
            return fail('"undone"')
        await mine.jobs.append(job, ["before"])
        try:
            is_running.set()
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            assert await mine.jobs.append(job, ["after"]) == "stopping"
            raise
        return complete("1")

    mine.answers["t"] = works
    async with provider, provider.worker():
        emission = mine.jobs.add(Tree("t", "mine", "x"), Reading())
        await is_running.wait()
        assert await mine.jobs.cancel("t", "enough")
        with pytest.raises(RuntimeError, match="undone"):
            await emission


async def test_a_job_that_runs_is_told_of_a_signal(provider: EventProvider) -> None:
    mine = Mine(provider)
    listens = asyncio.Event()

    async def hears(job: Job) -> Settle:
        found: list[str] = []
        while len(found) < 2:
            listens.set()
            await mine.jobs.listen(job, within=3600)
            found = [each.payload for each in await mine.jobs.hear(job)]
        return complete("+".join(found))

    mine.answers["t"] = hears
    async with provider, provider.worker(), asyncio.timeout(240):
        emission = mine.jobs.add(Tree("t", "mine", "x"), Reading())
        await listens.wait()
        await mine.jobs.signal("t", "n", "1")
        await mine.jobs.signal("t", "n", "2")
        assert await emission == "1+2"
        ended = Job("t", "w:1", "mine", "", 0, 0, 0, 0, 0)
        await mine.jobs.listen(ended, within=0.01)  # it does not run here, so nobody is told
