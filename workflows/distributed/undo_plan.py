"""The undo plan of a stopped flow: what is to be undone, and what cannot be. Values only."""

from __future__ import annotations

import msgspec

from workflows.execution.rollback import RollbackResult, Undoable
from workflows.records.records import StepRecord

__all__ = ["UndoPlan", "UnknownHere"]


class UnknownHere(Exception):
    """This process does not know a workflow that must be undone, or not in the needed version."""


class UndoPlan(msgspec.Struct):
    """The rollbacks to run, the last one first, and the facts that the error of the flow reports besides."""

    undos: list[Undoable] = []
    records: dict[str, StepRecord] = {}
    inherited: list[RollbackResult] = []
    """Steps that were not undone: unknown ones, and failed rollbacks inside sub-workflows that stopped."""
    unloaded: list[str] = []
    """Completed steps whose results were left out because of their size."""
    is_doubtful: bool = False
