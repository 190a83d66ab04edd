"""What the transitions of tests do: they write down that they ran, and fail if the test says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from workflows import FlowHandle, WorkflowProvider

__all__ = ["Draft", "Open", "Until", "Verdict", "act", "broken", "did", "forget", "stands_at"]

Open = Callable[..., Awaitable[WorkflowProvider]]
Until = Callable[..., Awaitable[None]]


class Draft(msgspec.Struct):
    """A state."""

    value: int = 0
    seen: list[str] = msgspec.field(default_factory=list[str])


class Verdict(msgspec.Struct):
    """The payload of a trigger."""

    ok: bool


did: list[str] = []
"""What ran."""
broken: set[str] = set()
"""What fails."""


def forget() -> None:
    """Begin anew, for the next test."""
    did.clear()
    broken.clear()


def act(name: str) -> None:
    """Write a name down, and fail if it is broken."""
    did.append(name)
    if name in broken:
        raise ValueError(f"{name} is broken")


async def stands_at(flow: FlowHandle[Any], place: str, until: Until) -> None:
    """Wait until the machine waits at a place."""

    async def is_there() -> bool:
        report = await flow.report()
        return report.machine is not None and report.machine.place == place and report.state == "waiting"

    await until(is_there, f"the machine rests at {place}")
