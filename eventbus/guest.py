"""Guests: systems on top of the event bus whose jobs run in the workers of a provider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from eventbus.config import Settings
from eventbus.context import SyncTools, Tools
from eventbus.engine.consumer import Consumer, Retention
from eventbus.engine.threads import Threads
from eventbus.subscriber import retention_of

__all__ = ["Guest", "Host"]


class Host(msgspec.Struct, frozen=True):
    """What a worker lends to the consumers of a guest."""

    settings: Settings
    tools: Tools
    sync: SyncTools
    threads: Threads
    worker: str

    @property
    def retention(self) -> Retention:
        """How long the provider's settings keep what ended."""
        return retention_of(self.settings)


class Guest(Protocol):
    """A system on top that runs jobs of its own in the workers of a provider."""

    @property
    def queues(self) -> Sequence[str]:
        """The queues that it can serve now; asked when a worker starts."""
        ...

    def make_consumer(self, queue: str, host: Host) -> Consumer:
        """Make the consumer of one of these queues, for one worker."""
        ...
