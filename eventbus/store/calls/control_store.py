"""Controls in the store: what people order for a queue, and what they change of a job that waits.

`Store.controls` is one of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple, TypeVar

from eventbus.errors import DefinitionError
from eventbus.model.keep import Keep, keeps_from_wire
from eventbus.model.limit import Limit
from eventbus.store.bounds import CALL_QUEUES
from eventbus.store.calls.audit_store import AuditStore
from eventbus.store.calls.operation_store import OperationStore
from eventbus.store.calls.retrial import RetrialStore
from eventbus.store.connection.retrying import RetryingCaller
from eventbus.store.keys import Keys
from eventbus.store.readable import is_number, number

T = TypeVar("T")


class Edit(NamedTuple):
    """What is to change of one job. What is `''` stays.

    `states` are those in which it may be changed. `call` is fresh for each request. `due` is in ms from now,
    0 for now. `print` is the SHA-1, in hex, of the body that `body` replaces. `limit` is the digest of the
    limit key that goes with `body`.
    """

    job: str
    call: str
    states: tuple[str, ...]
    due: int | str = ""
    priority: int | str = ""
    print: str = ""
    body: str = ""
    limit: str = ""


class Orders(NamedTuple):
    """What is ordered for one queue, as it is kept (`orders.lua`), how many jobs wait there, and how many of
    its limit run.
    """

    queue: str
    waiting: int
    running: int
    fields: dict[str, str]

    @property
    def is_limited(self) -> bool:
        """Whether a limit holds."""
        return bool(self._limit)

    @property
    def paused_ms(self) -> int:
        """Since when the queue is paused, 0 if it is not; 1 if that time cannot be read."""
        return number(self.fields.get("paused"), damaged=1)

    @property
    def limit(self) -> Limit | None:
        """The limit that holds; None also for one that cannot be read."""
        return _read(Limit.from_wire, self._limit) if self._limit else None

    @property
    def keeps(self) -> tuple[Keep | None, Keep | None]:
        """How long completed and failed jobs are kept; None where nothing, or what cannot be read.

        Is declared.
        """
        return _read(keeps_from_wire, self.fields.get("keeps", "")) or (None, None)

    @property
    def unreadable(self) -> str:
        """What of the orders cannot be read, because it is damaged or of another release; `''` if all can."""
        bad = [] if is_number(self.fields.get("paused")) else ["since when it is paused"]
        bad += ["its limit"] if self._limit and self.limit is None else []
        bad += ["its retention"] if _read(keeps_from_wire, self.fields.get("keeps", "")) is None else []
        return f"{', '.join(bad)} cannot be read" if bad else ""

    @property
    def _limit(self) -> str:
        return self.fields.get("ordered") or self.fields.get("declared") or ""


class Hindrance(NamedTuple):
    """What a limit says of a queue and of one limit key: whether the key rests, and when its rate and that of
    the queue let jobs start again (ms, 0: not a rate).
    """

    rests: bool
    key_opens: int
    queue_opens: int


def _read(read: Callable[[str], T], text: str) -> T | None:
    """Return what a text of the server says; None for one that says nothing that is known here."""
    try:
        return read(text)
    except (DefinitionError, ValueError, TypeError):
        return None


class ControlStore:
    """The controls of one shard's queues."""

    def __init__(self, caller: RetryingCaller, keys: Keys) -> None:
        self._caller = caller
        self._keys = keys
        self.retrials: RetrialStore = RetrialStore(caller)
        self.operations: OperationStore = OperationStore(caller, keys)
        self.audit: AuditStore = AuditStore(caller, keys)

    async def pause(
        self, queue: str, *, by: str, reason: str, deadline: float | None = None, now: int | str = ""
    ) -> None:
        """Let nobody claim jobs of the queue. `by` and `reason` are kept beside it."""
        await self._caller.script("pause", [now, "pause", queue, by, reason], deadline=deadline)

    async def resume(self, queue: str, *, deadline: float | None = None, now: int | str = "") -> None:
        """Let jobs of a paused queue be claimed again, and wake who serves it. What stands there of another
        queue goes home.
        """
        left = await self._caller.script("pause", [now, "resume", queue, "", ""], deadline=deadline)
        before = math.inf
        while 0 < left < before:  # what does not move any more stays: somebody else's value stands there
            before = left
            # A call moves a part; it does not take a pause back that somebody has made meanwhile.
            left = await self._caller.script("pause", [now, "move", queue, "", ""], deadline=deadline)

    async def paused(self, among: Callable[[str], bool], *, deadline: float | None = None) -> frozenset[str]:
        """Return the paused queues whose names `among` accepts."""
        named = [queue for queue in await self.limited(deadline=deadline) if among(queue)]
        if not named:
            return frozenset()
        found = await self.look(named, deadline=deadline)
        return frozenset(orders.queue for orders in found if "paused" in orders.fields)

    async def edit(self, edit: Edit, *, deadline: float | None = None, now: int | str = "") -> str:
        """Change a job that waits.

        Return `changed`; `other` if its body is another one; `member` for a job of a tree; `begun` for a root
        that has run; `unknown`; or its state, which is none of the states asked for.
        """
        job, call, states, due, priority, print_, body, limit = edit
        arguments: list[Any] = [now, job, call, due, priority, print_, body, limit, states]
        return await self._caller.script("edit", arguments, deadline=deadline)

    async def set_limit(
        self, queue: str, limit: str, *, deadline: float | None = None, now: int | str = ""
    ) -> str:
        """Set the limit of a queue (JSON), over what programs declare, or with `''` take it back. Return what
        holds now.
        """
        return await self._caller.script("limit", [now, queue, limit], deadline=deadline)

    async def is_held_back(self, queues: Container[str]) -> bool:
        """Return whether jobs wait in any of these queues because of a limit, and not because of a pause."""
        looks = await self.look([queue for queue in await self.limited() if queue in queues])
        return any(each.waiting and each.is_limited and "paused" not in each.fields for each in looks)

    async def limited(self, *, deadline: float | None = None) -> list[str]:
        """Return the queues for which anything is ordered."""
        name = self._keys.shard_key("limited")
        return await self._caller.look("SMEMBERS", name, missing=[], deadline=deadline)

    async def hindrance(self, queue: str, lane: str, *, deadline: float | None = None) -> Hindrance:
        """Look at what a limit says of a queue and of the digest of one limit key, `''` for a job without
        one.
        """
        due, rests = self._keys.shard_key("due"), [0]
        if lane:
            name = self._keys.of("resting", queue)
            rests = await self._caller.look("SMISMEMBER", name, lane, missing=[0], deadline=deadline)
        opens = [
            await self._caller.look("ZSCORE", due, entry, missing=0, deadline=deadline)
            for entry in (f"lane:{lane}/{queue}", f"turn:{queue}")
        ]
        return Hindrance(rests[0] == 1, *map(number, opens))

    async def look(self, queues: Sequence[str], *, deadline: float | None = None) -> list[Orders]:
        """Return what is ordered for these queues, one row for each, in order."""
        found: list[Orders] = []
        for first in range(0, len(queues), CALL_QUEUES):
            batch = queues[first : first + CALL_QUEUES]
            rows: list[Any] = await self._caller.look_by("limits", [len(batch), *batch], deadline=deadline)
            for queue, (waiting, running, flat) in zip(batch, rows, strict=True):
                fields = dict(zip(flat[::2], flat[1::2], strict=True))
                found.append(Orders(queue, waiting, running, fields))
        return found
