"""Queues: what a caller may see of them, and the orders of operators.

Not here: how they are read (`queue_views`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from eventbus.admin.queue_name import queue_of
from eventbus.dashboard.desk.desk import ActionResult, Desk
from eventbus.dashboard.desk.queue_views import (
    QueueList,
    QueueView,
    controls_of,
    event_of_queue,
    look_at_queue,
)
from eventbus.dashboard.desk.rows import BareOrder, NoQuery, Read, Subject
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.entry.rights import Action, Target
from eventbus.dashboard.problem import Problem
from eventbus.model.limit import Limit

_ACTIONS: tuple[Action, ...] = ("queue.pause", "queue.limit", "job.read")


class LimitOrder(BareOrder, frozen=True):
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

    def check(self) -> None:
        """Raise a Problem unless it says what to limit, or to clear it."""
        if self.clear == any((self.at_once, self.rate, self.each, self.each_rate)):
            raise Problem(
                422, "expected at_once, rate, each or each_rate; or clear alone, to take back what was set"
            )


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


async def _find(desk: Desk, caller: Caller, name: str) -> tuple[str, Target]:
    queue = find_queue(desk, caller, name)
    return queue, queue_target(queue)


QUEUE: Subject[str] = Subject("/queues/{queue}", _find, forget=lambda desk: desk.queues.forget())


async def pause_queue(desk: Desk, caller: Caller, queue: str, order: BareOrder) -> ActionResult:
    """Let no worker claim jobs of the queue."""
    was_paused = (await controls_of(desk.provider, queue)).is_paused
    await desk.provider.pause(queue, reason=order.reason, by=caller.actor.name)
    return ActionResult(changed=not was_paused, note=f"{queue} is paused")


async def resume_queue(desk: Desk, _caller: Caller, queue: str, _order: BareOrder) -> ActionResult:
    """Let workers claim jobs of the queue again."""
    was_paused = (await controls_of(desk.provider, queue)).is_paused
    await desk.provider.resume(queue)
    return ActionResult(changed=was_paused, note=f"{queue} is not paused")


async def limit_queue(desk: Desk, _caller: Caller, queue: str, order: LimitOrder) -> ActionResult:
    """Set the limit of the queue, or take it back."""
    given = None
    if not order.clear:
        rate, each_rate = _rates(order.rate), _rates(order.each_rate)
        given = Limit(at_once=order.at_once, rate=rate, each=order.each, each_rate=each_rate)
    before = (await controls_of(desk.provider, queue)).limit
    await desk.provider.set_limit(queue, given)
    after = (await controls_of(desk.provider, queue)).limit
    return ActionResult(changed=before != after, note=f"the limit of {queue} is {_shown(after)}")


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


READS = (
    Read("/queues", "The queues that are known.", QueueList, read_queues),
    Read("/queues/{queue}", "One queue.", QueueView, read_queue),
)
ACTS = (
    QUEUE.row("pause", "Pause a queue.", "queue.pause", BareOrder, pause_queue),
    QUEUE.row("resume", "Resume a queue.", "queue.pause", BareOrder, resume_queue),
    QUEUE.row("limits", "Set a queue's limit.", "queue.limit", LimitOrder, limit_queue),
)
