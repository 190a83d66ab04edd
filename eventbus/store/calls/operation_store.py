"""Bulk operations in the store: what is to be done to which jobs, and how far that is.

`ControlStore.operations` is one of these. Not here: who does it, and how (`engine.operation_runner`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from eventbus.store.connection.retrying import RetryingCaller
from eventbus.store.keys import Keys

_DAMAGED: dict[str, str] = {"": ""}
"""Stands for a record of another type of key."""


class OperationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One operation, as it is kept.

    `action` is done to the jobs of `queue` in the state `of`: to those with the error `error`, if there is
    one, that ended, or for open ones were added, up to `before` (ms). If there are `jobs` (a JSON list of
    ids), it is done to those instead. `total` is how many there were at the beginning, or -1. `state` is
    running, completed, failed or stopped, with `problem` for a failed one.

    `done` and `failed` are how many jobs it was done to, and how many did not allow it. `number`, `batch` (a
    JSON list of ids) and `cursor` are the last jobs that its runner took up, and where it goes on behind
    them. `tries` is how many runners in a row came to nothing.
    """

    id: str
    action: str
    queue: str
    of: str = ""
    error: str = ""
    before: int = 0
    jobs: str = ""
    by: str = ""
    reason: str = ""
    total: int = -1
    state: str = ""
    begun: int = 0
    ended: int = 0
    stopped_by: str = ""
    problem: str = ""
    done: int = 0
    failed: int = 0
    number: int = 0
    batch: str = ""
    cursor: str = ""
    token: str = ""
    tries: int = 0


class OperationStore:
    """The operations of one shard."""

    def __init__(self, caller: RetryingCaller, keys: Keys) -> None:
        self._caller = caller
        self._keys = keys

    async def begin(
        self, record: OperationRecord, *, deadline: float | None = None, now: int | str = ""
    ) -> bool:
        """Keep an operation, for a runner to take. Return False if there is one of that id, which is left as
        it is.
        """
        written = ("action", "queue", "of", "error", "before", "jobs", "by", "reason", "total")
        fields = {name: getattr(record, name) for name in written}
        return await self._call("begin", record.id, fields=fields, deadline=deadline, now=now) == "begun"

    async def take(self, token: str, *, lease_ms: int, now: int | str = "") -> OperationRecord | None:
        """Take an operation that nobody works at, until its lease ends; None if there is none. `token` is
        fresh.

        One that is stopped is taken, too, while the jobs that its lost runner took up last are not counted.
        """
        found = await self._call("take", token=token, lease_ms=lease_ms, now=now)
        return _read(found[0], found[1:]) if found else None

    async def save(
        self, record: OperationRecord, *, lease_ms: int, ending: str = "", now: int | str = ""
    ) -> str:
        """Keep how far an operation is, and let its lease begin anew; `ending` is the state in which it ends
        now.

        Return `running`, the state in which it has ended, or `lost` if another runner has taken it. The jobs
        that follow are kept only while it runs.
        """
        fields: dict[str, Any] = {"done": record.done, "failed": record.failed}
        if ending == "failed":
            fields["problem"] = record.problem
        following = {"number": record.number, "batch": record.batch, "cursor": record.cursor}
        return await self._call(
            "save",
            record.id,
            token=record.token,
            lease_ms=lease_ms,
            state=ending,
            fields=fields,
            following=following,
            now=now,
        )

    async def stop(self, id_: str, by: str, *, deadline: float | None = None, now: int | str = "") -> str:
        """Stop an operation. Return `stopped`, another state in which it has ended, or `unknown`."""
        return await self._call("stop", id_, fields={"stopped_by": by}, deadline=deadline, now=now)

    async def read(self, id_: str, *, deadline: float | None = None) -> OperationRecord | None:
        """Return one operation; None if there is none of that id.

        One that is damaged has failed, and says so as its `problem`.
        """
        name = self._keys.of("operation", id_)
        flat = await self._caller.look("HGETALL", name, missing=_DAMAGED, deadline=deadline)
        return _read(id_, flat) or (_damaged(id_) if flat else None)

    async def list(self, most: int, *, deadline: float | None = None) -> list[OperationRecord]:
        """Return the newest operations."""
        name = self._keys.shard_key("operations")
        ids: list[str] = await self._caller.look(
            "ZRANGE", name, 0, most - 1, "REV", missing=[], deadline=deadline
        )
        found = [await self.read(id_, deadline=deadline) for id_ in ids]
        return [record for record in found if record is not None]

    async def _call(
        self,
        what: str,
        id_: str = "",
        *,
        token: str = "",
        lease_ms: int = 0,
        state: str = "",
        fields: Mapping[str, Any] | None = None,
        following: Mapping[str, Any] | None = None,
        deadline: float | None = None,
        now: int | str = "",
    ) -> Any:
        arguments: list[Any] = [now, what, id_, token, lease_ms, state, _flat(fields), _flat(following)]
        return await self._caller.script("operation", arguments, deadline=deadline)


def _damaged(id_: str) -> OperationRecord:
    problem = "its record in the server is damaged, so nobody goes on with it"
    return OperationRecord(id=id_, action="", queue="", state="failed", problem=problem)


def _flat(fields: Mapping[str, Any] | None) -> list[Any]:
    return list(chain.from_iterable((fields or {}).items()))


def _read(id_: str, flat: Sequence[str] | Mapping[str, str]) -> OperationRecord | None:
    """Return the record of a hash; None for none, and for what is damaged."""
    named = flat if isinstance(flat, Mapping) else dict(zip(flat[::2], flat[1::2], strict=True))
    try:
        return msgspec.convert({**named, "id": id_}, OperationRecord, strict=False) if named else None
    except msgspec.ValidationError:
        return None
