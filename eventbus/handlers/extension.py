"""Extensions: systems on top of the event bus, such as workflows, whose jobs run in the workers of a
provider.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from eventbus.engine.consumer import Consumer, Retention
from eventbus.engine.job import Job
from eventbus.handlers.consumer import retention_of
from eventbus.handlers.worker_host import WorkerHost
from eventbus.handlers.worker_pools import WorkerPools
from eventbus.model.keep import Keep
from eventbus.runtime.thread_pool import ThreadPool
from eventbus.settings.settings import Settings


class WorkerServices(msgspec.Struct, frozen=True):
    """The parts of a worker that the consumers of an extension may use.

    `host` does what attempts ask for: `Attempt(host, job)`; it emits in the event loop, and its `in_threads`
    emits in threads. `threads` runs sync functions, and `pools` has the places, threads and processes of
    named pools and of `"process"`. `worker` is the id of the worker. `is_stopping()` tells whether the worker
    takes no further jobs. `start_clock(job, timeout)` lets the timeout of a running job count from now on,
    for which `timeout_of` gave None. `aliases` maps ids in whose name the code of a running job emits to the
    id of that job, while that code runs.
    """

    settings: Settings
    host: WorkerHost
    threads: ThreadPool
    worker: str
    is_stopping: Callable[[], bool]
    aliases: dict[str, str]
    pools: WorkerPools
    start_clock: Callable[[Job, float | None], None]

    @property
    def retention(self) -> Retention:
        """How many finished jobs the provider's settings keep, and for how long."""
        return retention_of(self.settings)

    def retention_for(self, keep_completed: Keep | None, keep_failed: Keep | None) -> Retention:
        """Return the retention of jobs whose definition says so itself; what is None is that of the
        settings.
        """
        return retention_of(self.settings, keep_completed, keep_failed)


class Extension(Protocol):
    """A system on top of the event bus that runs jobs of its own in the workers of a provider."""

    @property
    def queues(self) -> Sequence[str]:
        """The queues that the extension can serve now; read when a worker starts."""
        ...

    def make_consumer(self, queue: str, services: WorkerServices) -> Consumer:
        """Make the consumer of one of its queues, for one worker."""
        ...
