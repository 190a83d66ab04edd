"""Calls that survive a lost connection: repeated until they are answered or a deadline passes.

The one place that deals with `NOSCRIPT`, `LOADING`, `READONLY` and their kin, lost
connections, restarts and failovers. Everything called through here is repeat-safe by
its own means (fresh ids, numbered calls, tokens), so a repeat after a lost answer
changes nothing; that is the scripts' promise, not this module's.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import structlog

from eventbus.errors import StoreError, StoreRefused, StoreUnavailable
from eventbus.store.channel import Channel
from eventbus.store.connection import TRANSIENT
from eventbus.store.scripts import load_script, pack

__all__ = ["Caller"]

_log = structlog.get_logger("eventbus.store")

_FIRST_PAUSE, _LAST_PAUSE = 0.05, 1.0


class Caller:
    """Script calls and commands over one channel, with repeats."""

    def __init__(self, channel: Channel, *, root: str, prelude: str = "") -> None:
        self._channel = channel
        self._root = root
        self._prelude = prelude
        self._in_trouble = False
        self.repeats = 0
        """Calls sent again since the start."""

    async def script(self, name: str, arguments: list[Any], *, deadline: float | None = None) -> Any:
        """Run a script; repeat until `deadline` (monotonic seconds), None for ever.

        Raises StoreUnavailable after the deadline (`sent` is True if any try may have been
        carried out), StoreRefused at once for a refusal that repeating cannot mend.
        """
        script = load_script(name, self._prelude)
        packed = pack(arguments)
        try:
            return await self.command("EVALSHA", script.digest, 1, self._root, packed, deadline=deadline)
        except StoreRefused as error:
            if error.code != "NOSCRIPT":
                raise
        # EVAL runs it and loads it; a script cache is empty after a restart or a failover.
        return await self.command("EVAL", script.source, 1, self._root, packed, deadline=deadline)

    async def command(self, *command: str | bytes | float, deadline: float | None = None) -> Any:
        """Run a plain command that may be repeated; else as `script`."""
        sent = False
        pause = _FIRST_PAUSE
        while True:
            try:
                reply = await self._channel.call(*command, deadline=deadline)
            except StoreError as error:
                sent = sent or getattr(error, "sent", False)
                left = _LAST_PAUSE if deadline is None else deadline - time.monotonic()
                self._note_trouble(error)
                if isinstance(error, StoreRefused) and error.code == "READONLY":
                    self._channel.drop("the server became read-only")  # the name may lead to a new primary
                if not _is_transient(error) or left <= 0:
                    raise _with_sent(error, sent=sent) from error.__cause__
            else:
                self._note_recovery()
                return reply
            self.repeats += 1
            await asyncio.sleep(min(left, pause * (1 - random.random() / 2)))
            pause = min(2 * pause, _LAST_PAUSE)

    def _note_trouble(self, error: StoreError) -> None:
        if _is_transient(error) and not self._in_trouble:
            self._in_trouble = True
            _log.warning("server not available, trying again", error=str(error))

    def _note_recovery(self) -> None:
        if self._in_trouble:
            self._in_trouble = False
            _log.info("server available again", repeats=self.repeats)


def _is_transient(error: StoreError) -> bool:
    if isinstance(error, StoreUnavailable):
        return True
    return isinstance(error, StoreRefused) and error.code in TRANSIENT


def _with_sent(error: StoreError, *, sent: bool) -> StoreError:
    if isinstance(error, StoreUnavailable) and error.sent != sent:
        return StoreUnavailable(str(error), address=error.address, sent=sent)
    return error
