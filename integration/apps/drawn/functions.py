"""Durable functions of random calls, made from a seed: the same in every process.

The input of a flow is a `Course`, as that of the graphs: it says what each act does. A function returns lines
about what it did, in the order of its code; `checks.returned` says which ones are possible.

The tasks write their effects into the journal, under the id of the flow and the label of the call (`act@2`).
A result names the process that it comes from: if the recorded one is not of the last effect, a recorded step
ran again. The code writes, too: what it has seen of each piece, each time (`saw`), and that it returned or
raised (`ended`).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Sequence
from contextvars import ContextVar
from typing import Any

import msgspec
from apps.drawn.graphs import RULE, Act, Course, acts_of
from apps.drawn.pieces import Piece, make_body
from apps.step_actions import write
from harness.journal import process_id

from eventbus import CallNext
from workflows import AttemptContext, Durable, FlowContext, Signal, Workflow, durable, step_key, task

__all__ = ["TASKS", "Done", "Function", "count_attempt", "go", "make_functions", "maybe"]

go: Signal[int] = Signal("go", int)
"""A test sends as many as a function waits for."""
maybe: Signal[int] = Signal("maybe", int)
"""One that may come within a limit, or not."""

_CALLS = ("call", "sleep", "wait", "map", "flow")
"""The kinds of pieces that are one call of the context."""

_attempt: ContextVar[int] = ContextVar("attempt", default=1)
_run: ContextVar[int] = ContextVar("run", default=1)


class Errand(msgspec.Struct):
    """What a task is to do: its name in the course, and its act."""

    name: str
    number: int
    act: Act


class Done(msgspec.Struct):
    """The result of a task, and the process that made it."""

    errand: Errand
    pid: int

    @property
    def told(self) -> str:
        return f"{self.errand.name} by {self.pid}"


async def count_attempt(value: Any, ctx: AttemptContext, call_next: CallNext) -> Any:
    """Tell the tasks which attempt they are, of which run: the middleware of the workers."""
    _attempt.set(ctx.attempt)
    _run.set(ctx.run)
    return await call_next(value)


def _note(what: str, name: str) -> None:
    flow_id, _, position = step_key().removesuffix("/undo").rpartition("/")
    write(what, flow_id.rpartition("/")[0], _attempt.get(), f"{name}@{position}")


def _do(name: str, errand: Errand) -> Done:
    if _attempt.get() < errand.act.good_in(_run.get()):
        raise ConnectionError(f"attempt {_attempt.get()} of {errand.name}")
    _note("did", name)
    return Done(errand, process_id())


def _undo(name: str, done: Done) -> None:
    if _attempt.get() < done.errand.act.undo:
        raise ConnectionError(f"attempt {_attempt.get()} to undo {done.errand.name}")
    _note("undid", name)


@task
async def act(errand: Errand) -> Done:
    _note("began", "act")
    await asyncio.sleep(errand.act.ms / 1000)
    return _do("act", errand)


@act.rollback
async def undo_act(done: Done) -> None:
    _note("undoing", "act")
    await asyncio.sleep(min(done.errand.act.ms, 50) / 1000)
    _undo("act", done)


@task
def block(errand: Errand) -> Done:
    """Act in a thread."""
    _note("began", "block")
    time.sleep(errand.act.ms / 1000)
    return _do("block", errand)


@block.rollback
def undo_block(done: Done) -> None:
    _note("undoing", "block")
    _undo("block", done)


@task
async def look(errand: Errand) -> Done:
    """Act without a rollback."""
    _note("began", "look")
    await asyncio.sleep(errand.act.ms / 1000)
    return _do("look", errand)


TASKS = {each.name: each for each in (act, block, look)}


class Function:
    """A durable function, and the piece that its code is."""

    def __init__(self, name: str, body: Piece) -> None:
        self.name = name
        self.body = body

        @durable(name, retry=RULE, signals=[go, maybe])
        async def run(ctx: FlowContext[Course]) -> list[str]:
            try:
                told = await _play(ctx, body)
            except Exception:
                write("ended", ctx.flow_id, ctx.run, name)
                raise
            write("ended", ctx.flow_id, ctx.run, name)
            return told

        self.durable: Durable[Course, list[str]] = run

    def acts(self) -> list[str]:
        """Return the names of all that a flow does, those of flows that it starts, too."""
        found: dict[str, None] = {}
        for piece in self.body.all():
            found |= dict.fromkeys(piece.acts)
            if piece.flow is not None:
                flow = piece.flow
                found |= dict.fromkeys(flow.acts() if isinstance(flow, Function) else acts_of(flow))
        return list(found)


async def _play(ctx: FlowContext[Course], piece: Piece) -> list[str]:
    """Run a piece, and tell what the code has seen of it: each replay must see the same."""
    told = await _play_unseen(ctx, piece)
    write("saw", ctx.flow_id, ctx.run, f"{piece.name}={'; '.join(told)}")
    return told


async def _play_unseen(ctx: FlowContext[Course], piece: Piece) -> list[str]:
    if piece.kind == "limited":
        try:
            return [f"maybe {await ctx.wait_for(maybe, timeout=piece.size / 1000)}"]
        except TimeoutError:
            return ["maybe not"]
    if piece.kind == "derived":
        return [f"derived {ctx.now().timestamp()} {ctx.random.random()} {ctx.uuid()}"]
    if piece.kind == "catch":
        try:
            return await _play(ctx, piece.parts[0])
        except Exception:  # noqa: BLE001  (any failure of its pieces)
            return ["caught"]
    if piece.kind == "gather":
        every = await ctx.gather(*(_part(ctx, part) for part in piece.parts))
        return [line for part, value in zip(piece.parts, every, strict=True) for line in _told(part, value)]
    if piece.kind == "race":
        number, value = await ctx.race(*(_part(ctx, part) for part in piece.parts))
        return [f"won {number}", *_told(piece.parts[number], value)]
    if piece.kind == "row":
        return [line for part in piece.parts for line in await _play(ctx, part)]
    return _told(piece, await _call(ctx, piece))


def _part(ctx: FlowContext[Course], piece: Piece) -> Awaitable[Any]:
    """Return a part of a group: a call as it is, other code as a branch."""
    return _call(ctx, piece) if piece.kind in _CALLS else _play(ctx, piece)


def _call(ctx: FlowContext[Course], piece: Piece) -> Awaitable[Any]:
    course = ctx.input
    errands = [Errand(name, course.number, course.acts[name]) for name in piece.acts]
    if piece.kind == "sleep":
        return ctx.sleep(piece.size / 1000)
    if piece.kind == "wait":
        return ctx.wait_for(go)
    if piece.kind == "call":
        return ctx.step(TASKS[piece.task], errands[0])
    if piece.kind == "map":
        return ctx.map(TASKS[piece.task], errands, limit=piece.limit, local=piece.is_local)
    started: Any = piece.flow.durable if isinstance(piece.flow, Function) else piece.flow
    return ctx.flow(started, course)


def _told(piece: Piece, value: Any) -> list[str]:
    """Return the lines of a piece from the value of its call, or of its branch."""
    if piece.kind == "sleep":
        return []
    if piece.kind == "wait":
        return [f"go {value}"]
    if piece.kind == "call":
        return [value.told]
    if piece.kind == "map":
        return [done.told for done in value]
    return [piece.flow.name] if piece.kind == "flow" else value


def make_functions(
    seed: int, count: int, parts: Sequence[Workflow[Course, Any]], *, has_threads: bool = True
) -> list[Function]:
    """Make `count` functions and those that they start, which come first; they start some of `parts`, too.
    Without `has_threads` no task is plain.
    """
    tasks = [name for name in TASKS if has_threads or TASKS[name] is not block]

    def make(name: str, number: int, flows: Sequence[Any]) -> Function:
        rng = random.Random(f"{seed}-{name}-{number}")
        size = rng.randint(2, 6) if len(flows) > 1 else 2
        return Function(f"{name}{number}", make_body(f"{name}{number}", rng, tasks, flows, size=size))

    inner = [make("call", n, parts[:1]) for n in range(2)]
    flows = [*inner, *parts]
    return [*inner, *(make("function", n, flows) for n in range(count))]
