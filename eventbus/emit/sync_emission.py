"""The handle on one emission for code that cannot await."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from eventbus.emit.emission import Emission
from eventbus.model.durations import Duration
from eventbus.runtime.blocking_call import run_blocking

R = TypeVar("R")


class SyncEmission(Generic[R]):
    """An emission for code in threads: its methods block instead of being awaited.

    Example: `receipt = provider.sync.emit(OrderPlaced, order).result(timeout=5)`.
    """

    def __init__(self, emission: Emission[R], loop: asyncio.AbstractEventLoop) -> None:
        self._emission = emission
        self._loop = loop

    @property
    def job_id(self) -> str:
        """The job's id. It is final once `enqueued()` has returned."""
        return self._emission.job_id

    @property
    def correlation_id(self) -> str:
        """The id of the chain of emissions that this one belongs to."""
        return self._emission.correlation_id

    @property
    def joined(self) -> bool:
        """Whether the emission joined the job of another one. It is known once `enqueued()` has returned."""
        return self._emission.joined

    @property
    def groups(self) -> int | None:
        """How many jobs it has made, as `Emission.groups`. It is known once `enqueued()` has returned."""
        return self._emission.groups

    def done(self) -> bool:
        """Return whether the job has an outcome. Does not block."""
        return self._emission.done()

    def enqueued(self) -> None:
        """Wait until the job is in the server. Raises as `Emission.enqueued`."""
        run_blocking(self._loop, self._emission.enqueued())

    def cancel(self, reason: str = "", *, call_timeout: Duration | None = None) -> bool:
        """Cancel the job, as `Emission.cancel`."""
        return run_blocking(self._loop, self._emission.cancel(reason, call_timeout=call_timeout))

    def result(self, timeout: float | None = None) -> R:
        """Wait for the outcome and return the result. Raises as awaiting the emission does.

        Raises TimeoutError after `timeout` seconds. The emission goes on, and `result` may be called again.
        """

        async def wait() -> R:
            return await self._emission

        return run_blocking(self._loop, wait(), timeout)
