"""The rows of the scripts that look at whole queues and workers, and of others that name queues or jobs:
script and section -> the row.
"""

from __future__ import annotations

from typing import Any

from eventbus.store.calls.roster import WorkerRow
from eventbus.store.scripting.script_rows import JobIdRow, QueueRow

__all__ = ["OVERVIEW_SECTIONS"]

OVERVIEW_SECTIONS: dict[tuple[str, str], Any] = {
    ("survey", "queues"): QueueRow,
    ("limits", "queues"): QueueRow,
    ("ended", "queues"): QueueRow,
    ("roots", "queues"): QueueRow,
    ("watch", "queues"): QueueRow,
    ("retry", "jobs"): JobIdRow,
    ("remove", "jobs"): JobIdRow,
    ("workers", "workers"): WorkerRow,
}
