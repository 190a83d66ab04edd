"""Guards of machines: what they see, and what becomes of those that raise."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from drivers.machines.acting import Draft, Open

from eventbus import Retry
from workflows import END, MachineContext, StateMachine, transition
from workflows.testing import run_inline

pytestmark = pytest.mark.virtual


class Sorting(StateMachine[Draft], name="sorting", start="a"):
    @transition("a", to="sent", retry=Retry(attempts=2, delay=0.01), error_place="broken")
    async def send(self, ctx: MachineContext[Draft]) -> None:
        if ctx.attempt == 1 or ctx.state.value:
            raise ConnectionError("the post is closed")

    @transition("sent", to=END, when=lambda ctx: ctx.error != "")
    async def doubt(self, ctx: MachineContext[Draft]) -> str:
        return f"sent, with the error of another place: {ctx.error}"

    @transition("sent", to=END)
    async def end(self, ctx: MachineContext[Draft]) -> str:
        return "sent"

    @transition("broken", to=END, when=lambda ctx: "post is closed" in ctx.error)
    async def keep(self, ctx: MachineContext[Draft]) -> str:
        return "kept for the post"

    @transition("broken", to=END)
    async def drop(self, ctx: MachineContext[Draft]) -> str:
        return "dropped"


async def test_a_guard_reads_the_error_of_its_own_place_and_of_no_other(open_flows: Open) -> None:
    flows = await open_flows(Sorting)
    sent, kept = [await flows.execute(Sorting, Draft(value)) for value in (0, 1)]
    assert await sent.result(timeout=240) == "sent"
    assert await kept.result(timeout=240) == "kept for the post"
    assert await run_inline(Sorting, Draft(0)) == "sent"
    assert await run_inline(Sorting, Draft(1)) == "kept for the post"


def spoil(ctx: MachineContext[Any]) -> bool:
    ctx.state.seen.append("spoiled")
    return False


class Spoiled(StateMachine[Draft], name="spoiled", start="a"):
    @transition("a", to=END, when=spoil)
    async def never(self, ctx: MachineContext[Draft]) -> str:
        return "never"

    @transition("a", to=END, when=lambda ctx: bool(ctx.state.seen))
    async def seen(self, ctx: MachineContext[Draft]) -> str:
        return "it saw what another guard did"

    @transition("a", to=END)
    async def end(self, ctx: MachineContext[Draft]) -> str:
        return "nothing was seen"


async def test_each_guard_gets_a_state_of_its_own() -> None:
    assert await run_inline(Spoiled, Draft()) == "nothing was seen"


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(3), asyncio.CancelledError("of its own")], ids=repr
)
@pytest.mark.parametrize("is_async", [False, True])
async def test_whatever_a_guard_raises_is_a_failed_attempt_of_its_transition(
    open_flows: Open, error: BaseException, is_async: bool
) -> None:
    def plain(ctx: MachineContext[Any]) -> bool:
        raise error

    async def waiting(ctx: MachineContext[Any]) -> bool:
        await asyncio.sleep(0)
        raise error

    class Guarded(StateMachine[Draft], name="guarded", start="a"):
        @transition("a", to=END, when=waiting if is_async else plain, error_place="broken")
        async def go(self, ctx: MachineContext[Draft]) -> str:
            return "went"

        @transition("broken", to=END)
        async def tell(self, ctx: MachineContext[Draft]) -> str:
            return ctx.error

    flows = await open_flows(Guarded)
    told = await (await flows.execute(Guarded, Draft())).result(timeout=240)
    assert type(error).__name__ in told
    assert str(error) in told
