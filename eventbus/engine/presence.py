"""The presence of a worker: announces the worker and the queues of its pool in the server, so that emits wake
it.

An announcement also re-queues parked jobs that this worker may be able to run. It says which versions of jobs
the worker can run; what these versions are is told once a day, at its start first, so that it costs nothing
for each job.

What a worker tells once, at its start, it tells again when the server has forgotten it: the definitions, and
what the program declares (`declare`). A server that was emptied, restarted without its data or replaced by an
empty replica answers the next announcement so, within 5 s. Groups, limits and retentions need no such answer:
each announcement says them.

What must always hold: once a worker claims no more, neither emits nor other workers count it as serving its
queues. So it leaves when its stop begins, not when the stop ends: workers that stop together must not wait
for each other.

What may go wrong:
- a worker dies without leaving, or its leave call is lost: the server forgets it 20 s after its last
  announcement, and its pool is woken in vain for up to 60 s;
- the server is full or away when the worker tells what its versions are: it runs all the same, and tells it
  again with the next announcement;
- the server forgets the worker, and is away or full when all is declared again: the next announcement does
  it;
- the server forgets what is declared and hears the worker in between: it cannot, for it loses all at once;
- an announcement is under way when the worker leaves: on the same connection it arrives before the leave
  call. If it is repeated on a later connection, the worker counts as live for 20 s more.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping

import msgspec

from eventbus._version import __version__
from eventbus.engine.consumer import Consumer, DefinedConsumer, LimitedConsumer
from eventbus.errors import EventBusError, StoreError
from eventbus.model import clock
from eventbus.runtime.upkeep import mark
from eventbus.store.scripting.script_rows import AnnounceQueue
from eventbus.store.store import Store
from eventbus.telemetry.listeners import Teller
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.worker")

_INTERVAL = 5.0
"""Seconds; a worker counts as dead after 20, a pool as silent after 60. Parked jobs are re-queued at the same
interval: during a rolling deploy, one release parks jobs that only the other can run."""

_DEFINED_FOR = 86_400.0
"""Seconds after which a worker tells again what its versions are; the server keeps it 90 days."""

_LEAVE_WITHIN = 1.0
"""Seconds that the server has to answer the leave call."""


def pool_of(queues: Mapping[str, Consumer]) -> str:
    """Return the name of the pool of workers that serve exactly these queues."""
    names = "\n".join(sorted(queues))
    return hashlib.sha256(names.encode()).hexdigest()[:16]


class Presence:
    """Keeps one worker announced in the server, with the queues of its pool."""

    def __init__(
        self,
        store: Store,
        consumers: Mapping[str, Consumer],
        *,
        worker: str,
        read_jobs: Callable[[], list[str]] = list,
        closed: Collection[str] = (),
        teller: Teller | None = None,
        concurrency: int = 0,
        declare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`read_jobs` returns the jobs that the worker has. The queues in `closed` are not announced.

        `concurrency` is how many jobs the worker may run at a time; it is told to whoever looks. `declare`
        tells the server again what the program declares: a server that has forgotten this worker has
        forgotten that, too.
        """
        self._store = store
        self._consumers = consumers
        self._worker = worker
        self._read_jobs = read_jobs
        self._closed = closed
        self._teller = teller or Teller()
        self._facts = _list_facts(store.name, concurrency)
        self._pools: dict[str, list[str]] = {}
        """The pools in which the server may know this worker, with their queues: mostly one."""
        self._has_left = False
        self._declare = declare
        self._is_forgotten = False
        """Whether the server has lost what was told at the start, and was not told again."""
        self._defined: dict[str, float] = {}
        """Until when, by the monotonic clock, the definitions of a queue need not be told again."""
        self._since: int | str = ""
        """When the server first heard of this worker, by the server's clock."""

    async def run_once(self, *, unpark: bool) -> str:
        """Announce the worker and return its pool; leave the former pool if its queues have changed.

        `unpark` re-queues the parked jobs of these queues. Raises StoreError.
        """
        consumers = {queue: served for queue, served in self._consumers.items() if queue not in self._closed}
        pool = pool_of(consumers)
        former = next((name for name in self._pools if name != pool), "")
        self._pools[pool] = list(consumers)  # before the call, because its answer may be lost
        rows = [_row(served) for served in consumers.values()]
        is_first = self._since == ""
        taken, self._since, was_known = await self._store.announce(
            pool=pool,
            worker=self._worker,
            former=former,
            left=self._pools.get(former, ()),
            queues=rows,
            unpark=unpark,
            since=self._since,
            facts=[*self._facts, "versions", _list_versions(consumers.values())],
        )
        self._pools.pop(former, None)
        self._is_forgotten = self._is_forgotten or not (is_first or was_known)
        if taken:
            _log.info("parked jobs taken back", count=taken)
        return pool

    async def run(self) -> None:
        """Announce each 5 s until the worker leaves or this is cancelled."""
        mark("always")
        while True:
            await self._define()
            await asyncio.sleep(_INTERVAL)
            if self._has_left:
                return
            try:
                await self.run_once(unpark=True)
                await self._declare_again()
                await self._store.check_saving()
            except EventBusError as error:  # also of `declare`, and for the next announcement it is the same
                _log.error("announcement refused", error=str(error))
                self._teller.error("presence", error)

    async def _declare_again(self) -> None:
        """Tell again what was told at the start, if the server has forgotten it. Raises StoreError."""
        if not self._is_forgotten:
            return
        _log.warning("the server had forgotten this worker, declaring all again", worker=self._worker)
        self._defined.clear()
        if self._declare is not None:
            await self._declare()
        self._is_forgotten = False

    async def _define(self) -> None:
        """Tell what the versions of the queues are. Does not raise: without it people see less, and nothing
        else is worse.
        """
        now = clock.monotonic()
        for queue, served in list(self._consumers.items()):
            if not isinstance(served, DefinedConsumer) or self._defined.get(queue, now) > now:
                continue
            try:
                for version, text in served.definitions.items():
                    if text:
                        await self._store.presence.define(queue, version, text)
            except StoreError as error:
                _log.info("definitions not told", queue=queue, error=str(error))
                return
            self._defined[queue] = now + _DEFINED_FOR

    async def deregister(self) -> None:
        """Tell the server that the worker is over, within one second. Call it when nothing renews its leases
        any more.

        Does not raise: where the server does not hear it, the rescue of another worker finds that it holds
        nothing.
        """
        if not self._store.is_connected:
            return
        try:
            deadline = clock.monotonic() + _LEAVE_WITHIN
            await self._store.presence.deregister(self._worker, deadline=deadline)
        except StoreError as error:
            _log.info("ended without a word to the server", error=str(error))

    async def leave(self) -> None:
        """Stop announcing, and remove the worker from its pools in the server, within one second.

        Does not raise: a server that cannot be reached forgets the worker after 20 s.
        """
        self._has_left = True
        if not self._store.is_connected:
            return
        deadline = clock.monotonic() + _LEAVE_WITHIN
        for pool, queues in self._pools.items():
            try:
                await self._store.presence.leave(
                    self._worker, pool, queues, jobs=self._read_jobs(), deadline=deadline
                )
            except StoreError as error:
                _log.info("left without a word to the server, which forgets it in 20 s", error=str(error))
                return


def _list_facts(name: str, concurrency: int) -> list[str | int]:
    """Return what a worker of this process says of itself, field and value in turn."""
    about = {"name": name, "host": socket.gethostname(), "pid": os.getpid(), "version": __version__}
    return [each for pair in (about | {"concurrency": concurrency}).items() for each in pair]


def _list_versions(consumers: Collection[Consumer]) -> str:
    """Return the versions that a worker can run, by queue, as JSON; queues whose jobs have none are
    left out.
    """
    found = {each.queue: list(each.definitions) for each in consumers if isinstance(each, DefinedConsumer)}
    return msgspec.json.encode(found).decode()


def _row(served: Consumer) -> AnnounceQueue:
    limit = served.limit if isinstance(served, LimitedConsumer) else ""
    return AnnounceQueue(served.queue, served.base, served.group, limit, served.retention.declared)
