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
    url: str | None, act: Callable[[WorkflowProvider], Awaitable[T]], *, reads_only: bool = False
) -> T:
    """Run `act` on the flows of a server; with `reads_only` for a user who may only look, too."""

    async def ask(provider: EventProvider) -> T:
        return await act(WorkflowProvider(provider))

    return ask_server(url, ask, reads_only=reads_only)
