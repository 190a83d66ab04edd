"""The rows of the table of what can be read and done, and the subjects of actions: a queue, a job, a flow, a
schedule, an operation.

    find the subject (404 for what the caller may not see) -> act, if it may (`Desk.act`)
    -> forget what is shown of it

What must always hold: an action is a function of what was found and of an order, and knows no rights.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from eventbus.dashboard.desk.desk import ActionResult, Desk, Reason
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.entry.rights import Action, Target


class NoQuery(msgspec.Struct, frozen=True):
    """A request that takes no query."""


class Read(NamedTuple):
    """A GET route: `read` answers with an `answer`, `query` is the struct of its query."""

    path: str
    summary: str
    answer: type[Any]
    read: Callable[[Desk, Caller, dict[str, str], Any], Awaitable[Any]]
    query: type[Any] = NoQuery


class BareOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order that says no more than why."""

    reason: Reason = ""

    def check(self) -> None:
        """Raise a Problem for an order that contradicts itself."""


class Act(NamedTuple):
    """A route that changes something: `act` takes an `order`.

    The API has it at `path` with `method`. Pages post a form to `form`, unless it is empty, and are sent back
    to the page of the target. The name of the target must be typed into a form that `is_final`. What an
    action that is not `is_kept` answers is never kept for a repeat of it: it changes nothing, and shows what
    is hidden.
    """

    method: str
    path: str
    form: str
    summary: str
    order: type[Any]
    act: Callable[[Desk, Caller, dict[str, str], Any], Awaitable[ActionResult]]
    is_final: bool = False
    is_kept: bool = True


T = TypeVar("T")
O = TypeVar("O", bound=BareOrder)  # noqa: E741  (order)

_Right: TypeAlias = "Action | Callable[[Target], Action]"
"""What an action needs, also by its target."""


class Subject(Generic[T]):
    """A kind of thing that is acted on. `path` is that of one of them, such as `/jobs/{job}`."""

    def __init__(
        self,
        path: str,
        find: Callable[[Desk, Caller, str], Awaitable[tuple[T, Target]]],
        *,
        forget: Callable[[Desk], None] | None = None,
    ) -> None:
        """`find` returns the one of a name, and what rights are asked about. `forget` drops what all viewers
        share and an action has changed.
        """
        self._path = path
        self._find = find
        self._forget = forget

    def row(
        self,
        end: str,
        summary: str,
        right: _Right,
        order: type[O],
        change: Callable[[Desk, Caller, T, O], Awaitable[ActionResult]],
        *,
        method: str = "",
        is_kept: bool = True,
    ) -> Act:
        """Return the row of an action whose form is at `end` of the path. With a `method` of its own the API
        has it at the path itself; by DELETE the subject is gone.
        """
        form = f"{self._path}/{end}"
        place = self._path if method else form
        act = partial(self.act, right=right, change=change)
        return Act(method or "POST", place, form, summary, order, act, method == "DELETE", is_kept)

    async def act(
        self,
        desk: Desk,
        caller: Caller,
        path: dict[str, str],
        order: O,
        *,
        right: _Right,
        change: Callable[[Desk, Caller, T, O], Awaitable[ActionResult]],
    ) -> ActionResult:
        """Change the one whose name comes first in the path. Raises Problem, and what `change` raises."""
        found, target = await self._find(desk, caller, next(iter(path.values())))
        order.check()
        action = right(target) if callable(right) else right
        do = partial(change, desk, caller, found, order)
        done = await desk.act(caller, action, target, do, reason=order.reason)
        if self._forget is not None:
            self._forget(desk)
        return done
