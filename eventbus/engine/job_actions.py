"""What a bulk operation does to the jobs of one batch.

What must always hold: the same batch under the same name changes nothing twice, and is counted as the first
time; a job that does not allow the action stays as it is, and counts as failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from eventbus.store.calls.control_store import Edit
from eventbus.store.calls.operation_store import OperationRecord
from eventbus.store.scripting.script_rows import CancelRow
from eventbus.store.store import Store
from eventbus.telemetry.failure import describe_cancelled

_STATES = ("waiting", "delayed", "parked", "completed", "failed", "cancelled")

ACTIONS: dict[str, tuple[str, ...]] = {
    "retry": ("failed", "cancelled"),
    "remove": _STATES,
    "cancel": ("waiting", "delayed", "parked", "active"),
    "promote": ("delayed",),
}
"""What can be done to jobs in which states."""


class JobActions:
    """Does the actions in one server."""

    def __init__(self, store: Store, *, key_ttl_ms: int) -> None:
        self._store = store
        self._key_ttl_ms = key_ttl_ms
        self._by_name: dict[str, Callable[[OperationRecord, list[str], str], Awaitable[int]]] = {
            "retry": self._retry,
            "remove": self._remove,
            "cancel": self._cancel,
            "promote": self._promote,
        }

    async def apply(self, record: OperationRecord, jobs: list[str]) -> int:
        """Do the action to the jobs of a batch, which the operation's id and the batch's number name. Return
        to how many.
        """
        return await self._by_name[record.action](record, jobs, f"{record.id}.{record.number}")

    async def _retry(self, record: OperationRecord, jobs: list[str], call: str) -> int:
        words = await self._store.controls.retrials.retry(jobs, states=_states(record), call=call)
        return words.count("retried")

    async def _remove(self, record: OperationRecord, jobs: list[str], call: str) -> int:
        words = await self._store.controls.retrials.remove(
            jobs,
            states=_states(record),
            text=describe_cancelled(record.reason or "it was removed"),
            key_ttl_ms=self._key_ttl_ms,
            call=call,
        )
        # What was removed may be unknown when the batch is repeated. It is gone, and that is what was asked
        # for.
        return words.count("removed") + words.count("unknown")

    async def _cancel(self, record: OperationRecord, jobs: list[str], call: str) -> int:
        text = describe_cancelled(record.reason)
        rows = [CancelRow(job, "", call, text, record.of) for job in jobs]
        words = await self._store.cancel(rows, key_ttl_ms=self._key_ttl_ms)
        return words.count("ended") + words.count("asked")

    async def _promote(self, _record: OperationRecord, jobs: list[str], call: str) -> int:
        edits = [Edit(job, call, ("delayed",), due=0) for job in jobs]
        words = await asyncio.gather(*(self._store.controls.edit(edit) for edit in edits))
        return words.count("changed")


def _states(record: OperationRecord) -> Sequence[str]:
    return [record.of] if record.of else ACTIONS[record.action]
