"""The inbox of a local flow: the signals of its root job, which this worker has claimed.

What must always hold: a signal is taken by the append that records what it did, never without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from eventbus import PayloadError, StoreUnavailable
from eventbus.lowlevel import Signal, describe, get_logger, hidden_around
from workflows.distributed.activation import Activation
from workflows.distributed.worker_runtime import Flow
from workflows.execution.step_run import StepRun
from workflows.records.entries import Entry, chosen_id

__all__ = ["LocalInbox", "refusal_of"]

_LOOK_SECONDS = 1.0  # while steps run it looks for signals at least so often
_ALMOST_OVER = 0.02

_log = get_logger("workflows")


class LocalInbox:
    """The signals of one activation."""

    def __init__(self, flow: Flow, activation: Activation, append: Callable[..., Awaitable[None]]) -> None:
        """Record with `append`, which records with it what must come first."""
        self._append = append
        self._flow = flow
        self._activation = activation

    @property
    def signals(self) -> Sequence[Signal]:
        """The signals that no entry has taken, as far as this worker has heard."""
        return self._activation.signals

    def holds(self, delay: float) -> bool:
        """Return False, because a signal wakes the flow's job, unless the time is almost over."""
        return delay <= _ALMOST_OVER

    async def listen(self) -> None:
        """Look for signals when the server tells of one, or in a second. A server that is away is asked
        again.
        """
        try:
            await self._flow.runtime.jobs.listen(self._activation.job, within=_LOOK_SECONDS)
            await self.refresh()
        except StoreUnavailable:
            await asyncio.sleep(_LOOK_SECONDS)

    async def refresh(self) -> None:
        """Look for signals."""
        await self._flow.runtime.jobs.hear(self._activation.job)

    async def refuse(self, run: StepRun, signal: Signal, error: PayloadError) -> None:
        """Record that a signal does not fit. Raises what `append` raises."""
        entry = refusal_of(self._flow, run.step.name, signal, error, now_ms=self._activation.now_ms)
        await self._append([entry], taken=[signal.id])


def refusal_of(flow: Flow, step: str, signal: Signal, error: PayloadError, *, now_ms: int) -> Entry:
    """Log that a signal does not fit, and return the entry that says so: its sender was wrong, not
    the flow.
    """
    _log.warning(
        "signal refused, its payload does not fit",
        workflow=flow.workflow.name,
        flow_id=flow.flow_id,
        step=step,
        correlation_id=flow.facts.correlation_id,
        signal=signal.name,
        error=hidden_around().shown(str(error)),
    )
    failure = msgspec.Raw(describe(error, attempts=1).encode())
    return Entry(
        kind="refused",
        place=step,
        name=signal.name,
        error=failure,
        started_ms=now_ms,
        signal=chosen_id(signal.id),
    )
