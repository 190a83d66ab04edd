"""The inbox of an inline flow: the signals that its caller gave or sends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from typing import Any

from eventbus import PayloadError
from eventbus.lowlevel import Signal as SentSignal
from eventbus.lowlevel import get_logger
from workflows.definition.signal import Signal, check_known, signal_by
from workflows.definition.workflow import Workflow
from workflows.execution.step_run import StepRun

__all__ = ["InlineInbox"]

_log = get_logger("workflows")


class InlineInbox:
    """Signals in memory. With `is_open` further ones may be sent while the flow runs."""

    def __init__(
        self,
        workflow: Workflow[Any, Any],
        signals: Iterable[tuple[Signal[Any] | str, Any]] = (),
        *,
        is_open: bool,
    ) -> None:
        """Begin with `signals` of a workflow, or their names, each with its payload. Raises as `send`."""
        self._workflow = workflow
        self.signals: Sequence[SentSignal] = []
        self.is_open = is_open
        self._came = asyncio.Event()
        for signal, payload in signals:
            self.send(signal, payload)

    def check(self, given: Signal[Any] | str) -> Signal[Any]:
        """Return a signal that is given by itself or by its name. Raises DefinitionError for one that no step
        waits for.
        """
        known = self._workflow.signals
        signal = signal_by(given, known)
        check_known(signal.name, known, f"workflow {self._workflow.name!r}")
        return signal

    def send(self, given: Signal[Any] | str, payload: Any) -> None:
        """Add a signal. Raises DefinitionError for one that no step waits for, and PayloadError if it does
        not fit.
        """
        signal = self.check(given)
        order = len(self.signals) + 1
        self.signals = [*self.signals, SentSignal(str(order), order, signal.name, signal.encode(payload))]
        self._came.set()

    def holds(self, delay: float) -> bool:
        """Tell whether something will end a wait of that many seconds."""
        return self.is_open or delay < math.inf

    async def listen(self) -> None:
        """Wait for a signal that has come since the last call ended."""
        await self._came.wait()
        self._came.clear()  # not before: a signal that came before this call is none of the last one's

    async def refresh(self) -> None:
        """Do nothing: all signals are here."""

    async def refuse(self, run: StepRun, signal: SentSignal, error: PayloadError) -> None:
        """Log that a signal does not fit the type for which the step waits."""
        _log.warning(
            "signal refused, its payload does not fit",
            workflow=run.step.owner,
            step=run.step.name,
            signal=signal.name,
            error=str(error),
        )
