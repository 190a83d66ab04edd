"""Handlers with pool="process": they work like other handlers, and each can be killed alone."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from importable import process_handlers
from importable.process_handlers import Crunched, NotEven, Numbers, crunched

from eventbus import DefinitionError, EventContext, EventProvider, HandlerError, JobCancelled, Retry
from eventbus.emit.emission import Emission
from eventbus.handlers.worker import EventWorker

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]

_PATIENT = 240.0
"""Seconds: interpreters start slowly on a machine that has other things to do."""


def _lives(pid: int) -> bool:
    """Whether a process runs; one that is only not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end between the two calls
        return False


class Bench:
    """A started provider with a worker; `held` are the processes that run `process_handlers.hold`."""

    def __init__(self, provider: EventProvider, runner: EventWorker, folder: Path) -> None:
        self.provider = provider
        self.runner = runner
        self.folder = folder

    def hold(self) -> Emission[Any]:
        return self.provider.emit("hold", str(self.folder), reply_timeout=120)

    @property
    def held(self) -> list[int]:
        return [int(path.stem) for path in self.folder.glob("*.running")]

    def programs(self, pid: int) -> list[int]:
        """A process and the program that it started."""
        return [pid, int((self.folder / f"{pid}.running").read_text())]

    @property
    def pids(self) -> list[int]:
        return self.runner._processes.pids


@pytest.fixture
async def start(
    make_provider: MakeProvider, stack: AsyncExitStack, tmp_path: Path
) -> Callable[..., Awaitable[Bench]]:
    async def start(handlers: Sequence[Any]) -> Bench:
        provider = make_provider(retry=1, reply_timeout=120)
        for event, function, options in handlers:
            provider.on(event, pool="process", **options)(function)
        await stack.enter_async_context(provider)
        return Bench(provider, await stack.enter_async_context(provider.worker()), tmp_path)

    return start


Start = Callable[..., Awaitable[Bench]]


async def test_values_arrive_with_their_types_and_a_process_serves_many_jobs(start: Start) -> None:
    bench = await start(
        [(crunched, process_handlers.crunch, {"concurrency": 1}), ("double", process_handlers.double, {})]
    )
    answers = [
        await bench.provider.emit(crunched, Numbers([Decimal("0.1"), Decimal(n)])) for n in range(1, 4)
    ]
    assert [each.total for each in answers] == [Decimal("1.1"), Decimal("2.1"), Decimal("3.1")]
    assert {type(each) for each in answers} == {Crunched}
    assert {each.pid for each in answers} == set(bench.pids)
    assert os.getpid() not in bench.pids
    assert await bench.provider.emit("double", 21) == 42


async def test_errors_arrive_as_from_other_handlers(start: Start) -> None:
    bench = await start(
        [
            (crunched, process_handlers.crunch, {}),
            ("fail", process_handlers.fail, {"retry": Retry(attempts=2, delay=0)}),
        ]
    )
    with pytest.raises(NotEven, match=r"^3$"):
        await bench.provider.emit(crunched, Numbers([Decimal(3)], even=True))
    with pytest.raises(HandlerError) as caught:
        await bench.provider.emit("fail", "as it comes")
    error = caught.value
    assert (error.type_name, error.remote_message, error.attempts) == ("ValueError", "outside", 2)
    assert error.causes == (("KeyError", "'inside'"),)
    assert "process_handlers.py" in error.remote_traceback
    with pytest.raises(HandlerError, match="for good") as caught:
        await bench.provider.emit("fail", "unrecoverable")
    assert caught.value.attempts == 1
    with pytest.raises(HandlerError, match="SystemExit: 3"):
        await bench.provider.emit("fail", "exit")


async def test_what_does_not_fit_the_event_is_refused_in_the_process_and_not_tried_again(
    start: Start,
) -> None:
    retry = Retry(attempts=3, delay=0)
    bench = await start(
        [(crunched, process_handlers.wrong, {"retry": retry}), ("double", process_handlers.double, {})]
    )
    with pytest.raises(HandlerError, match="PayloadError: result of") as caught:
        await bench.provider.emit(crunched, Numbers([]))
    assert caught.value.attempts == 1
    assert await bench.provider.emit("double", 2) == 4


async def test_an_own_backoff_sees_what_the_process_raised(start: Start) -> None:
    seen: list[tuple[int, str]] = []

    def backoff(attempt: int, error: BaseException) -> float:
        seen.append((attempt, error.type_name if isinstance(error, HandlerError) else repr(error)))
        return 0

    bench = await start([("fail", process_handlers.fail, {"retry": Retry(attempts=3, backoff=backoff)})])
    with pytest.raises(HandlerError):
        await bench.provider.emit("fail", "as it comes")
    assert seen == [(1, "ValueError"), (2, "ValueError")]


@pytest.mark.parametrize(
    ("how", "said"), [("segfault", "was ended by SIGSEGV"), ("leave", "with exit code 7")]
)
async def test_a_process_that_dies_fails_its_attempt_and_nothing_else(
    start: Start, how: str, said: str
) -> None:
    bench = await start([("fail", process_handlers.fail, {}), ("double", process_handlers.double, {})])
    with pytest.raises(HandlerError, match=f"ProcessDied: the process of the handler .*{said}"):
        await bench.provider.emit("fail", how)
    assert await bench.provider.emit("double", 4) == 8


async def test_a_process_that_is_killed_from_outside_is_replaced_at_the_next_attempt(
    start: Start, until: Until
) -> None:
    bench = await start([("hold", process_handlers.hold, {"retry": Retry(attempts=2, delay=0)})])
    emission = bench.hold()
    await until(lambda: bench.held, "it runs", within=_PATIENT)
    (first,) = bench.held
    programs = bench.programs(first)
    os.kill(first, signal.SIGKILL)
    await until(lambda: not any(map(_lives, programs)), "it is gone with what it started")
    await until(lambda: len(bench.held) == 2, "it runs again", within=_PATIENT)
    (bench.folder / "go").touch()
    assert await emission is None
    assert first not in bench.pids


@pytest.mark.slow
async def test_a_timeout_kills_its_process_with_what_it_started_and_no_other(
    start: Start, until: Until
) -> None:
    bench = await start(
        [
            ("hold", process_handlers.hold, {"concurrency": 2}),
            ("brief", process_handlers.hold, {"timeout": 8, "concurrency": 1}),
            ("pid", process_handlers.pid, {"concurrency": 1}),
        ]
    )
    others = [bench.hold(), bench.hold()]
    await until(lambda: len(bench.held) == 2, "two run", within=_PATIENT)
    before = bench.held
    await bench.provider.emit("pid", 1, reply_timeout=240)  # its process has begun, which takes long
    late = bench.provider.emit("brief", str(bench.folder), reply_timeout=240)
    await until(lambda: len(bench.held) == 3, "a third runs", within=_PATIENT)
    (third,) = set(bench.held) - set(before)
    with pytest.raises(
        HandlerError, match="TimeoutError: the handler timed out: it ran longer than its timeout of 8 s"
    ):
        await late
    await until(lambda: not any(map(_lives, bench.programs(third))), "they are gone")
    assert all(_lives(pid) for each in before for pid in bench.programs(each))
    (bench.folder / "go").touch()
    assert [await each for each in others] == [None, None]


async def test_a_lost_lease_kills_the_process(start: Start, until: Until) -> None:
    bench = await start([("hold", process_handlers.hold, {})])
    emission = bench.hold()
    await until(lambda: bench.held, "it runs", within=_PATIENT)
    (pid,) = bench.held
    running = bench.runner._worker.claimer.executor.running
    bench.runner._worker.claimer.executor.lose([(each.job.id, each.job.token) for each in running.values()])
    await until(lambda: not any(map(_lives, bench.programs(pid))), "they are gone")
    (bench.folder / "go").touch()
    assert not emission.done()


async def test_as_many_run_at_a_time_as_the_handler_allows(start: Start, until: Until) -> None:
    bench = await start(
        [("pid", process_handlers.pid, {"concurrency": 3}), ("double", process_handlers.double, {})]
    )
    emissions = bench.provider.emit_many("pid", range(60))
    pids = {await each for each in emissions}
    assert 1 <= len(pids) <= 3
    assert pids <= set(bench.pids)


async def test_a_stop_lets_processes_finish_within_the_grace(
    make_provider: MakeProvider, until: Until, tmp_path: Path
) -> None:
    provider = make_provider(grace=60, reply_timeout=120)
    provider.on("hold", pool="process")(process_handlers.hold)
    async with provider:
        async with provider.worker() as runner:
            bench = Bench(provider, runner, tmp_path)
            emission = bench.hold()
            await until(lambda: bench.held, "it runs", within=_PATIENT)
            pid = bench.held[0]
            asyncio.get_running_loop().call_later(0.2, (tmp_path / "go").touch)
        assert await emission is None
        assert not _lives(pid)
        assert bench.pids == []


async def test_a_stop_gives_back_what_takes_longer_and_leaves_no_process(
    make_provider: MakeProvider, until: Until, tmp_path: Path
) -> None:
    provider = make_provider(grace=0.2, reply_timeout=120)
    provider.on("hold", pool="process")(process_handlers.hold)
    async with provider:
        async with provider.worker() as runner:
            bench = Bench(provider, runner, tmp_path)
            emission = bench.hold()
            await until(lambda: bench.held, "it runs", within=_PATIENT)
            programs = bench.programs(bench.held[0])
        assert not _lives(programs[0])
        await until(lambda: not _lives(programs[1]), "what it started is gone too")
        (tmp_path / "go").touch()
        async with provider.worker():
            assert await emission is None


async def test_an_idle_process_ends_after_a_while(start: Start, until: Until) -> None:
    bench = await start([("pid", process_handlers.pid, {})])
    bench.runner._processes._idle_after = 0.05
    first = await bench.provider.emit("pid")
    await until(lambda: not bench.pids, "it has ended", within=_PATIENT)
    assert not _lives(first)
    assert await bench.provider.emit("pid") != first


async def test_a_handler_that_times_out_before_its_process_is_ready_leaves_it_to_the_next(
    start: Start, until: Until
) -> None:
    bench = await start([("pid", process_handlers.pid, {"timeout": 0.001, "concurrency": 1})])
    with pytest.raises(HandlerError, match="TimeoutError"):
        await bench.provider.emit("pid")
    starts = bench.runner._processes._starts
    await until(lambda: not starts, "nothing is starting", within=_PATIENT)


async def test_its_context_holds_the_facts(start: Start) -> None:
    bench = await start([("facts", process_handlers.tell_facts, {})])
    with bench.provider.context(tenant="acme"):
        emission = bench.provider.emit("facts", 1)
        facts = await emission
    assert facts == {
        "event": "facts",
        "group": "default",
        "job_id": emission.job_id,
        "attempt": 1,
        "correlation_id": emission.job_id,
        "causation_id": None,
        "meta": {"tenant": "acme"},
    }


async def test_what_it_logs_is_logged_by_the_worker(start: Start, logs: list[dict[str, Any]]) -> None:
    bench = await start([("facts", process_handlers.tell_facts, {})])
    emission = bench.provider.emit("facts", 1)
    await emission
    (told,) = [each for each in logs if each["event"] == "told"]
    assert (told["log_level"], told["job_id"], told["event_name"]) == ("info", emission.job_id, "facts")
    assert told["value"] == "1.5"  # as JSON has it


async def test_it_may_log_what_is_no_text_in_utf8(start: Start, logs: list[dict[str, Any]]) -> None:
    bench = await start([("read", process_handlers.tell_odd_name, {})])
    await bench.provider.emit("read")
    (told,) = [each for each in logs if "file" in each]
    assert (told["event"], told["file"], told["size"]) == (r"'read \udcff'", r"'\udcff.csv'", "3")


async def test_one_that_dies_idle_leaves_no_channel_open(start: Start, until: Until) -> None:
    bench = await start([("pid", process_handlers.pid, {})])
    pid = await bench.provider.emit("pid")
    (process,) = bench.runner._processes._all
    os.kill(pid, signal.SIGKILL)
    await until(lambda: process.channel.is_closing, "the channel is closed", within=_PATIENT)


@pytest.mark.slow
async def test_one_ends_with_its_channel_though_a_handler_left_a_thread(start: Start, until: Until) -> None:
    bench = await start([("leave", process_handlers.leave_a_thread, {})])
    pid = await bench.provider.emit("leave")
    (process,) = bench.runner._processes._all
    process.hang_up()  # as the end of its worker does
    await until(lambda: not _lives(pid), "it has ended", within=_PATIENT)


async def test_a_group_returns_nothing(start: Start, until: Until) -> None:
    bench = await start(
        [
            ("noise", process_handlers.double, {}),
            (crunched, process_handlers.wrong, {"group": "other"}),
            (crunched, process_handlers.crunch, {}),
        ]
    )
    assert (await bench.provider.emit(crunched, Numbers([Decimal(1)]))).total == 1
    await until(lambda: bench.runner.claimed == 2 and bench.runner.is_idle, "both have run", within=_PATIENT)


async def test_it_may_be_subscribed_while_running(make_provider: MakeProvider, stack: AsyncExitStack) -> None:
    provider = await stack.enter_async_context(make_provider(reply_timeout=120))
    await provider.subscribe("double", process_handlers.double, pool="process")
    assert await provider.emit("double", 5) == 10
    with pytest.raises(
        DefinitionError, match="expected the handler of event 'other' to be a function at the top"
    ):
        await provider.subscribe("other", lambda n: n, pool="process")


async def test_a_cancelled_job_has_its_process_killed(start: Start, until: Until) -> None:
    bench = await start([("hold", process_handlers.hold, {})])
    emission = bench.hold()
    await until(lambda: bench.held, "it runs", within=_PATIENT)
    (pid,) = bench.held
    programs = bench.programs(pid)
    assert await emission.cancel("enough")
    with pytest.raises(JobCancelled, match="enough"):
        await emission
    await until(lambda: not any(map(_lives, programs)), "they are gone")


async def test_what_it_prints_goes_where_the_worker_prints(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    bench = await start([("noise", process_handlers.noise, {})])
    await bench.provider.emit("noise", "bang")
    out, err = capfd.readouterr()
    assert "bang\n" in out
    assert "bang\n" in err


async def test_middleware_stands_around_it_with_values(
    make_provider: MakeProvider, stack: AsyncExitStack
) -> None:
    provider = make_provider(retry=1, reply_timeout=120)
    provider.on(crunched, pool="process")(process_handlers.crunch)

    @provider.use
    async def add_one(payload: Any, ctx: EventContext, call: Any) -> Any:
        assert isinstance(payload, Numbers)
        try:
            result = await call(Numbers([*payload.values, Decimal(1)], even=payload.even))
        except NotEven as error:
            return Crunched(Decimal(str(error)), -1)
        assert isinstance(result, Crunched)
        return Crunched(result.total * 10, ctx.attempt)

    await stack.enter_async_context(provider)
    await stack.enter_async_context(provider.worker())
    assert await provider.emit(crunched, Numbers([Decimal(2)])) == Crunched(Decimal(30), 1)
    assert await provider.emit(crunched, Numbers([Decimal(2)], even=True)) == Crunched(Decimal(3), -1)


async def test_a_handler_of_another_name_is_refused_by_the_start_of_the_worker(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    provider.on("other", pool="process")(process_handlers.shadowed)
    async with provider:
        with pytest.raises(
            DefinitionError, match="process_handlers:double is not the handler that was registered"
        ):
            async with provider.worker():
                raise AssertionError("it started")
