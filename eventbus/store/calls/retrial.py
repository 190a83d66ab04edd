"""Jobs that run again or go because somebody says so, some in each call.

`ControlStore.retrials` is one of these. A call names itself, so that a repeat of it is answered as before;
see `retry.lua` and `remove.lua`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eventbus.model import chance
from eventbus.store.connection.retrying import RetryingCaller


class RetrialStore:
    """What people do to jobs that have ended, or that nobody runs."""

    def __init__(self, caller: RetryingCaller) -> None:
        self._caller = caller

    async def retry(
        self,
        jobs: Sequence[str],
        *,
        states: Sequence[str],
        call: str = "",
        deadline: float | None = None,
        now: int | str = "",
    ) -> list[str]:
        """Let jobs in these states (`failed`, `cancelled`, `completed`) wait again; at most `HEAVY_ROWS`.
        Return one word for each, in order.

        `retried`; `key` if its key stands for another job; `ungrouped`; `damaged`; `member` or `root` of a
        tree; `unknown`; or its state, which is none of those asked for. `call` is fresh for each request;
        tests give it.
        """
        arguments: list[Any] = [now, call or chance.token(8), states, len(jobs), *jobs]
        return await self._caller.script("retry", arguments, deadline=deadline)

    async def remove(
        self,
        jobs: Sequence[str],
        *,
        states: Sequence[str],
        text: str,
        key_ttl_ms: int,
        call: str = "",
        deadline: float | None = None,
        now: int | str = "",
    ) -> list[str]:
        """Remove jobs in these states, and trees if `root` is one of them; at most `HEAVY_ROWS`. Return one
        word for each, in order.

        `removed`; `active`; `member` or `root` of a tree; `unknown`; or its state, which is none of those
        asked for. `text` is the outcome that whoever awaits an open job hears.
        """
        arguments: list[Any] = [now, key_ttl_ms, call or chance.token(8), text, states, len(jobs), *jobs]
        return await self._caller.script("remove", arguments, deadline=deadline)
