"""A timer wheel: many deadlines on one timer of the event loop.

A timer of its own would cost more than a job. The wheel sorts deadlines into buckets of 20 ms, so a deadline
is met up to 20 ms late and never early. Adding and discarding take two dictionary operations each.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import Protocol

from eventbus.runtime.own_context import own_context

_WIDTH = 0.02
"""Seconds of one bucket."""
_SLACK = 0.000_125
"""The part of a bucket by which a time may be before its end and count as its end: sums of floats differ with
the loop's time at first.
"""


class HasDeadline(Protocol):
    """An object that may have a deadline."""

    def on_deadline(self) -> None:
        """Handle the deadline. Called once in the event loop when the time is over; must not raise."""
        ...


class TimerWheel:
    """The deadlines of one event loop."""

    def __init__(self) -> None:
        self._buckets: dict[int, dict[int, HasDeadline]] = {}
        self._order: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._context = own_context()

    def add(self, target: HasDeadline, seconds: float) -> int:
        """Call `target.on_deadline` after `seconds`. Return the bucket, for `discard`."""
        loop = asyncio.get_running_loop()
        bucket = int((loop.time() + seconds) / _WIDTH + _SLACK) + 1
        entries = self._buckets.get(bucket)
        if entries is None:
            entries = self._buckets[bucket] = {}
            heapq.heappush(self._order, bucket)
            if self._order[0] == bucket:
                self._set_timer(loop)
        entries[id(target)] = target
        return bucket

    def discard(self, target: HasDeadline, bucket: int) -> None:
        """Forget a deadline. Does nothing when it has passed."""
        entries = self._buckets.get(bucket)
        if entries is not None:
            entries.pop(id(target), None)

    def close(self) -> None:
        """Forget all deadlines without a call of `on_deadline`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._buckets.clear()
        self._order.clear()

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self._order[0] * _WIDTH, self._on_timer, context=self._context)

    def _on_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time() + 0.001  # a loop may call its timer up to 1 ms early (uvloop counts in ms)
        left: list[HasDeadline] = []
        try:
            while self._order and self._order[0] * _WIDTH <= now:
                left = [*reversed(self._buckets.pop(heapq.heappop(self._order)).values())]
                while left:
                    left.pop().on_deadline()
        finally:  # also if a signal handler raised something: the others have their deadlines still
            for target in reversed(left):
                self.add(target, 0.0)
            if self._order and self._timer is None:
                self._set_timer(loop)
