"""The blocked read of one worker: its pool's wakes and its own control messages.

Crash windows: `cancel-heard-late` (a message is read when its job has ended, was retried and runs again: the
hold says which claim is to be cancelled, and it is not that one).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eventbus.errors import StoreError, StoreRefused, StoreUnavailable
from eventbus.store.connection.channel import Channel
from eventbus.store.connection.connector import Connector

_MARK, _TOKEN = 6, 9  # where they stand in a hold
_BLOCK = 4.0  # seconds that one read of the wakes blocks at most
_BLOCK_PATIENCE = 2.0  # giving up a blocked read too early only costs one poll, so less than for calls


class WakeReader:
    """The blocked read of one worker: its pool's wakes and its own control messages."""

    def __init__(
        self,
        connector: Connector,
        beside: Channel,
        *,
        name: str,
        wake: str,
        control: str,
        due: str,
        held: str,
    ) -> None:
        """The reader has a connection of its own, because a blocked read would hold up other calls.

        What cannot wait for a blocked read is asked over the connection `beside` it. The last four are keys
        of the server; `held` has what the worker holds.
        """
        self._channel = Channel(connector, name=name, answer_timeout=_BLOCK + _BLOCK_PATIENCE)
        self._beside = beside
        self._wake = wake
        self._control = control
        self._due = due
        self._held = held
        self._unconfirmed: set[str] = set()
        """What was confirmed on a connection that was lost before the answer; confirmed again before the next
        read.
        """

    async def wait(self, seconds: float) -> tuple[str, str] | None:
        """Wait for a wake or a message, at most `seconds` and at most 4 s.

        Return `("wake", queue)`, `("control", message)` or None. Tries once. Never cancel this call in
        flight: the server may have removed a wake or a message that then reaches nobody.
        """
        await self._confirm_again()
        # Redis 6 rounds a timeout below 2 ms to 0, and 0 blocks for ever.
        block = max(0.01, min(seconds, _BLOCK))
        reply = await self._channel.call("BZPOPMIN", self._control, self._wake, block)
        if reply is None:
            return None
        return ("control" if reply[0] == self._control else "wake"), reply[1]

    async def poll(self) -> tuple[str, str] | None:
        """Take a control message if there is one. Return as `wait` does."""
        await self._confirm_again()
        reply = await self._channel.call("ZPOPMIN", self._control)
        return ("control", reply[0]) if reply else None

    def confirm(
        self, worker: str, job: str, on_answer: Callable[[bool], None], *, is_running: bool = True
    ) -> None:
        """Tell the server that the worker has a job that was handed to it (`handing.lua`); nobody waits for
        that.

        Call it as soon as the message is read, and before the next read. `on_answer` gets whether the worker
        has the job: False if the server has given it back. It is not called if the connection is lost; a job
        that `is_running` is confirmed again then. The server gives back any other, because its worker lets it
        go.
        """
        entry = f"hand:{worker}/{job}"

        def repeat() -> None:
            if is_running:
                self._unconfirmed.add(entry)

        def take(removed: int) -> None:
            if removed:
                on_answer(True)
                return
            # It was given back, or a renewal or the worker's leave has confirmed it before. The hold tells
            # which.
            held = _Answer(lambda hold: on_answer(_has_token(hold, f"{worker}:h")), _leave_it)
            self._beside.send(("HGET", self._held, job), held)

        if not self._channel.send(("ZREM", self._due, entry), _Answer(take, repeat)):
            repeat()

    def ask_cancelled(self, job: str, cancel: Callable[[list[tuple[str, str]]], None]) -> None:
        """Have that claim of a job cancelled which the server has marked (`hold.lua`); nobody waits for that.

        `cancel` gets the job with the token of the claim. It is not called where the worker holds no such
        claim any more: then the message was about an earlier one. Nor is it if the connection is lost, for
        the mark stays, and the next renewal tells of it.
        """

        def read(hold: str | None) -> None:
            token = _cancelled_token(hold)
            if token:
                cancel([(job, token)])

        self._beside.send(("HGET", self._held, job), _Answer(read, _leave_it))

    async def _confirm_again(self) -> None:
        # The answers say nothing: an entry may be gone because the first confirmation arrived.
        again, self._unconfirmed = self._unconfirmed, set()
        if not again:
            return
        try:
            await self._channel.call("ZREM", self._due, *sorted(again))
        except StoreUnavailable:
            self._unconfirmed |= again
            raise
        except StoreRefused:
            # Somebody else's value; the renewal confirms too, and a refusal must not keep us from reading.
            pass

    async def aclose(self) -> None:
        """Close the connection. Idempotent."""
        await self._channel.aclose()


class _Answer:
    """The receiver of one answer. Without one, `on_loss` is called."""

    __slots__ = ("_on_loss", "_on_reply")

    def __init__(self, on_reply: Callable[[Any], None], on_loss: Callable[[], None]) -> None:
        self._on_reply = on_reply
        self._on_loss = on_loss

    def done(self) -> bool:
        return False

    def set_result(self, reply: Any, /) -> None:
        self._on_reply(reply)

    def set_exception(self, _error: StoreError, /) -> None:
        """Note that the connection was lost, or that the command was refused."""
        self._on_loss()


def _has_token(hold: str | None, token: str) -> bool:
    """Return whether a hold (`hold.lua`) has this token; behind it there may be a NUL and a queue."""
    return hold is not None and (hold.endswith(token) or f"{token}\0" in hold)


def _cancelled_token(hold: str | None) -> str:
    """Return the token of a hold (`hold.lua`) that is marked as cancelled; empty for any other."""
    packed = b"" if hold is None else hold.encode("utf-8", "surrogateescape")
    if packed[_MARK : _MARK + 1] != b"c":
        return ""
    return packed[_TOKEN:].partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _leave_it() -> None:
    """Do nothing: the next renewal names the job, and hears whether the worker has it, or is to cancel it."""
