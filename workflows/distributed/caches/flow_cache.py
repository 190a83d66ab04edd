"""The flow cache of a worker: what the jobs of one flow that runs in another worker share, which is its input
and the records of its steps.

Without it, each item of a long list would read the journal of its flow, in which all other items are.

What must always hold: the cache keeps what never changes. An input belongs to a flow, and a record to a run
of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from workflows.records.records import StepRecord

_FLOWS = 16
"""The number of flows that are kept; the one that was added first is dropped first."""


class FlowCache:
    """Keeps the inputs and the records of some flows."""

    def __init__(self) -> None:
        self.inputs: dict[str, msgspec.Raw] = {}
        self._records: dict[tuple[str, int], Mapping[str, StepRecord]] = {}

    def keep_input(self, flow_id: str, given: msgspec.Raw) -> None:
        """Keep the input of a flow."""
        self.inputs[flow_id] = given
        while len(self.inputs) > _FLOWS:
            del self.inputs[next(iter(self.inputs))]

    def records_of(self, flow_id: str, run: int) -> Mapping[str, StepRecord]:
        """Return the records that are kept of a run of a flow, by step."""
        return self._records.get((flow_id, run), {})

    def keep_records(self, flow_id: str, run: int, records: Mapping[str, StepRecord]) -> None:
        """Keep the records of the steps that have ended in a run of a flow."""
        self._records[flow_id, run] = records
        while len(self._records) > _FLOWS:
            del self._records[next(iter(self._records))]
