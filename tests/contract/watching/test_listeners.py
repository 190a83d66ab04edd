"""`provider.watching`: what the workers of this process do, told to functions of the program."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest

from eventbus import (
    Change,
    DefinitionError,
    EventContext,
    EventProvider,
    HandlerError,
    Later,
    Retry,
    StoreRefused,
)

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
Logs = list[MutableMapping[str, Any]]


async def test_listeners_hear_the_life_of_a_job(make_provider: MakeProvider, until: Until) -> None:
    provider, heard = make_provider(), list[Change]()

    @provider.on("doubled")
    async def double(n: int, ctx: EventContext) -> int:
        await ctx.progress(n)
        return 2 * n

    @provider.watching("claimed", "progress", "completed")
    async def hear(change: Change) -> None:
        heard.append(change)

    async with provider.worker() as worker:
        emission = provider.emit("doubled", 2)
        assert await emission == 4
        await until(lambda: len(heard) == 3, "all is heard")
    assert [(each.what, each.state, each.note) for each in heard] == [
        ("claimed", "active", ""), ("progress", "active", "2"), ("completed", "completed", ""),
    ]  # fmt: skip
    assert {(each.job_id, each.queue, each.worker) for each in heard} == {
        (emission.job_id, "event.doubled", worker.id)
    }
    assert heard[0].attempt == 1
    assert heard[0].at_ms > 0


async def test_retries_failures_and_what_is_put_off_are_told_apart(
    make_provider: MakeProvider, until: Until
) -> None:
    provider, heard = make_provider(), list[Change]()
    ran: list[int] = []

    @provider.on("tried", retry=Retry(attempts=2, delay=0.001))
    async def attempt(n: int) -> None:
        ran.append(n)
        if len(ran) == 1:
            raise Later(0.001)
        raise ValueError("no")

    @provider.watching("delayed", "retried", "failed", "completed")
    def hear(change: Change) -> None:
        heard.append(change)

    async with provider.worker():
        with pytest.raises(HandlerError):
            await provider.emit("tried", 1)
        await until(lambda: len(heard) == 3, "all is heard")
    assert [(each.what, each.attempt, each.note) for each in heard] == [
        ("delayed", 0, ""), ("retried", 1, "ValueError: no"), ("failed", 0, "ValueError: no"),
    ]  # fmt: skip
    assert heard[0].due_ms > 0
    assert heard[0].state == heard[1].state == "delayed"


@pytest.mark.real
async def test_a_plain_function_runs_in_a_thread(make_provider: MakeProvider, until: Until) -> None:
    provider, threads = make_provider(), list[threading.Thread]()

    @provider.on("a")
    async def run(n: int) -> None: ...

    @provider.watching("completed")
    def hear(change: Change) -> None:
        threads.append(threading.current_thread())

    async with provider.worker():
        await provider.emit("a", 1)
        await until(lambda: threads, "it is heard")
    assert threads[0] is not threading.main_thread()


async def test_a_listener_of_an_event_hears_no_other(make_provider: MakeProvider, until: Until) -> None:
    provider, heard, every = make_provider(), list[str](), list[str]()

    @provider.on("a")
    @provider.on("b")
    @provider.on("a", group="audit")
    async def run(n: int) -> None: ...

    @provider.watching("completed", event="a")
    async def hear(change: Change) -> None:
        heard.append(change.queue)

    @provider.watching("completed")
    async def hear_all(change: Change) -> None:
        every.append(change.queue)

    async with provider.worker():
        await provider.emit("b", 1)
        await provider.emit("a", 1)
        await until(lambda: len(every) == 3, "all is heard")
    assert sorted(heard) == ["event.a", "event.a@audit"]


async def test_a_job_that_is_cancelled_or_given_back_is_told_so(
    make_provider: MakeProvider, until: Until
) -> None:
    provider, heard, runs = make_provider(grace=0), list[str](), list[int]()

    @provider.on("slow")
    async def run(n: int) -> None:
        runs.append(n)
        await asyncio.Event().wait()

    @provider.watching("cancelled", "returned")
    async def hear(change: Change) -> None:
        heard.append(change.what)

    async with provider:
        async with provider.worker():
            emission = provider.emit("slow", 1)
            await until(lambda: runs == [1], "it runs")
            await emission.cancel()
            await until(lambda: heard == ["cancelled"], "the cancel is heard")
            provider.emit("slow", 2, reply=False)
            await until(lambda: runs == [1, 2], "it runs")
        assert heard == ["cancelled", "returned"]  # the worker has told its last changes before it ended


async def test_a_listener_that_raises_is_logged_and_holds_up_nobody(
    make_provider: MakeProvider, until: Until, logs: Logs
) -> None:
    provider, heard, errors = make_provider(), list[str](), list[Change]()

    @provider.on("a")
    async def run(n: int) -> None: ...

    @provider.watching("completed")
    async def fail(change: Change) -> None:
        raise ValueError("no disk")

    @provider.watching("completed")
    async def hear(change: Change) -> None:
        heard.append(change.what)

    @provider.watching("error")
    async def note(change: Change) -> None:
        errors.append(change)
        raise ValueError("and this one too")

    async with provider.worker():
        await provider.emit("a", 1)
        await until(lambda: heard and errors, "both are heard")
    assert len(errors) == 1
    assert errors[0].note == "listener: ValueError: no disk"
    assert isinstance(errors[0].error, ValueError)
    failed = [each for each in logs if each["event"] == "listener failed"]
    assert [each["change"] for each in failed] == ["completed", "error"]


async def test_an_error_outside_of_any_job_is_told(
    make_provider: MakeProvider, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, heard = make_provider(), list[Change]()

    @provider.on("a")
    async def run(n: int) -> None: ...

    @provider.watching("error")
    async def note(change: Change) -> None:
        heard.append(change)

    async with provider.worker() as worker:
        engine: Any = worker._worker  # pyright: ignore[reportPrivateUsage]

        async def refuse(_: Any) -> Any:
            raise StoreRefused("NOPERM no right", code="NOPERM")

        with monkeypatch.context() as patch:
            patch.setattr(engine._store, "turn", refuse)
            engine.claimer.look_everywhere()
            await until(lambda: heard, "the refusal is heard")
        assert heard[0].note.startswith("claimer: StoreRefused: NOPERM")
        assert heard[0].worker == worker.id
        engine.leases._note_refused(heard[0].error, 1)  # as the lease thread does
        await until(lambda: len(heard) > 1, "the other one is heard")


async def test_a_worker_that_ends_by_an_error_tells_it(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, heard = make_provider(), list[Change]()

    @provider.on("a")
    async def run(n: int) -> None: ...

    @provider.watching("error")
    async def note(change: Change) -> None:
        heard.append(change)

    async with provider:
        with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
            async with provider.worker() as worker:
                engine: Any = worker._worker  # pyright: ignore[reportPrivateUsage]

                async def fail() -> None:
                    raise RuntimeError("out of order")

                monkeypatch.setattr(engine, "_shut_down", fail)
                worker.request_stop()
                await worker.wait()
    assert [(each.note.partition(":")[0], each.error) for each in heard] == [("worker", caught.value)]


async def test_a_stall_that_the_worker_rescues_is_told(make_provider: MakeProvider, until: Until) -> None:
    first, second, heard = make_provider(lease=0.5, grace=0), make_provider(lease=0.5), list[Change]()
    runs: list[int] = []

    @first.on("a")
    async def hang(n: int) -> None:
        runs.append(n)
        await asyncio.Event().wait()

    @second.on("a")
    async def run(n: int) -> None: ...

    @first.watching("stalled")  # it may rescue its job itself
    @second.watching("stalled")
    async def note(change: Change) -> None:
        heard.append(change)

    async with first.worker() as dying:
        emission = first.emit("a", 1)
        await until(lambda: runs, "it runs")
        engine: Any = dying._worker  # pyright: ignore[reportPrivateUsage]
        await engine.leases.aclose()  # its leases are renewed no more
        async with second.worker():
            await until(lambda: heard, "the stall is heard")
            await emission
    assert (heard[0].job_id, heard[0].worker, heard[0].state) == (emission.job_id, dying.id, "waiting")


async def test_who_is_too_slow_misses_changes_and_is_told(
    make_provider: MakeProvider, until: Until, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventbus.telemetry.listeners._MOST", 3)
    provider, heard, gate = make_provider(), list[str](), asyncio.Event()

    @provider.on("a")
    async def run(n: int) -> None: ...

    @provider.watching("completed", "missed")
    async def hear(change: Change) -> None:
        await gate.wait()
        heard.append(change.what)

    async with provider.worker():
        for n in range(10):
            await provider.emit("a", n)
        gate.set()
        await until(lambda: "missed" in heard, "the gap is heard")
    assert heard.count("completed") < 10
    assert [each["count"] for each in logs if each["event"] == "listeners too slow, changes left out"] == [
        10 - heard.count("completed")
    ]


@pytest.mark.parametrize(
    ("kinds", "options", "match"),
    [
        ((), {}, "got: none"),
        (("added",), {}, "provider.watch has all others"),
        (("finished",), {}, "finished"),
        (("error",), {"event": "a"}, "without event="),
        (("completed",), {"event": ""}, "expected an event"),
    ],
)
def test_kinds_that_no_worker_tells_are_refused(
    make_provider: MakeProvider, kinds: Any, options: Any, match: str
) -> None:
    with pytest.raises(DefinitionError, match=match):
        make_provider().watching(*kinds, **options)


def test_what_is_no_function_of_a_change_is_refused(make_provider: MakeProvider) -> None:
    with pytest.raises(DefinitionError, match="function of one Change"):
        make_provider().watching("completed")(lambda: None)  # pyright: ignore[reportArgumentType]


def test_the_old_name_warns_and_does_the_same(make_provider: MakeProvider) -> None:
    provider, heard = make_provider(), list[Change]()
    with pytest.warns(DeprecationWarning, match=r"provider\.listen is deprecated: use provider\.watching"):
        register = provider.listen("completed", event="a")
    assert register(heard.append) == heard.append
    assert list(provider._life.listeners._by_kind) == ["completed"]
    assert [each.scope for each in provider._life.listeners._by_kind["completed"]] == ["event.a"]
