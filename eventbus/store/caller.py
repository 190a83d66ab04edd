"""Calls that survive a lost connection: repeated until they are answered or a deadline passes.

Two ways in: `script` is awaited; `start` writes at once, without a task, and hands the call
to the first way only when something is wrong with it.

The one place that deals with `NOSCRIPT`, `LOADING`, `READONLY` and their kin, lost
connections, restarts and failovers. Everything called through here is repeat-safe by
its own means (fresh ids, numbered calls, tokens), so a repeat after a lost answer
changes nothing; that is the scripts' promise, not this module's.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable
from typing import Any, TypeAlias

from eventbus.errors import StoreError, StoreRefused, StoreUnavailable
from eventbus.logs import get_logger
from eventbus.store.channel import Channel
from eventbus.store.connection import TRANSIENT, translate
from eventbus.store.replication import ReplicatedChannel
from eventbus.store.scripts import load_script, pack

__all__ = ["Caller"]

_log = get_logger("eventbus.store")

_FIRST_PAUSE, _LAST_PAUSE = 0.05, 1.0

_Command: TypeAlias = tuple[str | bytes | float, ...]


class Caller:
    """Script calls and commands over one channel, with repeats."""

    def __init__(self, channel: Channel | ReplicatedChannel, *, root: str, prelude: str = "") -> None:
        self._channel = channel
        self._root = root
        self._prelude = prelude
        self._in_trouble = False
        self._known: set[Any] = set()
        self.repeats = 0
        """Calls sent again since the start."""
        self.loads = 0
        """Scripts sent whole since the start: each once, and again after the server forgot them."""

    @property
    def address(self) -> str:
        """Where the server is, without a password."""
        return self._channel.address

    async def script(self, name: str, arguments: list[Any], *, deadline: float | None = None) -> Any:
        """Run a script; repeat until `deadline` (monotonic seconds), None for ever.

        Raises StoreUnavailable after the deadline (`sent` is True if any try may have been
        carried out), StoreRefused at once for a refusal that repeating cannot mend.
        """
        by_digest, whole = self._both(name, arguments)
        return await self.repeat(by_digest, deadline, without_script=whole)

    def start(
        self, name: str, arguments: list[Any], *, deadline: float, read: Callable[[Any], Any]
    ) -> asyncio.Future[Any]:
        """As `script`, sent before this returns if a connection is open; `read` makes the result of the reply."""
        by_digest, whole = self._both(name, arguments)
        call = _Started(self, by_digest, whole, deadline, read)
        # What waits for a connection, or for more than one answer, has a task.
        if isinstance(self._channel, Channel) and self._channel.send(by_digest, call):
            call.watch()
        else:
            call.go_on(None)
        return call.result

    def _both(self, name: str, arguments: list[Any]) -> tuple[_Command, _Command]:
        script = load_script(name, self._prelude)
        packed = pack(arguments)
        # EVAL runs it and loads it; a script cache is empty after a restart or a failover.
        by_digest = ("EVALSHA", script.digest, 1, self._root, packed)
        return by_digest, ("EVAL", script.source, 1, self._root, packed)

    async def command(self, *command: str | bytes | float, deadline: float | None = None) -> Any:
        """Run a plain command that may be repeated; else as `script`."""
        return await self.repeat(command, deadline)

    async def repeat(
        self,
        command: _Command,
        deadline: float | None,
        *,
        without_script: _Command | None = None,
        failed: StoreError | None = None,
    ) -> Any:
        """Send `command` until it is answered; raises as `script`.

        `without_script` goes in the place of `command` once the server does not know its script;
        `failed` is what a first try came to.
        """
        sent = False
        why: StoreError | None = None
        pause = _FIRST_PAUSE
        while True:
            try:
                if failed is not None:
                    failed, error = None, failed
                    raise error
                reply = await self._channel.call(*command, deadline=deadline)
            except StoreError as error:
                sent = sent or error.sent
                left = math.inf if deadline is None else deadline - time.monotonic()
                wait = pause * (1 - random.random() / 2)
                if (
                    without_script is not None
                    and isinstance(error, StoreRefused)
                    and error.code == "NOSCRIPT"
                ):
                    self._note_load(command[1])
                    command, without_script = without_script, None
                    continue
                if isinstance(error, StoreRefused) and error.code == "READONLY":
                    self._channel.drop("the server became read-only")  # the name may lead to a new primary
                if why is None or left > 0:
                    why = error  # that the time is over says less than what came before
                # No try that cannot be answered in time: it would only make the outcome unknown.
                if not _is_transient(error) or left <= wait or self._channel.is_closed:
                    raise _with_sent(why, self._channel.address, sent=sent) from why.__cause__
                self._note_trouble(error)
            else:
                self.note_answer(None if without_script is None else command[1])
                return reply
            self.repeats += 1
            await asyncio.sleep(wait)
            pause = min(2 * pause, _LAST_PAUSE)

    def _note_trouble(self, error: StoreError) -> None:
        if not self._in_trouble:
            self._in_trouble = True
            _log.warning("server not available, trying again", error=str(error))

    def _note_load(self, digest: Any) -> None:
        self.loads += 1
        if digest in self._known:
            self._known.clear()
            _log.info("the server forgot its scripts, sending them again")

    def note_answer(self, digest: Any) -> None:
        """The server answered; `digest` is the script's, if it was called by it."""
        if digest is not None:
            self._known.add(digest)
        if self._in_trouble:
            self._in_trouble = False
            _log.info("server available again", repeats=self.repeats)


class _Started:
    """One call that was sent without a task: it hears its answer inside the read callback."""

    __slots__ = ("_by_digest", "_caller", "_deadline", "_read", "_task", "_timer", "_whole", "result")

    def __init__(
        self,
        caller: Caller,
        by_digest: _Command,
        whole: _Command,
        deadline: float,
        read: Callable[[Any], Any],
    ) -> None:
        self.result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._caller = caller
        self._by_digest = by_digest
        self._whole = whole
        self._deadline = deadline
        self._read = read
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[Any] | None = None

    def watch(self) -> None:
        """Look at the deadline; what failed inside the sending has a task that looks."""
        if self._task is None and not self.result.done():
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, self._deadline - time.monotonic()), self._on_deadline)

    def done(self) -> bool:
        """Whether the answer goes to nobody, or to the task."""
        if self.result.done():
            self._stop_timer()
            return True
        return self._task is not None

    def set_result(self, reply: Any, /) -> None:
        """The answer came."""
        self._stop_timer()
        self._caller.note_answer(self._by_digest[1])
        self._settle(reply)

    def set_exception(self, error: StoreError, /) -> None:
        """The call was refused, or its answer was lost."""
        self._stop_timer()
        self.go_on(error)

    def go_on(self, failed: StoreError | None) -> None:
        """From here on a task repeats; it ends with the future it works for."""
        repeat = self._caller.repeat(
            self._by_digest, self._deadline, without_script=self._whole, failed=failed
        )
        self._task = asyncio.get_running_loop().create_task(repeat, name="eventbus-repeat")
        self._task.add_done_callback(self._on_end)
        self.result.add_done_callback(self._on_given_up)

    def _on_end(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self.result.cancel()
        elif (error := task.exception()) is None:
            self._settle(task.result())
        elif not self.result.done():
            self.result.set_exception(error)

    def _on_given_up(self, result: asyncio.Future[Any]) -> None:
        if result.cancelled() and self._task is not None:
            self._task.cancel()

    def _on_deadline(self) -> None:
        self._timer = None
        if not self.done():
            late = TimeoutError("no answer in time")
            self.go_on(translate(late, address=self._caller.address, sent=True))

    def _settle(self, reply: Any) -> None:
        if self.result.done():
            return
        try:
            self.result.set_result(self._read(reply))
        except Exception as error:  # noqa: BLE001  (who waits must hear of it)
            self.result.set_exception(error)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _is_transient(error: StoreError) -> bool:
    if isinstance(error, StoreUnavailable):
        return True
    return isinstance(error, StoreRefused) and error.code in TRANSIENT


def _with_sent(error: StoreError, address: str, *, sent: bool) -> StoreError:
    """A refusal speaks for its own try alone: where an earlier one may have been carried out,
    or where a later one might be, the answer is that none was heard.
    """
    if sent or _is_transient(error):
        return StoreUnavailable(str(error), address=address, sent=sent)
    return error
