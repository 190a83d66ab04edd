"""Our own tasks, when somebody else ends them or raises something in them: nobody waits in silence."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest

from eventbus import EventProvider, ProviderStopped, ResponseTimeout
from eventbus.emit.lookup import Lookup
from eventbus.emit.reply_reader import ReplyReader
from eventbus.emit.stream_keeper import StreamKeeper
from eventbus.emit.uplink import Uplink
from eventbus.engine.claiming.claimer import Claimer
from eventbus.store.reply_stream import ReplyStream

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Find = Callable[[EventProvider], Uplink]
Until = Callable[..., Awaitable[None]]


_AGAIN = "a role of the emitter failed, starting it again"


class Failed(BaseException):
    """No Exception, as what the timeout of a test framework raises in a signal handler."""


def interrupt_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, error: BaseException) -> None:
    """Let an awaited method of our own raise an error at its next call, behind what it did."""
    method: Callable[..., Awaitable[Any]] = getattr(owner, name)

    async def interrupted(self: Any, *given: Any, **options: Any) -> Any:
        answer = await method(self, *given, **options)
        if errors and (answer or name != "read"):
            raise errors.pop()
        return answer

    errors = [error]
    monkeypatch.setattr(owner, name, interrupted)


@pytest.fixture
def seen() -> list[Any]:
    """What the exception handler of the event loop was told."""
    return []


@pytest.mark.parametrize("error", [Failed("late"), ZeroDivisionError("x")], ids=repr)
@pytest.mark.parametrize(
    ("owner", "name"),
    [(ReplyStream, "read"), (StreamKeeper, "run_once"), (Lookup, "look_up")],
    ids=["reader", "keeper", "lookups"],
)
async def test_what_is_raised_in_a_role_of_the_emitter_starts_it_again(
    make_provider: MakeProvider,
    monkeypatch: pytest.MonkeyPatch,
    logs: list[MutableMapping[str, Any]],
    seen: list[Any],
    until: Until,
    owner: type,
    name: str,
    error: BaseException,
) -> None:
    """The outcome that was read and not told yet is looked up."""
    asyncio.get_running_loop().set_exception_handler(lambda _, facts: seen.append(facts.get("exception")))
    size = 200_000 if owner is Lookup else 1  # too large for a reply: it is looked up

    provider = make_provider()

    @provider.on("ask")
    async def ask(n: int) -> str:
        return "x" * size

    async with provider, provider.worker():
        interrupt_once(monkeypatch, owner, name, error)
        for number in range(3):
            assert await asyncio.wait_for(provider.emit("ask", number), 20) == "x" * size
        await until(lambda: _AGAIN in [each["event"] for each in logs], "it failed")
    assert [each["event"] for each in logs].count(_AGAIN) == 1
    assert seen == ([] if isinstance(error, Exception) else [error])


async def test_a_timeout_that_is_interrupted_comes_when_its_role_runs_again(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch, seen: list[Any]
) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, facts: seen.append(facts.get("exception")))
    interrupt_once(monkeypatch, ReplyReader, "_read_states", Failed("late"))
    async with make_provider() as provider:
        with pytest.raises(ResponseTimeout):
            await asyncio.wait_for(provider.emit("nobody", 1, reply_timeout=0.05), 20)
    assert [type(each) for each in seen] == [Failed]


def test_a_keyboard_interrupt_in_the_reader_ends_the_loop_and_the_reader_goes_on(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a signal handler raises it: the program gets it, and may go on with its loop, at least to close."""
    provider = make_provider()

    @provider.on("ask")
    async def ask(n: int) -> int:
        return n

    async def begin() -> Any:
        await provider.start()
        await stack.enter_async_context(provider.worker())
        interrupt_once(monkeypatch, ReplyStream, "read", KeyboardInterrupt())
        return provider.emit("ask", 1)

    async def end() -> None:
        await stack.aclose()
        await provider.stop()

    async def settled(emission: Any) -> Any:
        return await asyncio.wait_for(emission, 20)

    stack = contextlib.AsyncExitStack()
    loop = asyncio.new_event_loop()
    try:
        emission = loop.run_until_complete(begin())
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(settled(emission))
        assert loop.run_until_complete(settled(emission)) == 1
        loop.run_until_complete(end())
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


@pytest.mark.parametrize("how", ["cancelled", "ended"])
async def test_roles_that_somebody_ends_tell_all_who_wait(
    make_provider: MakeProvider,
    uplink: Find,
    monkeypatch: pytest.MonkeyPatch,
    logs: list[MutableMapping[str, Any]],
    how: str,
) -> None:
    async def broken(*_: Any) -> None:
        await asyncio.sleep(0)
        raise Failed

    first, second = make_provider(), make_provider()
    if how == "ended":
        monkeypatch.setattr(Uplink, "_run_roles", broken)
    async with first, second:
        if how == "cancelled":
            waits = [
                first.emit("nobody", 1, reply_timeout=None),
                second.emit("nobody", 2, reply_timeout=None),
            ]
            job = await _enqueued(waits)
            result = asyncio.create_task(second.result(job))
            await asyncio.sleep(0.05)
            roles: Any = uplink(first)._roles  # pyright: ignore[reportPrivateUsage]
            roles.cancel()
            for each in (*waits, result):
                with pytest.raises(ProviderStopped, match=r"was cancelled from outside.*start it again"):
                    await each
        else:
            while not uplink(first).why_broken:  # noqa: ASYNC110
                await asyncio.sleep(0)
        for provider in (first, second):
            with pytest.raises(ProviderStopped, match="cannot await nobody: the task 'eventbus-uplink'"):
                provider.emit("nobody", 3)
            with pytest.raises(ProviderStopped, match="cannot wait for a result: the task"):
                await provider.result("0-aaaaaaaaaaaa-00000001")
            await provider.emit("nobody", 4, reply=False)
    assert [each["event"] for each in logs].count("no outcome comes any more") == 1
    monkeypatch.undo()
    async with first:
        await first.emit("nobody", 5).enqueued()


async def _enqueued(emissions: list[Any]) -> str:
    for each in emissions:
        await each.enqueued()
    return emissions[0].job_id


async def test_what_is_raised_in_a_role_of_a_worker_is_told_to_those_who_wait_for_it(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch, logs: list[MutableMapping[str, Any]]
) -> None:
    provider = make_provider()
    provider.on("ask")(_same)

    async def broken(*_: Any) -> None:
        raise Failed("late")

    async with provider:
        monkeypatch.setattr(Claimer, "run", broken)
        with pytest.raises(BaseExceptionGroup) as caught:
            async with provider.worker() as worker:
                await asyncio.wait_for(worker.wait(), 20)
        assert caught.group_contains(Failed)
    assert "worker ended by an error" in [each["event"] for each in logs]


async def _same(n: int) -> int:
    return n


_UNSTOPPED = """
import asyncio
from eventbus import Emission, EventProvider
from workflows import StepContext, Workflow, WorkflowProvider

flow = Workflow("two", input=int, spread=True)

@flow.step
async def one(ctx: StepContext[int]) -> None: ...

@flow.step(after=[one])
async def other(ctx: StepContext[int]) -> None: ...

async def main() -> list[Emission[None]]:
    provider = EventProvider("redis://127.0.0.1:1/0")
    flows = WorkflowProvider(provider)
    flows.register(flow)
    await provider.__aenter__()
    emissions = [provider.emit("x", n, reply=False) for n in range(3000)]
    begun = []
    for n in range(30):
        begun.append(asyncio.create_task(flows.execute(flow, n)))
        await asyncio.sleep(0)
    return emissions

print(sum(each.send_error is not None for each in asyncio.run(main())))
"""


@pytest.mark.real
@pytest.mark.slow
async def test_a_loop_that_ends_without_a_stop_leaves_no_call_behind() -> None:
    """The calls under way are cancelled then; what waits behind them begins none."""
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-X", "dev", "-c", _UNSTOPPED],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "800\n"), ran.stderr
    assert "was destroyed" not in ran.stderr
    assert "no outcome comes any more" not in ran.stderr
