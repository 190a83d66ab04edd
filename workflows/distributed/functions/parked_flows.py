"""The flows that this worker has parked, because its code does something else than they recorded.

What must always hold: the same code and the same journal end the same way, so such a flow is parked again
without a replay, and without a further line in the log. A worker that starts with other code has an empty
memory, and tries.
"""

from __future__ import annotations

_MOST = 10_000
"""The flows that a worker remembers; the oldest is forgotten first."""


class ParkedFlows:
    """Remembers reasons by flow, its run and the length of its journal."""

    def __init__(self) -> None:
        self._reasons: dict[str, tuple[int, int, str]] = {}

    def keep(self, flow_id: str, run: int, length: int, reason: str) -> None:
        """Remember why a flow with a journal of this length was parked."""
        self._reasons[flow_id] = (run, length, reason)
        while len(self._reasons) > _MOST:
            del self._reasons[next(iter(self._reasons))]

    def get(self, flow_id: str, run: int, length: int) -> str | None:
        """Return why a flow was parked here; None if it was not, or has recorded more since, or runs
        again.
        """
        known = self._reasons.get(flow_id)
        return known[2] if known is not None and known[:2] == (run, length) else None
