"""The states of jobs, as the server keeps them: the one place that lists them."""

from __future__ import annotations

from typing import Literal, TypeAlias

JobState: TypeAlias = Literal[
    "waiting", "active", "delayed", "waiting-children", "parked", "completed", "failed", "cancelled"
]
"""Every state that a job can be in."""

FinalState: TypeAlias = Literal["completed", "failed", "cancelled"]
"""The states that a job never leaves."""

FINAL_STATES: tuple[FinalState, ...] = ("completed", "failed", "cancelled")
