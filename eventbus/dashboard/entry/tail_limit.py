"""The limit of tails: how many one dashboard tells at once. Each holds a connection of a browser, and one to
the server.
"""

from __future__ import annotations

from collections.abc import Callable

from eventbus.dashboard.problem import Problem

MOST_TAILS = 20


class TailLimit:
    """Counts the tails that are open."""

    def __init__(self) -> None:
        self._taken: set[object] = set()

    def enter(self) -> Callable[[], None]:
        """Take a place; what is returned frees it, also when it is called twice. Raises Problem, 429, if none
        is free.
        """
        if len(self._taken) >= MOST_TAILS:
            raise Problem(
                429,
                f"{MOST_TAILS} tails are open in this process; close one, or try again",
                headers={"retry-after": "5"},
            )
        mark = object()
        self._taken.add(mark)
        return lambda: self._taken.discard(mark)
