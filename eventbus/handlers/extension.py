"""Extensions: systems on top of the event bus, such as workflows, whose jobs run in the workers of a provider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from eventbus.engine.consumer import Consumer, Retention
from eventbus.handlers.consumer import retention_of
from eventbus.handlers.context import SyncTools, Tools
from eventbus.runtime.thread_pool import ThreadPool
from eventbus.settings.settings import Settings

__all__ = ["Extension", "WorkerServices"]


class WorkerServices(msgspec.Struct, frozen=True):
    """The parts of a worker that the consumers of an extension may use.

    `tools` emits and records progress in the event loop, `sync` does so from threads. `threads` runs sync
    functions. `worker` is the id of the worker.
    """

    settings: Settings
    tools: Tools
    sync: SyncTools
    threads: ThreadPool
    worker: str

    @property
    def retention(self) -> Retention:
        """How many finished jobs the provider's settings keep, and for how long."""
        return retention_of(self.settings)


class Extension(Protocol):
    """A system on top of the event bus that runs jobs of its own in the workers of a provider."""

    @property
    def queues(self) -> Sequence[str]:
        """The queues that the extension can serve now; read when a worker starts."""
        ...

    def make_consumer(self, queue: str, services: WorkerServices) -> Consumer:
        """Make the consumer of one of its queues, for one worker."""
        ...
