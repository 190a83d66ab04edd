"""The undo plan of a stopped flow: what is to be undone, and what cannot be. Values only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from workflows.execution.rollback import RollbackResult, Undoable
from workflows.records.records import StepRecord

if TYPE_CHECKING:
    from workflows.distributed.worker_runtime import WorkerRuntime

__all__ = ["AddNested", "UndoPlan", "UnknownHere"]


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


AddNested: TypeAlias = "Callable[[WorkerRuntime, str, str, str, UndoPlan, str], Awaitable[None]]"
"""Adds to a plan what is to be undone of a nested flow: its id, its state, its error, the plan, and the path
of its step.

It is the same for flows of every kind (`distributed.nested_undo`), so the runtime has it, and no kind knows
the others.
"""
