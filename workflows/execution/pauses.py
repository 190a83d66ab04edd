"""The pauses of one run: steps that wait for their next attempt, for a time or for a signal.

What must always hold: a short pause ends here. A long one is no reason to hold the flow in this process: when
nothing else goes on, all long pauses end, and what they wait for follows in another activation. A halt ends
all pauses.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import Protocol, TypeVar

from eventbus.lowlevel import Signal

T = TypeVar("T")


class Sleeper(Protocol):
    """The calls by which pauses pass time."""

    async def sleep(self, delay: float) -> None:
        """Wait `delay` seconds."""
        ...

    def holds(self, delay: float) -> bool:
        """Tell whether a step waits here for that many seconds even if no other step runs."""
        ...


class Pauses:
    """All pauses of a run."""

    def __init__(self, sleeper: Sleeper) -> None:
        self.busy: int = 0
        """The steps that go on here, with those in short pauses."""
        self._sleeper = sleeper
        self._is_over = False
        self._all: set[asyncio.Future[bool]] = set()
        self._long: set[asyncio.Future[bool]] = set()
        self._lingering: set[asyncio.Future[bool]] = set()

    async def wait(
        self, delay: float, *, holds: bool | None = None, arrival: asyncio.Future[Signal] | None = None
    ) -> bool:
        """Wait `delay` seconds, or until `arrival` is done; return False if what is waited for follows
        elsewhere.

        `holds` tells whether the pause is a reason to stay here; by default the sleeper does. Raises what its
        `sleep` raises.
        """
        if delay <= 0 or self._is_over:
            return True
        pause: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        sleeping = asyncio.ensure_future(self._sleeper.sleep(delay)) if delay < math.inf else None
        self._all.add(pause)
        is_long = not (self._sleeper.holds(delay) if holds is None else holds)
        if is_long:
            self._long.add(pause)
            self.busy -= 1
            self.release()
        try:
            ends = {each for each in (pause, sleeping, arrival) if each is not None}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.busy += is_long
            self._all.discard(pause)
            self._long.discard(pause)
            if sleeping is not None:
                sleeping.cancel()
        if sleeping is not None and sleeping.done() and not sleeping.cancelled():
            sleeping.result()  # raises the error of a `sleep` that a user supplied
        return not pause.done() or pause.result() or (arrival is not None and arrival.done())

    async def wait_apart(self, end: asyncio.Future[T], *, lingers: bool) -> T | None:
        """Wait for the end of what runs a step elsewhere. Return None if the run halts, or if no step is busy
        here.

        With `lingers` it waits on in the second case, until `settle_down`. Raises the error of `end`.
        """
        if end.done():  # no wait: others would hear that nothing goes on here
            return end.result()
        pause: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._all.add(pause)
        (self._lingering if lingers else self._long).add(pause)
        self.busy -= 1
        if self._is_over:
            _end([pause], goes_on=False)
        self.release()
        try:
            await asyncio.wait({pause, end}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.busy += 1
            for pauses in (self._all, self._long, self._lingering):
                pauses.discard(pause)
        return end.result() if end.done() else None

    def settle_down(self) -> None:
        """End what lingers, as soon as no step is busy."""
        self._long |= self._lingering
        self._lingering.clear()
        self.release()

    def release(self) -> None:
        """End the long pauses if no step is busy, and nothing lingers that keeps the flow here anyway."""
        if self._long and self.busy == 0 and not self._lingering:
            _end(self._long, goes_on=False)

    def end(self) -> None:
        """End all pauses, and those to come: the run halts."""
        self._is_over = True
        _end(self._all, goes_on=True)


def _end(pauses: Iterable[asyncio.Future[bool]], *, goes_on: bool) -> None:
    for pause in pauses:
        if not pause.done():
            pause.set_result(goes_on)
