"""Metrics: what a program with an OpenTelemetry SDK sees of emissions, jobs, queues and workers, and that
others pay nothing.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from drivers.telemetry.metering import Meters

from eventbus import EventProvider, HandlerError, Later, QueueFull, Retry, StoreUnavailable
from eventbus.engine.reporting import gauge_reader
from eventbus.engine.reporting.job_meter import note_stall
from eventbus.telemetry.gauge_board import GaugeBoard, boards, read_rows
from eventbus.telemetry.metrics import METRICS, QUEUE_GAUGES, instruments

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


@pytest.fixture
def meters(monkeypatch: pytest.MonkeyPatch) -> Meters:
    """Set an SDK for the test."""
    return Meters(monkeypatch)


async def test_emissions_and_runs_are_counted_by_event_group_and_outcome(
    make_provider: MakeProvider, meters: Meters
) -> None:
    provider = make_provider(retry=Retry(attempts=2, delay=0))

    @provider.on("good")
    async def good(value: int) -> int:
        return value

    @provider.on("good", group="audit")
    async def audit(_: Any) -> None: ...

    @provider.on("bad")
    async def bad(_: Any) -> None:
        raise ValueError("no")

    async with provider.worker() as runner:
        await asyncio.gather(*provider.emit_many("good", range(5)))
        with pytest.raises(HandlerError):
            await provider.emit("bad")
        await runner.wait_drained(provider.flush)
    name = "messaging.destination.name"
    assert meters.by("messaging.client.sent.messages", name) == {"good": 5, "bad": 1}
    group = "messaging.consumer.group.name"
    both = {("good", "default"): 5, ("good", "audit"): 5, ("bad", "default"): 2}
    assert meters.by("messaging.client.consumed.messages", name, group) == both
    spent = meters.by("messaging.process.duration", name, group, "error.type")
    assert spent == {
        ("good", "default", ""): 5, ("good", "audit", ""): 5, ("bad", "default", "ValueError"): 2,
    }  # fmt: skip
    assert meters.by("eventbus.job.attempts", "eventbus.queue", "eventbus.outcome") == {
        ("event.good", "completed"): 5,
        ("event.good@audit", "completed"): 5,
        ("event.bad", "retried"): 1,
        ("event.bad", "failed"): 1,
    }
    waits = {"event.good": 5, "event.good@audit": 5, "event.bad": 2}
    assert meters.by("eventbus.job.wait.duration", "eventbus.queue") == waits
    operations = meters.by("messaging.client.operation.duration", "messaging.operation.name", name)
    assert operations["send", "good"] >= 1
    assert operations["turn", ""] >= 1


async def test_an_emission_that_the_server_refused_has_the_type_of_its_error(
    make_provider: MakeProvider, meters: Meters
) -> None:
    async with make_provider(max_waiting=1) as provider:
        await provider.emit("a", reply=False).enqueued()
        with pytest.raises(QueueFull):
            await provider.emit("a", reply=False).enqueued()
    assert meters.by("messaging.client.sent.messages", "error.type", "messaging.destination.name") == {
        ("", "a"): 1,
        ("QueueFull", "a"): 1,
    }


async def test_every_point_has_the_attributes_of_its_metric_and_no_other(
    make_provider: MakeProvider, meters: Meters, until: Until
) -> None:
    provider = make_provider(retry=1)

    @provider.on("a")
    async def a(value: int) -> None:
        if value:
            raise ValueError("no")

    async with provider.worker():
        await provider.emit("a", 0)
        with pytest.raises(HandlerError):
            await provider.emit("a", 1)
        await until(lambda: meters.points("eventbus.queue.jobs"), "the queues were read")
        found = meters.read()
    assert found.keys() <= METRICS.keys()
    for name, metric in found.items():
        known = METRICS[name]
        assert (metric.unit, metric.description) == (known.unit, known.description)
        for point in metric.data.data_points:
            assert {*(point.attributes or {})} <= {*known.attributes}, name
            if known.bounds:
                assert tuple(point.explicit_bounds) == known.bounds  # type: ignore[union-attr]


async def test_one_worker_reads_the_queues_of_the_fleet_also_those_that_nobody_serves(
    make_provider: MakeProvider, meters: Meters, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[tuple[str, bool]] = []
    run_once = gauge_reader.GaugeReader.run_once

    async def noted(self: gauge_reader.GaugeReader) -> bool:
        is_reader = await run_once(self)
        reads.append((self._worker, is_reader))
        return is_reader

    monkeypatch.setattr(gauge_reader.GaugeReader, "run_once", noted)
    defaults = gauge_reader.GaugeReader.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "interval", 0.05)
    first, second, lone = (make_provider() for _ in range(3))
    for provider in (first, second):
        provider.on("a")(lambda _: None)
    async with lone:
        await asyncio.gather(*(each.enqueued() for each in lone.emit_many("nobody", [1, 2], reply=False)))
        await lone.emit("nobody", 3, delay="1h", reply=False).enqueued()
        async with first.worker(), second.worker():
            await until(lambda: len({worker for worker, _ in reads}) == 2, "both workers asked")
            await until(
                lambda: (
                    meters.by("eventbus.queue.workers", "eventbus.queue") == {"event.nobody": 0, "event.a": 2}
                ),
                "the workers were seen",
            )
            lengths = meters.by("eventbus.queue.jobs", "eventbus.queue", "eventbus.state")
            ages = meters.by("eventbus.queue.age", "eventbus.queue")
    assert len({worker for worker, is_reader in reads if is_reader}) == 1
    assert (lengths["event.nobody", "waiting"], lengths["event.nobody", "delayed"]) == (2, 1)
    assert ages["event.a"] == 0 < ages["event.nobody"] < 60


async def test_the_right_to_read_stays_with_its_worker_and_passes_on_when_it_ends(
    make_provider: MakeProvider, admin: Callable[..., Any]
) -> None:
    async with make_provider() as provider:
        store = provider._life.store
        assert store is not None
        take = store.presence.take_reading
        assert await take("one", hold_ms=60_000)
        assert await take("one", hold_ms=90_000)
        assert not await take("two", hold_ms=60_000)
        key = store.keys.shard_key("gauges")
        assert 60_000 < admin("PTTL", key) <= 90_000
        admin("DEL", key)
        assert await take("two", hold_ms=60_000)
        assert not await take("one", hold_ms=60_000)


async def test_the_exporter_reads_the_last_lengths_without_a_word_to_the_server(
    make_provider: MakeProvider, meters: Meters, until: Until
) -> None:
    provider = make_provider()
    provider.on("a")(lambda _: None)
    async with provider.worker():
        await until(lambda: meters.points("eventbus.queue.jobs"), "the queues were read")
        # This thread is that of the event loop: a callback that waited for the loop would never end.
        assert meters.by("eventbus.queue.workers", "eventbus.queue") == {"event.a": 1}
        assert meters.points("eventbus.worker.slots") == [({}, 100)]
        assert meters.points("eventbus.worker.jobs") == [({}, 0)]
        assert meters.points("eventbus.worker.lag")[0][1] < 10
    assert meters.points("eventbus.queue.jobs") == meters.points("eventbus.worker.slots") == []


def _ages() -> dict[Any, float]:
    return {row["eventbus.queue"]: value for value, row in read_rows("eventbus.queue.age", max)}


def test_readings_of_several_workers_of_a_process_become_one() -> None:
    one, two = GaugeBoard(), GaugeBoard()
    boards.update({one: None, two: None})
    try:
        one.show("eventbus.queue.age", [(3.0, {"eventbus.queue": "q"})])
        two.show("eventbus.queue.age", [(4.0, {"eventbus.queue": "q"}), (1.0, {"eventbus.queue": "r"})])
        assert _ages() == {"q": 4.0, "r": 1.0}
        two.clear(*QUEUE_GAUGES)
        assert _ages() == {"q": 3.0}
    finally:
        del boards[one], boards[two]


async def test_an_outcome_that_is_no_end_has_a_word_of_its_own(
    make_provider: MakeProvider, meters: Meters
) -> None:
    provider = make_provider()
    began = asyncio.Event()
    runs: list[str] = []

    @provider.on("later")
    async def later(_: Any) -> None:
        runs.append("")
        if len(runs) == 1:
            raise Later("1ms")

    @provider.on("long")
    async def long(_: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    async with provider.worker() as runner:
        await provider.emit("later")
        provider.emit("long", reply=False)
        await began.wait()
        runner.request_stop(at_once=True)
        await runner.wait()
    assert meters.by("eventbus.job.attempts", "eventbus.queue", "eventbus.outcome") == {
        ("event.later", "put off"): 1,
        ("event.later", "completed"): 1,
        ("event.long", "given back"): 1,
    }


async def test_a_lost_lease_is_counted_and_its_run_has_no_outcome(
    make_provider: MakeProvider, meters: Meters, until: Until
) -> None:
    provider = make_provider()
    began = asyncio.Event()

    @provider.on("long")
    async def long(_: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    async with provider.worker() as runner:
        emission = provider.emit("long")
        await began.wait()
        executor = runner._worker.claimer.executor
        executor.lose([(run.job.id, run.job.token) for run in executor.running.values()])
        await until(lambda: not executor.running, "the run ended")
        assert meters.by("eventbus.lease.losses", "eventbus.queue") == {"event.long": 1}
        assert meters.points("eventbus.job.attempts") == []
        assert meters.by("messaging.process.duration", "messaging.destination.name") == {"long": 1}
        await emission.cancel()


def test_a_lease_that_ran_out_is_counted_by_what_became_of_the_job(meters: Meters) -> None:
    for verdict in ("rescued", "rescued", "failed"):
        note_stall(verdict)
    assert meters.by("eventbus.job.stalls", "eventbus.outcome") == {"given back": 2, "failed": 1}


@pytest.mark.virtual
async def test_a_schedule_says_how_late_it_was_fired(
    make_provider: MakeProvider, meters: Meters, until: Until
) -> None:
    provider = make_provider()
    provider.on("tick")(lambda _: None)
    async with provider.worker():
        await provider.schedules.add("tick", id="ticks", every="1s")
        await until(lambda: meters.points("eventbus.schedule.lateness"), "a slot was fired")
        await provider.schedules.remove("ticks")
    assert meters.by("eventbus.schedule.lateness", "eventbus.queue")["event.tick"] >= 1
    (point,) = meters.read()["eventbus.schedule.lateness"].data.data_points
    assert 0 <= point.sum < 60  # type: ignore[union-attr]


async def test_an_sdk_that_is_set_while_a_worker_runs_counts_from_its_next_look_on(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    monkeypatch.setattr(gauge_reader, "_LOOK", 0.01)
    assert instruments() is None
    provider = make_provider()
    provider.on("a")(lambda _: None)
    async with provider.worker() as runner:
        await provider.emit("a")
        executor = runner._worker.claimer.executor
        assert executor.meter is None
        meters = Meters(monkeypatch)
        await until(lambda: executor.meter is not None, "the worker meters")
        await provider.emit("a")
        assert meters.by("eventbus.job.attempts", "eventbus.outcome") == {"completed": 1}


async def test_queues_that_cannot_be_read_are_not_shown_and_that_is_logged_once(
    make_provider: MakeProvider, meters: Meters, logs: list[Any], until: Until
) -> None:
    provider = make_provider()
    provider.on("a")(lambda _: None)
    async with provider.worker() as runner:
        await until(lambda: meters.points("eventbus.queue.jobs"), "the queues were read")
        worker = runner._worker
        reader = gauge_reader.GaugeReader(
            worker._store, worker.claimer.executor, worker="x", slots=1, read_lag=lambda: 0.0
        )
        reader.board.show("eventbus.queue.jobs", [(7, {})])

        async def away() -> bool:
            raise StoreUnavailable("no server", address="", sent=False)

        reader.run_once = away  # type: ignore[method-assign]
        await reader._read()
        await reader._read()
    assert list(reader.board.read("eventbus.queue.jobs")) == []
    assert [each["event"] for each in logs].count("queues not measured, trying again") == 1


def test_without_an_sdk_this_package_does_not_import_opentelemetrys_metrics() -> None:
    program = """
import asyncio, sys
sys.modules["opentelemetry.metrics"] = None  # so nobody can import it; redis-py goes on without it
from eventbus import EventProvider
provider = EventProvider("memory:")
provider.on("a")(lambda _: 1)
async def main():
    async with provider.worker():
        assert await provider.emit("a") == 1
asyncio.run(main())
print("done")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "done"


def test_a_meter_that_does_nothing_counts_as_no_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.metrics import NoOpMeterProvider, _internal

    monkeypatch.setattr(_internal, "_METER_PROVIDER", NoOpMeterProvider())
    assert instruments() is None


def test_an_sdk_that_the_environment_names_is_used() -> None:
    program = """
from eventbus.telemetry.metrics import instruments
assert instruments() is instruments() is not None
print("done")
"""
    environment = {**os.environ, "OTEL_PYTHON_METER_PROVIDER": "sdk_meter_provider"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout == "done\n"
