"""What the parts of flows of every kind do: they write down that they ran, and fail, or wait, if the test
says so.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from eventbus import Unrecoverable

__all__ = ["Parts"]


class Parts:
    """The parts of the flows of one test: `first`, `second` and `third`, each with a rollback.

    `fails` says how often a part, or a rollback such as `undo first`, raises before it succeeds; `is_final`
    makes its errors final. A part in `holds` waits for `release`, and writes down `<name> cut` if it is
    cancelled meanwhile.
    """

    def __init__(self) -> None:
        self.did: list[str] = []
        self.keys: dict[str, set[str]] = {}
        self.attempts: dict[str, list[int]] = {}
        self.told: list[tuple[dict[str, Any], str]] = []
        self.fails: Counter[str] = Counter()
        self.is_final = False
        self.holds: set[str] = set()
        self._gate = asyncio.Event()

    def release(self) -> None:
        """Let the parts go on that wait."""
        self.holds.clear()
        self._gate.set()

    def note(self, ctx: Any) -> None:
        """Write down the meta and the correlation id that a context tells."""
        self.told.append((dict(ctx.meta), ctx.correlation_id))

    async def act(self, name: str, key: str, attempt: int) -> None:
        """Run a part: `key` is that of the service that it would call, and `attempt` is that of its
        context.
        """
        self.did.append(name)
        self.keys.setdefault(name, set()).add(key)
        self.attempts.setdefault(name, []).append(attempt)
        if name in self.holds:
            try:
                await self._gate.wait()
            except asyncio.CancelledError:
                self.did.append(f"{name} cut")
                raise
        self._fail(name)

    async def undo(self, name: str) -> None:
        """Run the rollback of a part."""
        self.did.append(f"undo {name}")
        self._fail(f"undo {name}")

    def _fail(self, name: str) -> None:
        if self.fails[name]:
            self.fails[name] -= 1
            raise (Unrecoverable if self.is_final else ValueError)(f"{name} is broken")
