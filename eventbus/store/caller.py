"""Calls that survive a lost connection: repeated until they are answered or a deadline passes.

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
from typing import Any, TypeAlias

import structlog

from eventbus.errors import StoreError, StoreRefused, StoreUnavailable
from eventbus.store.channel import Channel
from eventbus.store.connection import TRANSIENT
from eventbus.store.scripts import load_script, pack

__all__ = ["Caller"]

_log = structlog.get_logger("eventbus.store")

_FIRST_PAUSE, _LAST_PAUSE = 0.05, 1.0

_Command: TypeAlias = tuple[str | bytes | float, ...]


class Caller:
    """Script calls and commands over one channel, with repeats."""

    def __init__(self, channel: Channel, *, root: str, prelude: str = "") -> None:
        self._channel = channel
        self._root = root
        self._prelude = prelude
        self._in_trouble = False
        self._known: set[Any] = set()
        self.repeats = 0
        """Calls sent again since the start."""
        self.loads = 0
        """Scripts sent whole since the start: each once, and again after the server forgot them."""

    async def script(self, name: str, arguments: list[Any], *, deadline: float | None = None) -> Any:
        """Run a script; repeat until `deadline` (monotonic seconds), None for ever.

        Raises StoreUnavailable after the deadline (`sent` is True if any try may have been
        carried out), StoreRefused at once for a refusal that repeating cannot mend.
        """
        script = load_script(name, self._prelude)
        packed = pack(arguments)
        by_digest = ("EVALSHA", script.digest, 1, self._root, packed)
        # EVAL runs it and loads it; a script cache is empty after a restart or a failover.
        whole = ("EVAL", script.source, 1, self._root, packed)
        return await self._repeat(by_digest, deadline, without_script=whole)

    async def command(self, *command: str | bytes | float, deadline: float | None = None) -> Any:
        """Run a plain command that may be repeated; else as `script`."""
        return await self._repeat(command, deadline)

    async def _repeat(
        self, command: _Command, deadline: float | None, *, without_script: _Command | None = None
    ) -> Any:
        """`without_script` goes in the place of `command` once the server does not know its script."""
        sent = False
        why: StoreError | None = None
        pause = _FIRST_PAUSE
        while True:
            try:
                reply = await self._channel.call(*command, deadline=deadline)
            except StoreError as error:
                sent = sent or getattr(error, "sent", False)
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
                self._note_recovery()
                if without_script is not None:
                    self._known.add(command[1])
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

    def _note_recovery(self) -> None:
        if self._in_trouble:
            self._in_trouble = False
            _log.info("server available again", repeats=self.repeats)


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
