"""The availability of the server, as the providers of one uplink see it: its loss and its return are logged.

All callers of a store and of its shares report to one `Availability`, so that an outage is logged once,
however many providers, calls and connections it affects. A part that has its own connection (the reader of
outcomes, the wake listener) notices the outage at its next call. The lease thread logs by itself that jobs
are at risk.

    available -> lost (the first repeat of a call failed too, or its first try took longer than
                       `retrying._BLINK`) -> available

What must always hold: a connection that is lost and made again within the first repeat is not logged; every
other outage is logged once when it begins and once when it ends. An `Availability` belongs to one
event loop, as its callers do.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from eventbus.model import clock
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.store")


class Availability:
    """Whether one server, or its replicas, can be reached now."""

    def __init__(
        self,
        address: str,
        *,
        lost: str = "server not available, trying again",
        back: str = "server available again",
    ) -> None:
        """Use `lost` and `back` as the messages of the log lines."""
        self.is_lost: bool = False
        self.outages: int = 0
        """How many outages there were."""
        self._address = address
        self._lost = lost
        self._back = back
        self._since = 0.0
        self._repeats = 0
        self._quiet = 0

    def note_failure(self, error: Exception) -> None:
        """Record that a call failed that is repeated: a later try of it, or a slow first try."""
        self._repeats += 1
        if self.is_lost:
            return
        self.is_lost, self._since, self._repeats = True, clock.monotonic(), 1
        self.outages += 1
        if not self._quiet:
            _log.warning(self._lost, address=self._address, error=str(error))

    def note_answer(self) -> None:
        """Record that a call was answered. Callers may check `is_lost` first, which is cheaper."""
        if not self.is_lost:
            return
        self.is_lost = False
        if not self._quiet:
            _log.info(
                self._back,
                address=self._address,
                away=round(clock.monotonic() - self._since, 1),
                repeats=self._repeats,
            )

    @contextmanager
    def quiet(self) -> Generator[None]:
        """Log nothing inside: a provider that starts raises its own error for a server that is not there."""
        self._quiet += 1  # a number, because several may start at the same time
        try:
            yield
        finally:
            self._quiet -= 1
