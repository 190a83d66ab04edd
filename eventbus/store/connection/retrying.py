"""Calls that survive a lost connection: sent again until they are answered or their deadline passes.

There are two ways to call. `script` and `command` are awaited. `start` writes at once and
without a task; such a call gets a task only if its first try fails, or if no connection is open.
From the first failed try on both ways are one, `RetryingCaller.repeat_after`:

    sent -- reply --> answered
         -- error --> decide -- Wait -------> sent again after a pause
                             -- SendWhole --> sent again at once, with the script's source
                             -- OpenShard --> sent again after a pause, behind a call that opens the shard
                             -- GiveUp -----> raised

Only this module deals with `NOSCRIPT`, `LOADING`, `READONLY` and similar refusals, and with lost
connections, restarts and failovers.

What must always hold:
- a call ends once: with its reply, with a refusal that would stay the same, at its deadline, when
  this side closes the channel, or when its caller cancels it;
- its error says whether any of its tries may have been carried out (`sent`), not only the last;
- no pause ends after the deadline: a try that cannot be answered in time would only make the
  outcome unknown;
- inside the read callback a failed call only gets its task, which acts later: `READONLY` makes it
  drop the connection, and the replies that came together with it must reach their calls first.

Crash windows are the channel's. After `lost-after-send` and `mute`, and when no replica
acknowledged (`replication`), a call is sent again although the server may have carried it out.
That is safe because everything called through here is repeat-safe by its own means (fresh ids,
numbered calls, tokens), so a repeat changes nothing; the scripts promise that, not this module.
After `lost-before-send` and after a refusal the try counts as not carried out. A call that was
given up is not sent again, and a late reply to it reaches nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

from eventbus.errors import StoreError, StoreRefused, StoreUnavailable
from eventbus.model import clock
from eventbus.store.connection.availability import Availability
from eventbus.store.connection.channel import Channel
from eventbus.store.connection.connector import translate
from eventbus.store.connection.repeat_policy import (
    Command,
    GiveUp,
    OpenShard,
    SendWhole,
    decide,
    is_transient,
)
from eventbus.store.connection.replication import NoReplica, ReplicatedChannel
from eventbus.store.keys import EDITION, Keys
from eventbus.store.scripts import load_script, pack
from eventbus.telemetry.logging import get_logger

__all__ = ["RetryingCaller"]

_log = get_logger("eventbus.store")

_FIRST_PAUSE, _LAST_PAUSE = 0.05, 1.0  # seconds; the pause doubles from one to the other
_BLINK = 1.0
"""Seconds. A failed first try is reported as an outage only if it took longer; later tries always are."""


class RetryingCaller:
    """Script calls and commands over one channel, repeated until they are answered."""

    def __init__(
        self,
        channel: Channel | ReplicatedChannel,
        *,
        keys: Keys,
        prelude: str = "",
        availability: Availability | None = None,
    ) -> None:
        """`availability` is shared by all callers of the server; without it the caller has its own."""
        self._channel = channel
        self._keys = keys
        self._prelude = prelude
        self._availability = availability or Availability(channel.address)
        self._replicas = Availability(
            channel.address,
            lost="no replica acknowledges, emissions wait",
            back="a replica acknowledges again",
        )
        self._outages = 0
        self._opening = asyncio.Lock()
        self.openings: int = 0
        """How often this caller opened the shard. A call that is refused because the shard is not open need
        not open it if another call did so since this one was sent."""
        self._known: set[Any] = set()
        self.repeats: int = 0
        """Calls sent again since the start."""
        self.loads: int = 0
        """Scripts sent as source since the start: each once, and again after the server forgot them."""

    @property
    def address(self) -> str:
        """The server's address, without a password."""
        return self._channel.address

    async def script(self, name: str, arguments: list[Any], *, deadline: float | None = None) -> Any:
        """Run a script; repeat until `deadline` (monotonic seconds), or for ever without one.

        Raises StoreUnavailable after the deadline (`sent` is True if any try may have been
        carried out), and StoreRefused at once for a refusal that repeating cannot change.
        """
        by_digest, whole = self._both(name, arguments)
        return await self.repeat(by_digest, deadline, whole=whole)

    def start(
        self, name: str, arguments: list[Any], *, deadline: float, read: Callable[[Any], Any]
    ) -> asyncio.Future[Any]:
        """Run a script as `script` does, but send it before this returns if a connection is open.

        `read` turns the reply into the result.
        """
        by_digest, whole = self._both(name, arguments)
        call = _Started(self, by_digest, whole, deadline, read)
        # A call needs a task if it must first connect, or if it waits for more than one answer.
        if isinstance(self._channel, Channel) and self._channel.send(by_digest, call):
            call.watch()
        else:
            call.go_on(None)
        return call.result

    def _both(self, name: str, arguments: list[Any]) -> tuple[Command, Command]:
        script = load_script(name, self._prelude)
        packed = pack(arguments)
        # EVAL runs the script and loads it; a script cache is empty after a restart or a failover.
        keys = self._keys.declared
        by_digest = ("EVALSHA", script.digest, len(keys), *keys, packed)
        return by_digest, ("EVAL", script.source, len(keys), *keys, packed)

    async def command(self, *command: str | bytes | float, deadline: float | None = None) -> Any:
        """Run a plain command that may be repeated. Repeats and raises as `script`."""
        return await self.repeat(command, deadline)

    async def repeat(self, command: Command, deadline: float | None, *, whole: Command | None = None) -> Any:
        """Send `command` until it is answered; raises as `script`.

        `whole` is sent in place of `command` once the server does not know its script.
        """
        began, openings = clock.monotonic(), self.openings
        try:
            reply = await self._channel.call(*command, deadline=deadline)
        except StoreError as error:
            failed = error
        else:
            self.note_answer(None if whole is None else command[1])
            return reply
        return await self.repeat_after(failed, command, deadline, whole=whole, began=began, openings=openings)

    async def repeat_after(
        self,
        error: StoreError,
        command: Command,
        deadline: float | None,
        *,
        whole: Command | None,
        began: float,
        openings: int,
    ) -> Any:
        """Go on with a call whose first try began at `began`, after `openings`, and ended with `error`.

        Raises as `repeat`.
        """
        sent = False
        why: StoreError | None = None
        pause = _FIRST_PAUSE
        while True:
            now = clock.monotonic()
            decision = decide(
                error,
                deadline=deadline,
                now=now,
                pause=pause * (1 - random.random() / 2),  # spread: all callers lose a server at once
                whole=whole,
                is_closed=self._channel.is_closed,
            )
            is_late = deadline is not None and deadline <= now
            is_blink = why is None and now - began < _BLINK
            self._note_error(error, is_reported=not is_blink and not is_late)
            sent = sent or error.sent
            if isinstance(decision, SendWhole):
                self._note_load(command[1])
                command, whole = decision.command, None
            else:
                if why is None or not is_late:
                    why = error  # otherwise keep the earlier error: "no answer in time" tells the user less
                if isinstance(decision, GiveUp):
                    raise _with_sent(why, self._channel.address, sent=sent) from why.__cause__
                self.repeats += 1
                await asyncio.sleep(decision.seconds)
                if isinstance(decision, OpenShard):
                    await self._try_to_open(openings, deadline)
                pause = min(2 * pause, _LAST_PAUSE)
            openings = self.openings
            try:
                reply = await self._channel.call(*command, deadline=deadline)
            except StoreError as again:
                error = again
            else:
                self.note_answer(None if whole is None else command[1])
                return reply

    async def _try_to_open(self, openings: int, deadline: float | None) -> None:
        """Open the shard for a call that was sent after `openings`. Where that fails, the call fails too.

        Several calls may find the shard closed at once. The first that comes here opens it for all.
        """
        left = None if deadline is None else deadline - clock.monotonic()
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(left), self._opening:
                if self.openings > openings:
                    return
                if self.openings:
                    _log.warning(
                        "the server has lost what it knew of the shard, opening it again",
                        address=self.address,
                    )
                await self.open_shard(deadline=deadline)

    async def open_shard(self, *, deadline: float | None = None) -> bool:
        """Make sure that the shard is open. Return whether the first edition of the store has keys there."""
        arguments = [EDITION, self._keys.first_edition]
        answer = await self.script("open_shard", arguments, deadline=deadline)
        self.openings += 1
        return answer == 1

    def _note_error(self, error: StoreError, *, is_reported: bool) -> None:
        """Act on a failed try. If `is_reported`, it also counts as an outage when the server was away."""
        if self._availability.is_lost and not _is_away(error):  # a refusal is an answer too
            self._availability.note_answer()
        if isinstance(error, StoreRefused) and error.code == "READONLY":
            self._channel.drop("the server became read-only")  # its name may lead to a new primary
        if not is_reported:
            return
        if isinstance(error, NoReplica):
            self._replicas.note_failure(error)
        elif _is_away(error) and not self._channel.is_closed:
            self._availability.note_failure(error)

    def _note_load(self, digest: Any) -> None:
        self.loads += 1
        if self._outages != self._availability.outages:
            self._outages = self._availability.outages
            self._known.clear()  # the outage is logged; a restarted server knows no scripts
        if digest in self._known:
            self._known.clear()
            _log.info("the server forgot its scripts, sending them again")

    def note_answer(self, digest: Any) -> None:
        """Record an answer. `digest` is that of the script if the call named it so, otherwise None."""
        if digest is not None:
            self._known.add(digest)
        if self._availability.is_lost:
            self._availability.note_answer()
        if self._replicas.is_lost:
            self._replicas.note_answer()


class _Started:
    """One call that was sent without a task: it gets its reply inside the read callback.

    If the first try fails or is late, a task goes on with the call (`RetryingCaller.repeat_after`).
    """

    __slots__ = (
        "_by_digest",
        "_caller",
        "_deadline",
        "_openings",
        "_read",
        "_task",
        "_timer",
        "_whole",
        "result",
    )

    def __init__(
        self,
        caller: RetryingCaller,
        by_digest: Command,
        whole: Command,
        deadline: float,
        read: Callable[[Any], Any],
    ) -> None:
        self.result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._caller = caller
        self._openings = caller.openings
        self._by_digest = by_digest
        self._whole = whole
        self._deadline = deadline
        self._read = read
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[Any] | None = None

    def watch(self) -> None:
        """Set a timer for the deadline, unless the sending failed: then a task watches it already."""
        if self._task is None and not self.result.done():
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, self._deadline - clock.monotonic()), self._on_deadline)

    def done(self) -> bool:
        """Return whether this try's answer is no longer wanted: the call ended, or a task repeats it."""
        if self.result.done():
            self._stop_timer()
            return True
        return self._task is not None

    def set_result(self, reply: Any, /) -> None:
        """Take the reply."""
        self._stop_timer()
        self._caller.note_answer(self._by_digest[1])
        self._settle(reply)

    def set_exception(self, error: StoreError, /) -> None:
        """Take the error: the call was refused, or its answer was lost."""
        self._stop_timer()
        self.go_on(error)

    def go_on(self, failed: StoreError | None) -> None:
        """Hand the call to a task. Cancelling the result cancels the task.

        `failed` is the error of the first try, None if nothing was sent yet.
        """
        if failed is None:
            work = self._caller.repeat(self._by_digest, self._deadline, whole=self._whole)
        else:
            work = self._caller.repeat_after(
                failed,
                self._by_digest,
                self._deadline,
                whole=self._whole,
                began=clock.monotonic(),
                openings=self._openings,
            )
        self._task = asyncio.get_running_loop().create_task(work, name="eventbus-repeat")
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
        except Exception as error:  # noqa: BLE001  (the caller gets it)
            self.result.set_exception(error)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _is_away(error: StoreError) -> bool:
    """Return whether the server did not answer, or cannot carry out anything now."""
    return is_transient(error) and not isinstance(error, NoReplica)


def _with_sent(error: StoreError, address: str, *, sent: bool) -> StoreError:
    """Return the error to raise for a call that is given up because of `error`.

    A refusal concerns only its own try. If another try may have been carried out (`sent`), or if the
    refusal may pass, the server counts as unavailable.
    """
    if sent or is_transient(error):
        return StoreUnavailable(str(error), address=address, sent=sent)
    return error
