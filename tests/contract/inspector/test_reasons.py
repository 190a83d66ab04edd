"""Why a job is in its state, as `inspector.jobs.why` says it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from eventbus import Event, EventBusError, EventProvider, Limit, Retry, UnknownJob
from eventbus.admin.controls import QueueControls
from eventbus.admin.jobs.reasons import ReasonKind, StateReason, WaitFacts, explain
from eventbus.engine.rescuer import Rescuer
from eventbus.store.connection.connector import make_connector
from eventbus.store.diagnostics import Checkup, Finding
from eventbus.store.scripting.script_rows import AnnounceQueue
from eventbus.store.store import Store

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
QUEUE = QueueControls(queue="event.a", workers=2, waiting=3)


async def test_each_reason_gives_way_to_the_next_one(make_provider: MakeProvider) -> None:
    """A job that is paused, unserved, over a limit, in its turn, running, and at its end."""
    provider = make_provider()
    first, go_on = asyncio.Event(), asyncio.Event()

    @provider.on("a")
    async def handle(_: int) -> None:
        first.set()
        await go_on.wait()

    async with provider:
        await provider.pause("a", reason="audit", by="ann")
        emissions = [provider.emit("a", n) for n in range(2)]
        for emission in emissions:
            await emission.enqueued()
        ids = [emission.job_id for emission in emissions]

        async def why(job: str) -> StateReason:
            return await provider.inspector.jobs.why(job)

        reason = await why(ids[1])
        assert (reason.kind, reason.by, reason.until_ms) == ("paused", "ann", 0)
        assert reason.since_ms > 0
        assert reason.text.startswith("event.a is paused by ann since 20")
        assert reason.text.endswith(" UTC: audit.")
        await provider.set_limit("a", Limit(at_once=1))
        await provider.resume("a")
        assert await why(ids[1]) == StateReason(kind="unserved", text="No worker serves event.a.")
        async with provider.worker() as worker:
            await asyncio.wait_for(first.wait(), 240)
            reason = await why(ids[1])
            assert (reason.kind, reason.by, reason.holders) == ("limit", worker.id, [ids[0]])
            assert reason.text.startswith(
                f"The limit of event.a is 1 at once, and 1 run. Job {ids[0]} has held it for "
            )
            assert reason.text.endswith(f" s, on worker {worker.id}.")
            reason = await why(ids[0])
            assert (reason.kind, reason.by) == ("running", worker.id)
            assert reason.text.startswith(f"Worker {worker.id} has run it since 20")
            assert reason.since_ms > 0
            go_on.set()
            await asyncio.gather(*emissions)
        reason = await why(ids[0])
        assert (reason.kind, reason.text) == ("ended", "It has ended as completed.")
        assert reason.since_ms > 0


@pytest.mark.parametrize("how", ["concurrency", "key", "superseded"])
async def test_a_job_behind_a_stuck_one_names_who_holds_its_place_and_for_how_long(
    make_provider: MakeProvider, how: str
) -> None:
    provider, began, go_on = make_provider(), asyncio.Event(), asyncio.Event()
    by_key = Limit(by=str, each=1) if how == "key" else None
    event = Event("a", payload=str, limit=by_key)

    @provider.on(event, concurrency=1 if how == "concurrency" else 10)
    async def handle(_: str) -> None:
        began.set()
        await go_on.wait()

    async with provider, provider.worker() as worker:
        options: dict[str, Any] = {"idempotency_key": "k", "keep_last": True} if how == "superseded" else {}
        stuck = provider.emit(event, "acme", **options)
        await asyncio.wait_for(began.wait(), 240)
        other = provider.emit(event, "other", reply=False) if how == "key" else None
        behind = provider.emit(event, "acme", **options)
        await behind.enqueued()
        reason = await provider.inspector.jobs.why(behind.job_id)
        while not reason.holders:  # the claim that meets a key lets it rest
            reason = await provider.inspector.jobs.why(behind.job_id)
        assert (reason.by, reason.holders) == (worker.id, [stuck.job_id])
        assert f"Job {stuck.job_id} has held it for " in reason.text
        assert f" s, on worker {worker.id}." in reason.text
        assert reason.since_ms > 0
        go_on.set()
        await asyncio.gather(stuck, behind, *([] if other is None else [other]))


async def test_a_worker_that_does_not_answer_is_named_with_its_lag(
    make_provider: MakeProvider, store: Store, prefix: str
) -> None:
    """As after 60 s in which code blocked its event loop; the first one died, the last one stops in order."""
    async with make_provider() as provider:
        now = await store.inspection.roster.now()
        facts = ["name", "shop", "host", "box", "pid", 7]
        row = [AnnounceQueue("event.a", "event.a", "")]
        for worker, said in (("dead", 90), ("blocked", 60), ("ending", 60)):
            await store.announce(
                pool="p", worker=worker, queues=row, unpark=False, facts=facts, now=now - said * 1000
            )
        leases = store.open_leases(timeout=5)
        for worker, lag in (("blocked", 35_000), ("ending", 2)):
            leases.renew([], worker=worker, calls=(0, 0), lease_ms=10_000, lag_ms=lag)
        leases.close()
        emission = provider.emit("a", 1, reply=False)
        await emission
        reason = await provider.inspector.jobs.why(emission.job_id)
        assert (reason.kind, reason.by, reason.since_ms) == ("unserved", "blocked", now - 60_000)
        assert reason.text == (
            "No worker serves event.a now: its worker blocked has not answered for 60 s; last lag 35 s: "
            "code blocks its event loop, and 1 other neither."
        )
        (queue,) = await provider.inspector.queues.list("a")
        assert [(each.worker, each.lag_ms, each.is_blocked) for each in queue.silent] == [
            ("blocked", 35_000, True),
            ("dead", 0, False),
        ]
        assert queue.silent[0].text.startswith("Its worker blocked has not answered for ")
        (summary,) = [each for each in await _check(provider) if each.subject == "queues"]
        assert "event.a (1 waiting; its worker blocked has not answered for " in summary.said
        assert "look at the worker" in summary.remedy


async def _check(provider: EventProvider) -> list[Finding]:
    settings = provider.settings
    connector = make_connector(settings.url)
    try:
        checkup = Checkup(connector, prefix=settings.prefix, name="check")
        return await checkup.run([], allow_eviction=False, replicated=False)
    finally:
        await connector.aclose()


async def test_a_job_whose_worker_renews_no_lease_is_not_told_as_one_that_runs(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def rescue_nothing(_: Rescuer) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Rescuer, "run", rescue_nothing)
    provider, began = make_provider(lease=0.5, grace=0), asyncio.Event()

    @provider.on("a")
    async def handle(_: int) -> None:
        began.set()
        await asyncio.Event().wait()

    async with provider, provider.worker() as worker:
        emission = provider.emit("a", 1, reply=False)
        await asyncio.wait_for(began.wait(), 240)
        engine: Any = worker._worker  # pyright: ignore[reportPrivateUsage]
        await engine.leases.aclose()  # as if its process was killed
        reasons = [await provider.inspector.jobs.why(emission.job_id)]
        async with asyncio.timeout(240):
            while reasons[-1].kind != "orphaned":
                await asyncio.sleep(0.05)
                reasons.append(await provider.inspector.jobs.why(emission.job_id))
        assert reasons[0].kind == "running"
        assert reasons[-1].by == worker.id
        assert reasons[-1].since_ms > 0
        assert "The worker may be dead." in reasons[-1].text


async def test_a_delayed_job_says_when_it_is_due_and_one_that_failed_that_it_did(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()

    @provider.on("a", retry=Retry(attempts=2, delay="1 hour"))
    async def handle(_: int) -> None:
        raise ValueError("no")

    async with provider:
        late = provider.emit("a", 1, delay="2 hours", reply=False)
        await late
        report = await provider.inspector.jobs.get(late.job_id)
        reason = await provider.inspector.jobs.why(late.job_id)
        assert (reason.kind, reason.until_ms) == ("delayed", report.due_ms)
        async with provider.worker():
            failing = provider.emit("a", 2, reply=False)
            await failing
            async with asyncio.timeout(240):
                while (await provider.inspector.jobs.why(failing.job_id)).kind != "retry":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        reason = await provider.inspector.jobs.why(failing.job_id)
        assert reason.kind == "retry"
        assert reason.text.startswith("It has failed once. Its next attempt is due at 20")
        assert reason.until_ms > 0


async def test_a_job_that_its_limit_key_holds_back_names_the_key(make_provider: MakeProvider) -> None:
    event = Event("a", payload=str, limit=Limit(by=str, each=1))
    provider = make_provider()
    began, go_on = asyncio.Event(), asyncio.Event()

    @provider.on(event)
    async def handle(_: str) -> None:
        began.set()
        await go_on.wait()

    async with provider, provider.worker():
        emissions = [provider.emit(event, tenant) for tenant in ("acme & co", "acme & co", "acme & co")]
        for emission in emissions:
            await emission.enqueued()
        await asyncio.wait_for(began.wait(), 240)
        reason = await provider.inspector.jobs.why(emissions[1].job_id)
        while reason.key == "":  # the claim that meets the key again lets it rest
            reason = await provider.inspector.jobs.why(emissions[1].job_id)
        assert (reason.kind, reason.key) == ("limit", "acme & co")
        assert reason.holders == [emissions[0].job_id]
        assert reason.text.startswith(
            "Limit key 'acme & co' of event.a runs as many jobs as it may, which is 1 at once. "
            f"Job {emissions[0].job_id} has held it for "
        )
        go_on.set()
        await asyncio.gather(*emissions)


async def test_a_job_that_a_rate_holds_back_says_until_when(make_provider: MakeProvider) -> None:
    keyed = Event("keyed", payload=str, limit=Limit(by=str, each_rate="1/1h"))
    plain = Event("plain", payload=str, limit=Limit(rate="1/1h"))
    provider = make_provider()
    for event in (keyed, plain):
        provider.on(event)(lambda tenant: None)
    async with provider, provider.worker():
        for event, key in ((keyed, "acme"), (plain, "")):
            await provider.emit(event, "acme")
            second = provider.emit(event, "acme", reply=False)
            await second.enqueued()
            reason = await provider.inspector.jobs.why(second.job_id)
            while reason.until_ms == 0:
                reason = await provider.inspector.jobs.why(second.job_id)
            assert (reason.kind, reason.key) == ("limit", key)
            assert reason.until_ms > (await provider.inspector.jobs.get(second.job_id)).created_ms
            assert " job " in reason.text


@pytest.mark.parametrize("job", ["none", "", "a b", "x" * 600])
async def test_a_job_that_is_not_known_is_an_error(make_provider: MakeProvider, job: str) -> None:
    async with make_provider() as provider:
        with pytest.raises(UnknownJob):
            await provider.inspector.jobs.why(job)


async def test_a_provider_that_is_not_started_says_so(make_provider: MakeProvider) -> None:
    with pytest.raises(EventBusError, match="start"):
        await make_provider().inspector.jobs.why("j")


@pytest.mark.parametrize(
    ("fields", "queue", "kind", "text"),
    [
        ({"state": "failed", "ended": "5000"}, None, "ended", "It has ended as failed."),
        ({"state": "cancelled"}, None, "ended", "It has ended as cancelled."),
        (
            {"state": "delayed", "due": "1000", "after": "j7", "ripe": "1"},
            None,
            "job-before",
            "once job j7 of its key",
        ),
        (
            {"state": "delayed", "due": "1000", "listens": "1"},
            None,
            "asleep",
            "a signal, until 1970-01-01 00:00:01 UTC",
        ),
        ({"state": "delayed", "due": "1000", "attempts": "3"}, None, "retry", "It has failed 3 times."),
        ({"state": "delayed", "due": "9" * 20}, None, "delayed", "It is due at 9999"),
        ({"state": "waiting-children"}, None, "children", "the jobs that it needs."),
        (
            {"state": "waiting-children", "wakes": "1000"},
            None,
            "children",
            "until 1970-01-01 00:00:01 UTC at most.",
        ),
        ({"state": "waiting-children", "listens": "1"}, None, "asleep", "It waits for a signal."),
        ({"state": "parked", "why": "no version 2"}, None, "parked", "No worker can run it: no version 2."),
        ({"state": "waiting"}, QUEUE, "in-line", "3 jobs wait in event.a, and 2 workers serve it."),
        ({"state": "waiting", "stalls": "4", "spared": "1"}, QUEUE, "suspect", "died three times or more"),
        ({"state": "waiting", "stalls": "4", "spared": "2"}, QUEUE, "in-line", "in its turn"),
        (
            {"state": "waiting"},
            QueueControls(queue="event.a", workers=1, waiting=1, running=4, limit=Limit(at_once=5)),
            "in-line",
            "1 job waits in event.a, and 1 worker serves it.",
        ),
        (
            {"state": "waiting"},
            QueueControls(queue="event.a", workers=1, waiting=1, limit=Limit(rate="1/1m")),
            "limit",
            "whose limit may let it start later",
        ),
        ({"state": "later"}, None, "unknown", "'later'"),
        ({}, None, "unknown", "''"),
    ],
)
def test_every_state_has_a_reason(
    fields: dict[str, str], queue: QueueControls | None, kind: str, text: str
) -> None:
    reason = explain(fields, "w", WaitFacts(queue))
    assert reason.kind == kind
    assert reason.kind in get_args(ReasonKind)
    assert text in reason.text
    assert reason.text.endswith(".") or kind == "unknown"


def test_the_page_has_every_kind() -> None:
    page = (Path(__file__).parents[3] / "docs/operations.md").read_text()
    rows = page.partition("| `kind` | the job |\n|---|---|\n")[2].partition("\n\n")[0].splitlines()
    assert {row.split("`")[1] for row in rows} == set(get_args(ReasonKind))
