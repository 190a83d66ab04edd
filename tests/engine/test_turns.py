"""Turns whose answers are lost or refused: no job is lost, no outcome is dropped or delivered twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest

from eventbus import EventProvider, StoreError, StoreRefused, StoreUnavailable
from eventbus.store.scripting.packing import TurnRequest

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]


class Turns:
    """A fault point around the turns of a provider's worker; it strikes once."""

    def __init__(self, provider: EventProvider, error: Exception, *, on_settle: bool, is_done: bool) -> None:
        store: Any = provider._life.store  # pyright: ignore[reportPrivateUsage]
        self._turn = store.turn
        store.turn = self.turn
        self._error: Exception | None = error
        self._on_settle = on_settle
        self._is_done = is_done

    async def turn(self, request: TurnRequest) -> Any:
        strikes = self._error is not None and bool(request.settles) == self._on_settle
        if strikes and not self._is_done:
            raise self._take()
        answer = await self._turn(request)
        if strikes and (answer.claims or self._on_settle) and self._error is not None:
            raise self._take()
        return answer

    def _take(self) -> Exception:
        error, self._error = self._error, None
        assert error is not None
        return error


@pytest.mark.parametrize("on_settle", [True, False], ids=["settle", "claim"])
@pytest.mark.parametrize(
    ("error", "is_done"),
    [
        (StoreRefused("not now", code="NOPERM"), False),
        (StoreUnavailable("lost", sent=True), True),
        (StoreError("the server answered unexpectedly"), True),
    ],
    ids=["refused", "lost", "unreadable"],
)
async def test_all_jobs_end_once_though_a_turn_failed(
    make_provider: MakeProvider,
    logs: list[MutableMapping[str, Any]],
    error: Exception,
    *,
    is_done: bool,
    on_settle: bool,
) -> None:
    provider, emitter = make_provider(lease=0.5), make_provider()
    runs: list[int] = []

    @provider.on("ask", concurrency=4)
    async def ask(n: int) -> int:
        runs.append(n)
        return n

    async with emitter, provider:
        Turns(provider, error, on_settle=on_settle, is_done=is_done)
        async with provider.worker():
            emissions = emitter.emit_many("ask", range(20), reply_timeout=None)
            assert [await asyncio.wait_for(each, 240) for each in emissions] == list(range(20))
            # It goes on as before.
            assert await emitter.emit("ask", 99) == 99
    assert sorted(runs) == [*range(20), 99]
    assert "turn refused, trying again in 1 s" in {each["event"] for each in logs}


async def test_a_job_that_waits_to_be_settled_keeps_its_lease(
    make_provider: MakeProvider, until: Callable[..., Awaitable[None]]
) -> None:
    provider, other = make_provider(lease=0.5), make_provider(lease=0.5)
    runs: list[int] = []

    async def ask(n: int) -> int:
        runs.append(n)
        return n

    provider.on("ask")(ask)
    other.on("ask")(ask)
    async with provider, other:
        store: Any = provider._life.store
        turn, settle_one, held, renewals = store.turn, store.settle_one, asyncio.Event(), list[Any]()

        async def hold() -> None:
            if not held.is_set():
                held.set()
                await until(lambda: len(renewals) >= 12, "three leases have passed")

        async def settle_late(request: TurnRequest) -> Any:
            if request.settles:
                await hold()
            return await turn(request)

        async def settle_one_late(**call: Any) -> Any:
            await hold()
            return await settle_one(**call)

        store.turn = settle_late
        store.settle_one = lambda **call: asyncio.ensure_future(settle_one_late(**call))
        async with provider.worker() as worker:
            leases: Any = worker._worker.leases._leases
            renew = leases.renew

            def count(rows: list[Any], **facts: Any) -> Any:
                answer = renew(rows, **facts)
                renewals.extend(rows)
                return answer

            leases.renew = count
            emission = provider.emit("ask", 1)
            await held.wait()
            async with other.worker():
                assert await emission == 1
    assert runs == [1]
