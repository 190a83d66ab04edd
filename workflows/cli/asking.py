"""Asking a server about its flows, for the commands of `eventbus flows`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from eventbus import EventProvider
from eventbus.cli.toolkit import ask_server
from workflows import WorkflowProvider

__all__ = ["ask_flows"]

T = TypeVar("T")


def ask_flows(
    url: str | None,
    act: Callable[[WorkflowProvider], Awaitable[T]],
    *,
    reads_only: bool = False,
    place: str | None = None,
) -> T:
    """Run `act` on the flows of a server, of that of the program at `place` if one is given; see
    `ask_server`.
    """

    async def ask(provider: EventProvider) -> T:
        return await act(WorkflowProvider(provider))

    return ask_server(url, ask, reads_only=reads_only, place=place)
