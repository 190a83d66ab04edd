"""The runner of bulk operations: takes one that nobody works at, and does it batch by batch.

Each worker has one, and so has a dashboard. An operation is started by somebody who need not wait for it: it
goes on when that browser, that dashboard and any worker are gone.

    take -> (the batch that was saved last, once more)
         -> [ read a page -> save it as the batch -> do it ] ... -> save the end

What must always hold:
- no job is changed before its batch is saved, under a number. So whoever takes the operation after a loss
  does that batch again with the same number, which changes nothing twice and counts the same;
- what was done is counted when the next batch is saved, in one call, and only by who holds the operation;
- the work of one call to the server is bounded, and calls follow each other, so that others are served
  between them.

Crash windows:
    dies-before-save    the page is read again: nothing of it was done
    dies-before-doing   the batch is done by the next runner
    dies-after-doing    the batch is done again under its number: nothing is changed, and it is counted
    loses-its-lease     both do the same batch; the one that lost it hears so when it saves, and does no other
                        one
    stopped-meanwhile   the batch that was under way is counted, and no other one is begun
    stopped-and-lost    the next runner does the batch that was under way, once more or for the first time,
                        and counts it

Alternatives: a chore inside the server could not read errors as people see them, and would hold others up. A
job of a queue of its own would have to be subscribed to by each worker, which then asks for it in each turn.
"""

from __future__ import annotations

import asyncio

import msgspec

from eventbus.engine.job_actions import JobActions
from eventbus.engine.job_pages import read_page
from eventbus.errors import StoreError
from eventbus.model import chance, clock
from eventbus.runtime.upkeep import mark
from eventbus.store.calls.operation_store import OperationRecord
from eventbus.store.store import Store
from eventbus.telemetry.listeners import Teller
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.operations")

_LEASE_MS = 15_000
_SAVED_EVERY = 3.0
"""Seconds after which it is saved, so that its lease goes on, also if no job was found since."""


class OperationRunner:
    """Does the bulk operations of one server, one after the other."""

    def __init__(
        self, store: Store, *, key_ttl_ms: int, interval: float = 5.0, teller: Teller | None = None
    ) -> None:
        """`interval` is how often it looks for operations, in seconds; up to half of that earlier, by
        chance.
        """
        self._store = store
        self._kept = store.controls.operations
        self._actions = JobActions(store, key_ttl_ms=key_ttl_ms)
        self._interval = interval
        self._teller = teller or Teller()

    async def run_once(self, *, lease_ms: int = _LEASE_MS) -> bool:
        """Do an operation that nobody works at to its end; return False if there is none. Raises
        StoreError.
        """
        record = await self._kept.take(chance.token(8), lease_ms=lease_ms)
        if record is None:
            return False
        _log.info("bulk operation taken", operation=record.id, queue=record.queue, action=record.action)
        try:
            state = await self._work(record, lease_ms)
        except StoreError:
            raise  # it is free again when the lease ends
        except Exception as error:  # noqa: BLE001  (a damaged record; the next runner would do no better)
            _log.exception("bulk operation failed", operation=record.id, queue=record.queue)
            problem = f"{type(error).__name__}: {error}"[:500]
            failed = msgspec.structs.replace(record, problem=problem)
            state = await self._kept.save(failed, lease_ms=lease_ms, ending="failed")
        _log.info("bulk operation left", operation=record.id, queue=record.queue, state=state)
        return True

    async def run_all(self) -> None:
        """Do all operations that nobody works at. Raises StoreError."""
        while await self.run_once():
            pass

    async def run(self) -> None:
        """Look for operations and do them, until cancelled."""
        mark("always")
        while True:
            await asyncio.sleep(self._interval * (1 - 0.5 * chance.jitter()))
            try:
                await self.run_all()
            except StoreError as error:
                _log.error("bulk operation interrupted", error=str(error))
                self._teller.error("operations", error)

    async def _work(self, record: OperationRecord, lease_ms: int) -> str:
        """Do one operation; return the state in which it was left."""
        if record.batch:  # its runner was lost, before or after it did this
            record = await self._do(record)
        if record.state != "running":  # it was stopped over that batch
            return await self._kept.save(record, lease_ms=lease_ms)
        cursor: str | None = record.cursor
        if record.number and not cursor:
            cursor = None  # the batch was the last one
        saved = clock.monotonic()
        while cursor is not None:
            page = await read_page(self._store, record, cursor)
            cursor = page.cursor
            if not page.jobs and cursor is not None and clock.monotonic() < saved + _SAVED_EVERY:
                continue
            record = msgspec.structs.replace(
                record,
                number=record.number + 1,
                batch=msgspec.json.encode(page.jobs).decode() if page.jobs else "",
                cursor=cursor or "",
            )
            state, saved = await self._kept.save(record, lease_ms=lease_ms), clock.monotonic()
            if state != "running":
                return state
            if page.jobs:
                record = await self._do(record)
        return await self._kept.save(
            msgspec.structs.replace(record, batch=""), lease_ms=lease_ms, ending="completed"
        )

    async def _do(self, record: OperationRecord) -> OperationRecord:
        """Do what was saved as the batch, and return the record with its counts."""
        jobs = msgspec.json.decode(record.batch, type=list[str])
        done = await self._actions.apply(record, jobs)
        return msgspec.structs.replace(
            record, done=record.done + done, failed=record.failed + len(jobs) - done
        )
