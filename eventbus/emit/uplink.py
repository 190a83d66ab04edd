"""The uplink: what the providers of one event loop share on their way to one server.

    joined by the first provider -> reading replies -> left by the last one -> closing -> closed
                                    (joined and left by others meanwhile)

An uplink has one emitter name, and so one reply stream and one blocked read of it; one connection for
commands; the wait list of all emissions. A provider has a share of the command connection, and everything
else of its own: its send buffer, its settings, its tracker, its worker. What the send buffers add in one tick
of the event loop travels in one call (`store.connection.add_gatherer`). A worker sends its turns over the
command connection, too. Its blocked read and its lease thread keep connections of their own, because a
blocked read holds up its connection, and the thread must not wait for the event loop.

Who shares: providers of one process and event loop with the same URL, prefix, name and `scripting`. These
four are all that a connection and a stream are made from.
- The URL counts as text. So it counts the user and password, the database, TLS and its files, and timeouts of
  the connection. Two spellings of one server share nothing, which costs a connection and is never wrong. A
  relative `embedded:` folder counts as the folder that it names at the start.
- `name` is what the connections are called in the server's list; an operator looks for it there.
- Other settings do not count, because each call and each emission carries its own: `reply_timeout` and
  `call_timeout` are deadlines of single calls, `key_ttl`, `max_waiting` and `max_payload` are values in them.
  `allow_eviction` is judged by each provider at its own start.
- `memory:` is not shared: each provider has a server of its own there.
- `durability="replicated"` is not shared: a provider has one `WAIT` at a time under way, which holds up the
  connection. On one connection the waits of all providers would stand in one line.

What must always hold:
- a provider that stops, or that fails to start, ends its own calls and emissions and no others;
- an uplink that nobody uses any more is never joined: the last provider takes it out of the list before it
  first waits. A provider that starts meanwhile makes a new one, with a new name and connections of its own;
- an uplink whose roles were ended from outside is not joined either. Nobody waits there in silence: who waits
  then gets an error, and so does whoever asks for an outcome later;
- a role ends by the stop, or is started again, whatever is raised in it. What a signal handler raises there
  passes on to the event loop, because it means the program;
- in a forked process the list is empty. The parent's uplinks are kept there, untouched, because one that is
  thrown away would close the parent's connections;
- an uplink belongs to its loop. One of a loop that was closed without a stop is forgotten with the loop;
- the roles run in a context of their own, so that no log line carries the facts of the provider that came
  first.

Crash windows: `reply_reader` and `wait_list` name them. A fault of the stream or the connection concerns all
providers alike, as it did the emissions of one provider.

Rejected: one provider that lends its own stream to the others, because it may stop first; one uplink a
process, because an event loop cannot use the connections of another; a stream for each provider and one read
of all of them, because the server would write one entry for each provider and call, which is what costs most.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio

from eventbus.emit.attendance import Attendance
from eventbus.emit.reply_reader import ReplyReader
from eventbus.emit.wait_list import WaitList
from eventbus.errors import ProviderStopped, StoreError
from eventbus.model import chance, clock
from eventbus.runtime.clean_up import call_unless_ending
from eventbus.runtime.own_context import own_context
from eventbus.settings.settings import Settings
from eventbus.store.connection.connector import make_connector
from eventbus.store.store import SHARD, Store
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.provider")

_CLOSE_PATIENCE = 1.0  # seconds that the server has to answer when the last provider leaves


class Uplink:
    """The reply stream, the wait list and the command connection of some providers."""

    def __init__(self, settings: Settings) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.id: str = chance.token(6)
        """The emitter name, as it stands in job ids and in the key of the reply stream."""
        self.store: Store = Store(
            make_connector(settings.url),
            prefix=settings.prefix,
            name=settings.name,
            scripting=settings.scripting,
        )
        """The store of the uplink itself. Each provider uses a share of it."""
        self.waits: WaitList = WaitList()
        self.attendance: Attendance = Attendance(self.id, self.waits)
        self.reader: ReplyReader = ReplyReader(self.store, self.id, self.waits, self.attendance)
        self.users: int = 0
        """How many providers have joined and not left."""
        self._numbers = itertools.count(1)
        self._job_prefix = f"{SHARD}-{self.id}-"
        self.why_broken: str = ""
        """Why no outcome comes any more, although providers may await some; `""` while the roles can run."""
        self._roles: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    @property
    def is_reading(self) -> bool:
        """Whether a provider has started here, so that the roles run."""
        return self._roles is not None

    @property
    def is_broken(self) -> bool:
        """Whether the roles ended although providers may use them: somebody cancelled their task."""
        return self._roles is not None and self._roles.done()

    def make_job_id(self) -> str:
        """Return an id that no job had before."""
        # In two thirds of the time of an f-string.
        return self._job_prefix + "%08x" % next(self._numbers)  # noqa: UP031

    def start_roles(self) -> None:
        """Run the roles until the last provider leaves. Does nothing when they run."""
        if self._roles is None:
            self._roles = asyncio.create_task(
                self._run_roles(), name="eventbus-uplink", context=own_context()
            )
            self._roles.add_done_callback(self._on_roles_end)

    async def leave(self) -> None:
        """End the use by one provider; the last one closes the uplink, within a second without a server.

        Each provider calls this once, after it has closed its share. Raises StoreError if the server did not
        answer the close; the uplink is closed then too.
        """
        self.users -= 1
        if not self.users:
            _uplinks.forget(self)  # before the first wait, so that nobody joins what is closing
            await self._close()

    async def _close(self) -> None:
        deadline = clock.monotonic() + _CLOSE_PATIENCE
        try:
            if self._roles is not None:  # otherwise no provider got so far as to use the stream
                await self._end_roles(self._roles, deadline)
        finally:
            try:
                await self.reader.aclose(delete=self._roles is not None, deadline=deadline)
            except StoreError as error:
                _log.info("reply stream left to expire", error=str(error))
            self.waits.deadlines.close()
            await self.store.aclose()

    async def _end_roles(self, roles: asyncio.Task[None], deadline: float) -> None:
        try:
            await self.reader.stop(deadline=deadline)
        finally:
            self._stop.set()
            await asyncio.wait([roles])

    async def _run_roles(self) -> None:
        """Run all roles until the last provider leaves."""
        async with anyio.create_task_group() as roles:
            reader = self.reader
            for run in (reader.run_reader, reader.run_timeouts, reader.run_lookups, reader.keeper.run):
                roles.start_soon(self._keep_running, run, name=run.__qualname__)
            await self._stop.wait()
            roles.cancel_scope.cancel()

    async def _keep_running(self, role: Callable[[], Awaitable[None]]) -> None:
        """Run a role, and start it again after an unexpected error, because emissions would wait for ever."""
        while True:
            try:
                return await role()
            except (asyncio.CancelledError, GeneratorExit):  # the end of the roles, or of the loop
                raise
            except BaseException as error:  # noqa: BLE001  (any error is logged, and the role goes on)
                _log.exception("a role of the emitter failed, starting it again")
                if not isinstance(error, Exception):
                    # A signal handler raised it, such as a KeyboardInterrupt: it means the program.
                    self.loop.call_soon(_raise, error)
            self.attendance.note_gap()  # what it had read and not told yet is lost
            await asyncio.sleep(1)  # an error that stays must not keep the loop busy

    def _on_roles_end(self, roles: asyncio.Task[None]) -> None:
        """Note that no outcome comes any more, and tell all who wait, unless the last provider left."""
        if self._stop.is_set():
            return
        error = None if roles.cancelled() else roles.exception()
        how = "was cancelled from outside" if error is None else f"ended by {type(error).__name__}"
        self.why_broken = (
            f"the task {roles.get_name()!r}, which reads replies, {how}; stop the provider and start it again"
        )
        if roles.cancelled():
            call_unless_ending(self._tell_broken, error)
        else:
            self._tell_broken(error)

    def _tell_broken(self, error: BaseException | None) -> None:
        _log.error("no outcome comes any more", error=self.why_broken, exc_info=error)
        for emission in [each for waiting in self.waits.jobs.values() for each in waiting]:
            message = f"no outcome of {emission.event} comes: {self.why_broken}; the job goes on"
            self.waits.forget(emission, ProviderStopped(message, job_id=emission.job_id))


def _raise(error: BaseException) -> None:
    raise error


class _Uplinks:
    """The uplinks of this process that providers may join, by event loop and by what they are made from."""

    def __init__(self) -> None:
        self._known: dict[tuple[asyncio.AbstractEventLoop, Any], Uplink] = {}
        self._parents: list[Any] = []
        """The uplinks of the processes from which this one was forked; kept so that none of them closes
        itself.
        """
        self._guard = threading.Lock()  # loops of several threads come here; held for a few lines

    def join(self, settings: Settings) -> Uplink:
        with self._guard:
            for place in [place for place in self._known if place[0].is_closed()]:
                del self._known[place]
            shared = _read_identity(settings)
            place = (asyncio.get_running_loop(), shared)
            uplink = None if shared is None else self._known.get(place)
            if uplink is None or uplink.is_broken:
                uplink = Uplink(settings)
                if shared is not None:
                    self._known[place] = uplink
            uplink.users += 1
            return uplink

    def forget(self, uplink: Uplink) -> None:
        with self._guard:
            for place in [place for place, known in self._known.items() if known is uplink]:
                del self._known[place]

    def forget_parent(self) -> None:
        """Begin without uplinks, in a process that was just forked."""
        self._parents.append(self._known)
        self._known = {}
        self._guard = threading.Lock()  # new: the thread that may hold the old lock is not in this process


_uplinks = _Uplinks()
os.register_at_fork(after_in_child=_uplinks.forget_parent)


def join_uplink(settings: Settings) -> Uplink:
    """Return the uplink for a provider with these settings in this event loop; make one if there is none.

    Does not connect. The provider must `leave` it.
    """
    return _uplinks.join(settings)


def _read_identity(settings: Settings) -> tuple[str, ...] | None:
    """Return what providers must have in common to share an uplink, None for one that shares with nobody."""
    scheme, _, rest = settings.url.partition(":")
    if settings.durability == "replicated" or scheme.lower() == "memory":
        return None
    is_embedded = scheme.lower() == "embedded"
    url = str(Path(rest).expanduser().resolve()) if is_embedded else settings.url
    return url, settings.prefix, settings.name, settings.scripting
