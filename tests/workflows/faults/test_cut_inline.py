"""A flow in this process that is stopped in any round of the event loop: what took effect is recorded, and
undone.

Of flows that only the caller is done with nothing is undone, but no function outlives the call, and what
took effect is recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest
from drivers.machines.cut import KINDS, effects, forget, meet_with, undone

from workflows import END, MachineContext, StateMachine, transition
from workflows.definition.flow_definition import definition_of
from workflows.definition.workflow import Workflow
from workflows.execution.environment import Environment
from workflows.inline.code_flow import CodeFlow
from workflows.inline.flow import InlineFlow
from workflows.inline.start import open_code, open_inline
from workflows.records.records import read_flow_failure

_MOST = 400
"""Rounds of the event loop that no flow here needs."""

_INLINE = [kind for kind in KINDS if not kind.startswith("spread")]


async def _round() -> None:
    await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    forget()
    meet_with(_round)
    yield
    forget()


def _open(kind: str, **options: Any) -> CodeFlow | InlineFlow:
    definition = definition_of(KINDS[kind], "a workflow")
    given: Any = {} if kind.startswith("pipeline") else 1
    if isinstance(definition, Workflow):
        return open_inline(definition, given, environment=Environment(), is_open=False, **options)
    return open_code(definition, given, environment=Environment(), **options)


def _after(rounds: int, call: Callable[[], Any]) -> None:
    """Make a call in this round of the event loop, counted from now."""
    if rounds:
        asyncio.get_running_loop().call_soon(_after, rounds - 1, call)
    else:
        call()


def _rollback(text: str) -> str:
    failure = read_flow_failure(text)
    assert failure is not None
    return failure.rollback


def _check_stopped(flow: CodeFlow | InlineFlow, rounds: int) -> bool:
    """Check what a flow that was to be stopped came to; return whether it completed before that."""
    state, text = flow.ended()
    if state == "completed":
        assert (effects, undone) == (["one", "two", "three"], [])
        return True
    assert undone == effects[::-1], f"stopped in round {rounds}"
    assert _rollback(text) == ("complete" if effects else "none")
    return False


@pytest.mark.parametrize("kind", _INLINE)
async def test_what_took_effect_is_undone_whenever_the_flow_is_cancelled(kind: str) -> None:
    for rounds in range(_MOST):
        forget()
        flow = _open(kind)
        _after(rounds, lambda flow=flow: flow.cancel("enough"))
        await flow.settle()
        if _check_stopped(flow, rounds):
            break
    else:
        pytest.fail("the flow never ends")
    assert rounds > 5


@pytest.mark.parametrize("kind", _INLINE)
async def test_what_took_effect_is_undone_whenever_the_time_of_the_flow_is_over(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    real, late = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: real() + late[0])

    def jump() -> None:
        late[0] += 10_000

    for rounds in range(_MOST):
        forget()
        flow = _open(kind, timeout=5000)
        _after(rounds, jump)
        await flow.settle()
        if _check_stopped(flow, rounds):
            break
    else:
        pytest.fail("the flow never ends")


def _recorded(flow: CodeFlow | InlineFlow) -> list[str]:
    """Return the bodies whose end a flow has recorded."""
    if isinstance(flow, CodeFlow):
        ends = [each for each in flow.recorder.entries if each.kind in ("move", "step")]
        told = [each.name if each.kind == "move" else bytes(each.result).decode().strip('"') for each in ends]
        return [each for each in told if each]
    return [name for name, step in flow.report().steps.items() if step.state == "completed"]


@pytest.mark.parametrize("scope", ["asyncio", "anyio"])
@pytest.mark.parametrize("kind", _INLINE)
async def test_a_caller_who_is_cancelled_leaves_no_function_behind_and_what_took_effect_is_recorded(
    kind: str, scope: str
) -> None:
    for rounds in range(_MOST):
        forget()
        flow = _open(kind)
        if scope == "anyio":
            with anyio.CancelScope() as cancelling:
                _after(rounds, cancelling.cancel)
                await flow.settle()
        else:
            call = asyncio.create_task(flow.settle())
            _after(rounds, call.cancel)
            await asyncio.wait({call})
            assert call.cancelled() or call.exception() is None
        had = list(effects)
        for _ in range(5):
            await asyncio.sleep(0)
        assert effects == had, f"a function outlived the call that was cancelled in round {rounds}"
        assert undone == []
        assert _recorded(flow) == effects, f"cancelled in round {rounds}"
        if flow.ended()[0] == "completed":
            break
    else:
        pytest.fail("the flow never ends")


@pytest.mark.slow
async def test_a_body_that_was_given_up_on_is_told_as_in_doubt_and_its_move_is_not_undone() -> None:
    may_end = asyncio.Event()

    class Deaf(StateMachine[int], name="cut-deaf", start="a"):
        @transition("a", to="b")
        async def one(self, ctx: MachineContext[int]) -> None:
            effects.append("one")

        @one.rollback
        async def undo_one(self, ctx: MachineContext[int]) -> None:
            undone.append("one")

        @transition("b", to=END)
        async def two(self, ctx: MachineContext[int]) -> None:
            flow.cancel("enough")
            while not may_end.is_set():
                try:
                    await may_end.wait()
                except asyncio.CancelledError:
                    continue

        @two.rollback
        async def undo_two(self, ctx: MachineContext[int]) -> None:
            undone.append("two")

    flow = open_code(Deaf.definition, 1, environment=Environment())
    await flow.settle()
    may_end.set()
    state, text = flow.ended()
    failure = read_flow_failure(text)
    assert failure is not None
    assert (state, failure.rollback) == ("cancelled", "incomplete")
    assert [name for name, _ in failure.rollback_errors] == ["two@2"]
    assert undone == ["one"]
