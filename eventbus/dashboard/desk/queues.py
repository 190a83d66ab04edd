"""Queues: what a caller may see of them, and the orders of operators.

Not here: how they are read (`queue_views`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

import msgspec

from eventbus.admin.queue_name import queue_of
from eventbus.dashboard.desk.desk import ActionResult, Desk, Reason
from eventbus.dashboard.desk.queue_views import (
    QueueList,
    QueueView,
    controls_of,
    event_of_queue,
    look_at_queue,
)
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.entry.rights import Action, Target
from eventbus.dashboard.problem import Problem
from eventbus.model.limit import Limit

__all__ = [
    "LimitOrder",
    "NoQuery",
    "PauseOrder",
    "ResumeOrder",
    "limit_queue",
    "pause_queue",
    "queue_target",
    "read_queue",
    "read_queues",
    "resume_queue",
]

_ACTIONS: tuple[Action, ...] = ("queue.pause", "queue.limit", "job.read")


class NoQuery(msgspec.Struct, frozen=True):
    """A request that takes no query."""


class PauseOrder(msgspec.Struct, frozen=True):
    """Why a queue is paused."""

    reason: Reason = ""


class ResumeOrder(msgspec.Struct, frozen=True):
    """Nothing more is said."""

    reason: Reason = ""


class LimitOrder(msgspec.Struct, frozen=True):
    """A limit: how many jobs may run at once, and how many may start, such as `100/1m`; and the same of each
    limit key.

    It takes the place of the whole limit that held before. In a text, rates have commas between. `clear`
    takes back what was set.
    """

    at_once: Annotated[int, msgspec.Meta(ge=1)] | None = None
    rate: list[str] | str = ""
    each: Annotated[int, msgspec.Meta(ge=1)] | None = None
    each_rate: list[str] | str = ""
    clear: bool = False
    reason: Reason = ""


def queue_target(queue: str) -> Target:
    """Return what rights are asked about."""
    return Target("queue", queue, event_of_queue(queue))


async def read_queues(desk: Desk, caller: Caller, _path: dict[str, str], _query: NoQuery) -> QueueList:
    """Return all queues that the caller may see."""
    found: QueueList = await desk.queues.read()
    seen = [
        _with_rights(desk, caller, view)
        for view in found.queues
        if desk.sees(caller, queue_target(view.queue))
    ]
    return QueueList(queues=seen, at_ms=found.at_ms)


async def read_queue(desk: Desk, caller: Caller, path: dict[str, str], _query: NoQuery) -> QueueView:
    """Return one queue."""
    queue = find_queue(desk, caller, path["queue"])
    return _with_rights(desk, caller, await look_at_queue(desk.provider, queue))


def find_queue(desk: Desk, caller: Caller, name: str) -> str:
    """Return the queue of that name. Raises Problem, 404, if the caller may not see it."""
    queue = queue_of(name)
    desk.demand_sight(caller, queue_target(queue), f"queue {queue!r}")
    return queue


async def pause_queue(desk: Desk, caller: Caller, path: dict[str, str], order: PauseOrder) -> ActionResult:
    """Let no worker claim jobs of the queue."""
    queue = find_queue(desk, caller, path["queue"])

    async def pause() -> ActionResult:
        was_paused = (await controls_of(desk.provider, queue)).is_paused
        await desk.provider.pause(queue, reason=order.reason, by=caller.actor.name)
        return ActionResult(changed=not was_paused, note=f"{queue} is paused")

    return await _act(desk, caller, "queue.pause", queue, pause, order.reason)


async def resume_queue(desk: Desk, caller: Caller, path: dict[str, str], order: ResumeOrder) -> ActionResult:
    """Let workers claim jobs of the queue again."""
    queue = find_queue(desk, caller, path["queue"])

    async def resume() -> ActionResult:
        was_paused = (await controls_of(desk.provider, queue)).is_paused
        await desk.provider.resume(queue)
        return ActionResult(changed=was_paused, note=f"{queue} is not paused")

    return await _act(desk, caller, "queue.pause", queue, resume, order.reason)


async def limit_queue(desk: Desk, caller: Caller, path: dict[str, str], order: LimitOrder) -> ActionResult:
    """Set the limit of the queue, or take it back."""
    queue = find_queue(desk, caller, path["queue"])
    bounds = (order.at_once, order.rate, order.each, order.each_rate)
    if order.clear == any(bounds):
        raise Problem(
            422, "expected at_once, rate, each or each_rate; or clear alone, to take back what was set"
        )

    async def limit() -> ActionResult:
        given = None
        if not order.clear:
            given = Limit(
                at_once=order.at_once,
                rate=_rates(order.rate),
                each=order.each,
                each_rate=_rates(order.each_rate),
            )
        before = (await controls_of(desk.provider, queue)).limit
        await desk.provider.set_limit(queue, given)
        after = (await controls_of(desk.provider, queue)).limit
        return ActionResult(changed=before != after, note=f"the limit of {queue} is {_shown(after)}")

    return await _act(desk, caller, "queue.limit", queue, limit, order.reason)


async def _act(
    desk: Desk,
    caller: Caller,
    action: Action,
    queue: str,
    change: Callable[[], Awaitable[ActionResult]],
    reason: str,
) -> ActionResult:
    done = await desk.act(caller, action, queue_target(queue), change, reason=reason)
    desk.queues.forget()  # so that the next page shows it
    return done


def _with_rights(desk: Desk, caller: Caller, view: QueueView) -> QueueView:
    return msgspec.structs.replace(view, may=desk.abilities(caller, queue_target(view.queue), *_ACTIONS))


def _shown(limit: Limit | None) -> str:
    if limit is None:
        return "none"
    words = [f"{limit.at_once} at once"] if limit.at_once else []
    words += _rates(limit.rate)
    words += [f"{limit.each} of each key"] if limit.each else []
    return ", ".join([*words, *(f"{rate} of each key" for rate in _rates(limit.each_rate))])


def _rates(given: Sequence[str] | str) -> list[str]:
    """Return the rates that were given; in a text they have commas between."""
    texts = given.split(",") if isinstance(given, str) else given
    return [text for rate in texts if (text := rate.strip())]
