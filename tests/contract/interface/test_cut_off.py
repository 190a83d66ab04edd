"""Whatever is cut off, by asyncio or by a cancel scope of anyio, closes what it opened."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import anyio
import pytest
from leaks import find_tasks

from eventbus import Event, EventProvider, ProviderStopped, SignalRefused
from eventbus.dashboard import Dashboard
from eventbus.runtime.clean_up import run_to_end
from workflows import (
    FlowCancelled,
    FlowContext,
    FlowHandle,
    FlowNotEnded,
    Signal,
    StepContext,
    Workflow,
    WorkflowProvider,
    durable,
)
from workflows.testing import run_inline

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]
Use = Callable[[asyncio.Event], Awaitable[None]]

asked: Event[Any, Any] = Event("asked")
yes = Signal[None]("yes")


@durable("approved")
async def approved(ctx: FlowContext[None]) -> str:
    await ctx.wait_for(yes)
    return "approved"


async def cut_off(
    use: Use, kind: str, meanwhile: Callable[[], Any] = lambda: None, *, rounds: int = 0
) -> None:
    """Run `use` until it has set its event, and so many rounds of the loop more; cut it off, and wait for its
    end.
    """
    begun, scope = asyncio.Event(), anyio.CancelScope()

    async def run() -> None:
        with scope:
            await use(begun)

    task = asyncio.create_task(run())
    while not begun.is_set() and not task.done():
        meanwhile()
        await asyncio.sleep(0)
    for _ in range(rounds):
        await asyncio.sleep(0)
    if kind == "anyio":
        scope.cancel()
    else:
        task.cancel()
        if kind == "asyncio twice":
            await asyncio.sleep(0)
            task.cancel()
    await asyncio.wait({task}, timeout=20)
    assert task.done()
    if not task.cancelled() and task.exception() is not None:
        raise AssertionError("it ended by itself") from task.exception()


async def for_ever(begun: asyncio.Event) -> None:
    begun.set()
    await asyncio.Event().wait()


def named(*words: str) -> list[str]:
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if any(word in name for word in words)]


def kinds_of_tasks() -> Counter[str]:
    """Return how many tasks run which function; those of connections, which come and go, are left out."""
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return Counter(name for name in names if not name.startswith(("Channel.", "Wire.")))


async def is_waiting(flow: FlowHandle[Any]) -> bool:
    return (await flow.status()).state == "waiting"


every_kind = pytest.mark.parametrize("kind", ["asyncio", "asyncio twice", "anyio"])


@every_kind
@pytest.mark.parametrize("how", ["iterated", "entered", "opening", "next"])
async def test_a_watch_closes_its_connection(
    make_provider: MakeProvider, admin: Callable[..., Any], until: Until, how: str, kind: str
) -> None:
    provider = make_provider()

    def connections() -> int:
        return admin("CLIENT", "LIST").count("-changes ")

    async def use(begun: asyncio.Event) -> None:
        if how == "iterated":
            async for _ in provider.watch("asked"):
                await for_ever(begun)
        elif how == "entered":
            async with provider.watch("asked"):
                await for_ever(begun)
        elif how == "opening":
            begun.set()
            async for _ in provider.watch("asked"):
                raise AssertionError("nothing was emitted")
        else:
            async with provider.watch("asked") as watch:
                begun.set()
                await watch.__anext__()

    def meanwhile() -> None:
        if how == "iterated":
            provider.emit("asked", reply=False)

    async with provider:
        await provider.emit("asked", reply=False).enqueued()
        for _ in range(3):
            await cut_off(use, kind, meanwhile)
        await until(lambda: not connections(), "each connection is closed")
        await until(lambda: not named("watch"), "each task has ended")
        await provider.flush()


async def test_a_watch_whose_iterator_is_dropped_closes_its_connection(
    make_provider: MakeProvider, admin: Callable[..., Any], until: Until
) -> None:
    provider = make_provider()
    async with provider:
        await provider.emit("asked", reply=False).enqueued()
        async for _ in provider.watch("asked", since="0"):
            break
        await until(lambda: "-changes " not in admin("CLIENT", "LIST"), "it is closed")


@every_kind
@pytest.mark.parametrize("how", ["started", "starting", "worker", "waits", "result"])
async def test_a_provider_closes_all(
    make_provider: MakeProvider, admin: Callable[..., Any], until: Until, how: str, kind: str
) -> None:
    before, tasks = len(admin("CLIENT", "LIST").splitlines()), find_tasks()

    async def use(begun: asyncio.Event) -> None:
        provider = make_provider()
        provider.on("other")(_same)
        if how == "starting":
            begun.set()
        async with provider:
            if how == "worker":
                async with provider.worker():
                    await for_ever(begun)
            elif how in ("waits", "result"):
                emission = provider.emit(asked, None)
                await emission.enqueued()
                begun.set()
                await (emission if how == "waits" else provider.result(emission.job_id))
            else:
                await for_ever(begun)

    await cut_off(use, kind)
    await until(lambda: len(admin("CLIENT", "LIST").splitlines()) == before, "each connection is closed")
    await until(lambda: find_tasks() == tasks, "each task has ended")


@every_kind
@pytest.mark.parametrize("how", ["opening", "told"])
async def test_a_stream_of_the_dashboard_closes_its_watch(
    make_provider: MakeProvider, admin: Callable[..., Any], until: Until, how: str, kind: str
) -> None:
    """As a server of ASGI cuts off a request whose browser has gone."""
    provider = make_provider()
    dashboard = Dashboard(provider, insecure_allow_anyone=True)
    scope = {
        "type": "http", "method": "GET", "path": "/api/v1/stream", "raw_path": b"/api/v1/stream",
        "root_path": "", "scheme": "http", "query_string": b"", "headers": [(b"host", b"localhost")],
        "http_version": "1.1", "server": ("localhost", 80), "client": ("127.0.0.1", 1),
    }  # fmt: skip

    async def use(begun: asyncio.Event) -> None:
        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError("nobody sets it")

        async def send(message: MutableMapping[str, Any]) -> None:
            if message.get("body"):
                begun.set()

        if how == "opening":
            begun.set()
        await dashboard(scope, receive, send)

    async with provider:
        await provider.emit("asked", reply=False).enqueued()
        for _ in range(3):
            await cut_off(use, kind)
        await until(lambda: "-changes " not in admin("CLIENT", "LIST"), "each connection is closed")
        await until(lambda: not named("watch"), "each task has ended")
        assert not dashboard._desk.tails._taken  # pyright: ignore[reportPrivateUsage]


@every_kind
@pytest.mark.parametrize("what", ["sync", "result", "threads"])
async def test_a_call_of_a_thread_that_is_cut_off_leaves_nothing(
    make_provider: MakeProvider, admin: Callable[..., Any], until: Until, what: str, kind: str
) -> None:
    """The thread waits on, as threads do; with the stop of the provider its call ends, and all it opened."""
    before, tasks = len(admin("CLIENT", "LIST").splitlines()), find_tasks()
    ended: list[BaseException] = []

    async def use(begun: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()

        def block() -> None:
            try:
                emission = provider.sync.emit("asked", 1, reply_timeout=None)
                emission.enqueued()
                loop.call_soon_threadsafe(begun.set)
                if what == "sync":
                    emission.result()
                else:
                    provider.sync.result(emission.job_id)
            except BaseException as error:
                ended.append(error)
                raise

        async with provider:
            if what == "threads":
                await asyncio.gather(*(asyncio.to_thread(block) for _ in range(3)))
            else:
                await asyncio.to_thread(block)

    provider = make_provider()
    await cut_off(use, kind)
    await until(lambda: len(ended) == (3 if what == "threads" else 1), "each call has ended")
    assert {type(each) for each in ended} == {ProviderStopped}
    await until(lambda: len(admin("CLIENT", "LIST").splitlines()) == before, "each connection is closed")
    await until(lambda: find_tasks() == tasks, "each task has ended")


@every_kind
async def test_a_call_of_a_thread_whose_time_is_over_is_cut_off_in_the_loop(
    make_provider: MakeProvider, until: Until, kind: str
) -> None:
    """The loop of a thread of its own goes on, and `close` ends it, whatever its caller is cut off by."""
    provider = make_provider()

    async def use(begun: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()

        def block() -> None:
            with pytest.raises(TimeoutError):
                provider.sync.emit("asked", 1, reply_timeout=None).result(timeout=0.05)
            loop.call_soon_threadsafe(begun.set)

        await asyncio.to_thread(block)
        await for_ever(begun)

    await cut_off(use, kind)
    await asyncio.to_thread(provider.sync.close)
    await until(lambda: "eventbus-sync" not in {each.name for each in threading.enumerate()}, "it has ended")


async def test_a_worker_in_a_task_group_of_a_lifespan_that_fails_ends_its_processes(
    make_provider: MakeProvider, until: Until
) -> None:
    provider = make_provider()
    breaks = asyncio.Event()

    async def fail() -> None:
        await breaks.wait()
        raise ConnectionError("the pool broke")

    @provider.lifespan
    async def pool() -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(fail)
            yield

    provider.on("asked", pool="process")(len)
    async with provider:
        async with provider.worker() as worker:
            assert await provider.emit("asked", "four") == 4
            breaks.set()
            with pytest.raises(ExceptionGroup):
                await worker.wait()
        await until(
            lambda: not named("process", "worker"), "its tasks, and those of its processes, have ended"
        )


@every_kind
@pytest.mark.parametrize("how", ["executed", "by id", "with a timeout", "again"])
async def test_who_awaits_a_flow_leaves_nothing_and_the_flow_goes_on(
    make_provider: MakeProvider, until: Until, how: str, kind: str
) -> None:
    serving, asking = make_provider(), make_provider()
    WorkflowProvider(serving).register(approved)
    flows = WorkflowProvider(asking)
    flows.register(approved)
    async with serving, asking, serving.worker():
        flow = await flows.execute(approved, None)
        await until(lambda: is_waiting(flow), "it waits")
        other = asyncio.create_task(flows.handle(flow.id, approved).result(240))
        await asyncio.sleep(0)
        tasks = kinds_of_tasks()

        async def use(begun: asyncio.Event) -> None:
            handle = flow if how in ("executed", "again") else flows.handle(flow.id, approved)
            begun.set()
            await handle.result(60 if how == "with a timeout" else None)

        for rounds in range(8):
            await cut_off(use, kind, rounds=rounds)
        await until(lambda: not kinds_of_tasks() - tasks, "nothing of those who were cut off is left")
        if how == "again":
            again = asyncio.create_task(flow.result())
            await asyncio.sleep(0)
            await flow.signal(yes)
            assert await again == "approved"
        else:
            await flow.signal(yes)
        assert await other == "approved"
        assert await flow.result(240) == "approved"


@every_kind
@pytest.mark.parametrize("call", ["cancel", "signal", "status", "report", "retry"])
async def test_a_call_about_a_flow_that_is_cut_off_anywhere_leaves_nothing_and_may_be_made_again(
    make_provider: MakeProvider, until: Until, call: str, kind: str
) -> None:
    serving, asking = make_provider(), make_provider()
    WorkflowProvider(serving).register(approved)
    flows = WorkflowProvider(asking)
    flows.register(approved)
    async with serving, asking, serving.worker():
        flow = await flows.execute(approved, None)
        await until(lambda: is_waiting(flow), "it waits")
        if call == "retry":
            await flow.cancel()
            with pytest.raises(FlowCancelled):
                await flow.result(240)
        tasks = kinds_of_tasks()
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "cancel": flow.cancel,
            "signal": lambda: flow.signal(yes, signal_id="once"),
            "status": flow.status,
            "report": flow.report,
            "retry": lambda: flows.retry(flow.id, run=1),
        }

        async def use(begun: asyncio.Event) -> None:
            begun.set()
            with contextlib.suppress(SignalRefused, FlowNotEnded):  # what was cut off before has come there
                await calls[call]()

        for rounds in range(12):
            await cut_off(use, kind, rounds=rounds)
        await until(lambda: not kinds_of_tasks() - tasks, "nothing of the calls is left")
        with contextlib.suppress(SignalRefused, FlowNotEnded):
            await calls[call]()
        if call == "cancel":
            with pytest.raises(FlowCancelled):
                await flow.result(240)
        else:
            if call != "signal":
                await flow.signal(yes)
            assert await flow.result(240) == "approved"
            assert (await flow.report()).run == (2 if call == "retry" else 1)


@every_kind
async def test_a_step_of_an_inline_flow_ends_before_its_caller(kind: str) -> None:
    workflow: Workflow[Any, Any] = Workflow("cut")
    seen: list[str] = []
    begins: list[asyncio.Event] = []

    @workflow.step()
    async def wait(ctx: StepContext[Any]) -> None:
        try:
            await for_ever(begins[0])
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            seen.append("step")

    async def use(begun: asyncio.Event) -> None:
        begins.append(begun)
        try:
            await run_inline(workflow, None)
        finally:
            seen.append("caller")

    await cut_off(use, kind)
    if kind != "asyncio twice":
        assert seen == ["step", "caller"]


@every_kind
async def test_clean_up_runs_to_its_end(kind: str) -> None:
    seen: list[str] = []

    async def clean_up() -> None:
        for n in range(3):
            await asyncio.sleep(0)
            seen.append(f"part {n}")

    async def use(begun: asyncio.Event) -> None:
        try:
            await for_ever(begun)
        finally:
            await run_to_end(clean_up(), "test")

    await cut_off(use, kind)
    assert seen == ["part 0", "part 1", "part 2"]


async def test_clean_up_that_never_ends_is_cancelled_and_logged(logs: list[dict[str, Any]]) -> None:
    tasks = find_tasks()
    assert await run_to_end(asyncio.Event().wait(), "endless", within=0) is None
    assert [(each["event"], each["what"]) for each in logs] == [
        ("clean-up takes too long, cancelled", "endless")
    ]
    await asyncio.sleep(0)
    assert find_tasks() == tasks


async def _same(payload: Any) -> Any:
    return payload
