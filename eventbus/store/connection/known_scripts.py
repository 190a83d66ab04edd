"""What the callers of one connection believe that the server knows of the scripts, so that a loss is logged
once.

A server forgets all its scripts at once: it was flushed, or came back empty. Each call that meets this sends
its script again. What must always hold: a loss is logged once, however many calls and callers meet it; a loss
that an outage explains is not logged, because the outage is.
"""

from __future__ import annotations

from eventbus.store.connection.availability import Availability
from eventbus.store.connection.invocation import Invocation
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.store")


class KnownScripts:
    """The scripts that the server is known to have."""

    def __init__(self, availability: Availability) -> None:
        self._availability = availability
        self._outages = 0
        self._names: set[str] = set()
        """Names and digests, since the last loss."""
        self.losses: int = 0
        """How often the server was found to have lost its scripts. A call that was sent before the last time
        says nothing about the time since."""

    def note_answer(self, invocation: Invocation) -> None:
        """Record that the server has carried out a call."""
        if invocation.losses == self.losses:
            known_by = invocation.known_by
            if known_by is not None:
                self._names.add(known_by)

    def note_missing(self, invocation: Invocation) -> None:
        """Record that the server does not know what a call names."""
        if self._outages != self._availability.outages:
            self._outages = self._availability.outages
            self._names.clear()  # the outage is logged; a restarted server knows no scripts
        if invocation.losses == self.losses and invocation.known_by in self._names:
            self._names.clear()
            self.losses += 1
            _log.info("the server forgot its scripts, sending them again")
