"""Calls that survive a lost connection: sent again until they are answered or their deadline passes.

There are two ways to call. `script` and `command` are awaited. `start` writes at once and without a task
(`started_call`). From the first failed try on both ways are one, `RetryingCaller.repeat_after`:

    sent -- reply --> answered
         -- error --> decide -- SendAgain --> sent again after a pause
                             -- SendAs ----> sent again at once, in another form: by its digest or source
                             -- LoadLibrary > sent again at once, behind the library of functions
                             -- OpenShard --> sent again after a pause, behind a call that opens the shard
                             -- GiveUp -----> raised

Only this module deals with `NOSCRIPT`, functions that are not known, `LOADING`, `READONLY` and similar
refusals, and with lost connections, restarts and failovers.

What must always hold:
- a call ends once: with its reply, with a refusal that would stay the same, at its deadline, when
  this side closes the channel, or when its caller cancels it;
- its error says whether any of its tries may have been carried out (`sent`), not only the last;
- no pause ends after the deadline: a try that cannot be answered in time would only make the
  outcome unknown. The last pauses are shorter, so that the time that is left is used;
- started calls with a number go in its order, also when they are repeated, and only the first of them asks a
  server that is away (`repeat_line`);
- inside the read callback a failed call (`started_call`) only gets its task, which acts later: `READONLY`
  makes it drop the connection, and the replies that came together with it must reach their calls first.

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
from collections.abc import Callable
from typing import Any

from eventbus.errors import StoreError, StoreRefused, StoreUnavailable
from eventbus.model import chance, clock
from eventbus.store.connection.availability import Availability
from eventbus.store.connection.channel import Channel
from eventbus.store.connection.functions import Functions
from eventbus.store.connection.invocation import Form, Invocation
from eventbus.store.connection.known_scripts import KnownScripts
from eventbus.store.connection.repeat_line import Place, RepeatLine
from eventbus.store.connection.repeat_policy import (
    Decision,
    GiveUp,
    LoadLibrary,
    OpenShard,
    SendAs,
    decide,
    is_transient,
)
from eventbus.store.connection.replication import NoReplica, ReplicatedChannel
from eventbus.store.connection.started_call import StartedCall
from eventbus.store.connection.translation import translate
from eventbus.store.keys import EDITION, Keys
from eventbus.store.readable import readable
from eventbus.store.scripting.scripts import pack
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.store")

_FIRST_PAUSE, _LAST_PAUSE = 0.05, 1.0  # seconds; the pause doubles from one to the other
_BLINK = 1.0
"""Seconds. A failed first try is reported as an outage only if it took longer; later tries always are."""


def watch_saving(address: str) -> Availability:
    """Return what logs once that a server cannot save its data, and once that it can again."""
    return Availability(
        address, lost="the server cannot save its data", back="the server saves its data again"
    )


class RetryingCaller:
    """Script calls and commands over one channel, repeated until they are answered."""

    def __init__(
        self,
        channel: Channel | ReplicatedChannel,
        *,
        keys: Keys,
        prelude: str = "",
        functions: Functions | None = None,
        availability: Availability | None = None,
        known: KnownScripts | None = None,
        saving: Availability | None = None,
    ) -> None:
        """The last four are shared by all callers of a connection. Without `functions` scripts run by their
        digests; without one of the others the caller has its own.
        """
        self._channel = channel
        self._keys = keys
        self._prelude = prelude
        self._functions = functions
        self._availability = availability or Availability(channel.address)
        self._replicas = Availability(
            channel.address,
            lost="no replica acknowledges, emissions wait",
            back="a replica acknowledges again",
        )
        self._known = known or KnownScripts(self._availability)
        self._saving = saving or watch_saving(channel.address)
        self._opening = asyncio.Lock()
        self.line: RepeatLine = RepeatLine(lambda: channel.is_connected)
        """The started calls whose order counts, and that were not sent at once, or failed."""
        self.openings: int = 0
        """How often this caller opened the shard. A call that is refused because the shard is not open need
        not open it if another call did so since this one was sent."""
        self.repeats: int = 0
        """Calls sent again since the start."""
        self.loads: int = 0
        """How often a script or the library was missing since the start, and had to be sent."""

    @property
    def address(self) -> str:
        """The server's address, without a password."""
        return self._channel.address

    async def script(
        self, name: str, arguments: list[Any], *, deadline: float | None = None, number: int = 0
    ) -> Any:
        """Run a script; repeat until `deadline` (monotonic seconds), or for ever without one. A call with a
        `number` goes in its order, as one of `start`, and has a deadline.

        Raises StoreUnavailable after the deadline (`sent` is True if any try may have been
        carried out), and StoreRefused at once for a refusal that repeating cannot change.
        """
        try:
            if number and deadline is not None:
                return await self.start(name, arguments, deadline=deadline, read=_as_it_is, number=number)
            return await self.repeat(self.invoke(name, arguments), deadline)
        except StoreRefused as error:
            if error.code == "NOPERM":
                await self._name_right(deadline)
            raise

    async def _name_right(self, deadline: float | None) -> None:
        """Raise the refusal of the first write of a script, as a command of its own, where it is what the
        user may not do.

        Some servers do not say which command of a script they refused. They do say it of a command.
        """
        await self.command("HDEL", self._keys.declared[0], "", deadline=deadline)

    def start(
        self, name: str, arguments: list[Any], *, deadline: float, read: Callable[[Any], Any], number: int = 0
    ) -> asyncio.Future[Any]:
        """Run a script as `script` does, but send it before this returns if a connection is open.

        `read` turns the reply into the result. Calls with a `number` are sent in its order, also when they
        are repeated (`repeat_line`).
        """
        call = StartedCall(self, self.invoke(name, arguments), deadline, read, number=number)
        # A call needs a task if it must first connect, or waits for more than one answer or for other calls.
        channel = self._channel if not number or self.line.is_empty else None
        if isinstance(channel, Channel) and channel.send(call.invocation.command, call):
            call.watch()
        else:
            call.go_on(None)
        return call.result

    def join(
        self,
        name: str,
        make: Callable[[], list[Any]],
        *,
        deadline: float,
        read: Callable[[Any], Any],
        number: int = 0,
    ) -> StartedCall:
        """Return a call whose first try is part of a call of others. It is sent, and then watched, by the
        caller.

        `make` returns its arguments, if it has to go on alone.
        """
        return StartedCall(self, lambda: self.invoke(name, make()), deadline, read, number=number)

    def invoke(self, name: str, arguments: list[Any]) -> Invocation:
        """Return a call of a script, in the form in which calls begin now."""
        form = Form.DIGEST if self._functions is None else self._functions.form
        call = Invocation(name, self._keys.declared, pack(arguments), form=form, prelude=self._prelude)
        call.losses = self._known.losses
        return call

    async def command(self, *command: str | bytes | float, deadline: float | None = None) -> Any:
        """Run a plain command that may be repeated. Repeats and raises as `script`."""
        return await self.repeat(Invocation.plain(command), deadline)

    async def look(self, *command: str | bytes | float, missing: Any, deadline: float | None = None) -> Any:
        """Run a plain command for somebody who only looks: `missing` for a key of another type, and all text
        is `readable`.

        Repeats and raises as `script`.
        """
        try:
            return readable(await self.command(*command, deadline=deadline))
        except StoreRefused as error:
            if error.code != "WRONGTYPE":
                raise
            return missing

    async def look_by(
        self, name: str, arguments: list[Any], *, missing: Any = None, deadline: float | None = None
    ) -> Any:
        """Run a script for somebody who only looks, as `look`.

        Without `missing` a key of another type is an error.
        """
        try:
            return readable(await self.script(name, arguments, deadline=deadline))
        except StoreRefused as error:
            if error.code != "WRONGTYPE" or missing is None:
                raise
            return missing

    async def repeat(
        self, invocation: Invocation, deadline: float | None, *, place: Place | None = None
    ) -> Any:
        """Send a call until it is answered; raises as `script`. With a place it waits for those before it."""
        began, openings = clock.monotonic(), self.openings
        try:
            if place is not None and not await self._wait_behind(place, deadline):
                failed: StoreError = translate(
                    TimeoutError("no answer in time"), address=self.address, sent=False
                )
            else:
                reply = await self._channel.call(*invocation.command, deadline=deadline)
                self.note_answer(invocation)
                return reply
        except StoreError as error:
            failed = error
        return await self.repeat_after(
            failed, invocation, deadline, began=began, openings=openings, place=place
        )

    async def repeat_after(
        self,
        error: StoreError,
        invocation: Invocation,
        deadline: float | None,
        *,
        began: float,
        openings: int,
        place: Place | None = None,
    ) -> Any:
        """Go on with a call whose first try began at `began`, after `openings`, and ended with `error`.

        Raises as `repeat`.
        """
        sent, may_load = False, True
        why: StoreError | None = None
        pause = _FIRST_PAUSE
        while True:
            now = clock.monotonic()
            decision = self._decide(error, invocation, deadline, now, pause, may_load=may_load)
            if place is not None:
                self.line.note_failed(place)
            if isinstance(decision, (SendAs, LoadLibrary)):
                failed = await self._change_form(error, decision, invocation, deadline)
                may_load = may_load and isinstance(decision, SendAs)
                if failed is not None:
                    error = failed
                    continue
            else:
                is_late = deadline is not None and deadline <= now
                is_blink = why is None and now - began < _BLINK
                self._note_error(error, is_reported=not is_blink and not is_late)
                sent = sent or error.sent
                if why is None or not is_late:
                    why = error  # otherwise keep the earlier error: "no answer in time" tells the user less
                if isinstance(decision, GiveUp):
                    if place is not None and is_transient(error) and not self._channel.is_closed:
                        await _wait_until(deadline)  # in its place: those behind it may not overtake it
                    raise _with_sent(why, self._channel.address, sent=sent) from why.__cause__
                self.repeats += 1
                if place is None or self.line.is_first(place):
                    await asyncio.sleep(decision.seconds)
                if isinstance(decision, OpenShard):
                    await self._try_to_open(openings, deadline)
                if place is not None and not await self._wait_behind(place, deadline):
                    continue  # it is given up now
                pause, may_load = min(2 * pause, _LAST_PAUSE), True
            openings, invocation.losses = self.openings, self._known.losses
            try:
                reply = await self._channel.call(*invocation.command, deadline=deadline)
            except StoreError as again:
                error = again
            else:
                self.note_answer(invocation)
                return reply

    async def _wait_behind(self, place: Place, deadline: float | None) -> bool:
        """Wait for the calls before this one. Return False if the deadline came first."""
        try:
            await self.line.wait(place, deadline=deadline)
        except TimeoutError:
            return False
        return True

    def _decide(
        self,
        error: StoreError,
        invocation: Invocation,
        deadline: float | None,
        now: float,
        pause: float,
        *,
        may_load: bool,
    ) -> Decision:
        decision = decide(
            error,
            deadline=deadline,
            now=now,
            pause=pause * (1 - chance.jitter() / 2),  # spread: all callers lose a server at once
            form=invocation.form,
            may_load=may_load,
            is_closed=self._channel.is_closed,
        )
        is_forced = self._functions is not None and self._functions.is_forced
        return GiveUp() if is_forced and isinstance(decision, SendAs) and decision.is_lasting else decision

    async def _change_form(
        self,
        error: StoreError,
        decision: SendAs | LoadLibrary,
        invocation: Invocation,
        deadline: float | None,
    ) -> StoreError | None:
        """Do what comes before the next try. Return the error if the library cannot be loaded."""
        if isinstance(decision, LoadLibrary) or decision.form is Form.SOURCE:
            self.loads += 1
            self._known.note_missing(invocation)
        if isinstance(decision, SendAs):
            invocation.put(decision.form)
            if decision.is_lasting and self._functions is not None:
                self._functions.refuse(error)
        elif self._functions is not None:
            try:
                await self._functions.load(deadline=deadline)
            except StoreError as failed:
                return failed
        return None

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
        if isinstance(error, StoreRefused) and error.code == "MISCONF":
            self._saving.note_failure(error)
        if not is_reported:
            return
        if isinstance(error, NoReplica):
            self._replicas.note_failure(error)
        elif _is_away(error) and not self._channel.is_closed:
            self._availability.note_failure(error)

    def note_written(self) -> None:
        """Record that the server took a write."""
        if self._saving.is_lost:
            self._saving.note_answer()

    def note_answer(self, invocation: Invocation | None) -> None:
        """Record an answer. `invocation`: the call, None for one that others shared."""
        if invocation is not None:
            self._known.note_answer(invocation)
        if self._availability.is_lost:
            self._availability.note_answer()
        if self._replicas.is_lost:
            self._replicas.note_answer()


def _as_it_is(reply: Any) -> Any:
    return reply


async def _wait_until(deadline: float | None) -> None:
    """Wait until a deadline; not at all without one."""
    left = 0.0 if deadline is None else deadline - clock.monotonic()
    if left > 0:
        await asyncio.sleep(left)


def _is_away(error: StoreError) -> bool:
    """Return whether the server did not answer, or cannot carry out anything now."""
    # What was sent before a replica was missed was answered. Who got no turn to send knows nothing of the
    # server.
    has_answered = isinstance(error, NoReplica) and error.sent
    return is_transient(error) and not has_answered


def _with_sent(error: StoreError, address: str, *, sent: bool) -> StoreError:
    """Return the error to raise for a call that is given up because of `error`.

    A refusal concerns only its own try. If another try may have been carried out (`sent`), or if the
    refusal may pass, the server counts as unavailable.
    """
    if sent or is_transient(error):
        return StoreUnavailable(str(error), address=address, sent=sent)
    return error
