"""Silent workers: those that serve a queue by what they said last, and do not count as live any more.

A worker announces itself each 5 s from its event loop, and counts as live for 20 s after that. Its lease
thread is heard each 3 s also while the loop is blocked, and says how far the loop is behind (`renew.lua`).
One that stops in order is taken out of its queues at once, and out of the roster at its end. So of one that
is still there, and announces itself no more:

    its thread is heard, and its lag is long    the event loop is blocked: the process claims nothing
    its thread is heard, and its lag is short   it stops, and lets its handlers finish: not silent
    its thread is not heard either              it was killed, is paused, or does not reach the server

What must hold: nothing here changes who counts as live; it is only told to people.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from eventbus.store.calls.roster import ALIVE, WorkerLook
from eventbus.store.readable import number_in

_BLOCKED = 5_000  # ms of lag, as long as the pause between two announcements


class SilentWorker(NamedTuple):
    """One of them. `announced`: when its loop was heard last, `heard`: when anything of it was; in ms."""

    id: str
    announced: int
    heard: int
    lag: int

    @property
    def is_blocked(self) -> bool:
        """Whether its event loop was blocked when it was last heard."""
        return self.lag >= _BLOCKED

    def describe(self, now: int) -> str:
        """Return what is known of it as a part of a sentence. `now` is the server's time in ms."""
        silence = f"{max(0, now - self.announced) / 1000:.0f} s"
        if self.is_blocked:
            return (
                f"its worker {self.id} has not answered for {silence}; last lag {self.lag / 1000:.0f} s: "
                "code blocks its event loop"
            )
        return (
            f"its worker {self.id} has not answered for {silence}, and has not left: "
            "it was killed, is paused, or does not reach the server"
        )


def find_silent(workers: Iterable[WorkerLook], now: int) -> dict[str, list[SilentWorker]]:
    """Return the silent workers of each queue that has any, the one that was heard last first."""
    found: defaultdict[str, list[SilentWorker]] = defaultdict(list)
    for look in workers:
        if now - look.announced <= ALIVE:
            continue
        heard = max(look.announced, number_in(look.fields, "heard"))
        silent = SilentWorker(look.id, look.announced, heard, number_in(look.fields, "lag"))
        if silent.is_blocked or now - heard > ALIVE:
            for queue in look.fields.get("queues", "").split():
                found[queue].append(silent)
    return {queue: sorted(silent, key=lambda each: (-each.heard, each.id)) for queue, silent in found.items()}
