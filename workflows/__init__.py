"""Durable distributed workflows on top of `eventbus`: the front door.

Behind it: definition (what a workflow is), flow (in which order its steps run), provider and handle
(executing it), work (running it in workers), inline (running it here, see `workflows.testing`).
It stands on the doors `eventbus` and `eventbus.lowlevel` alone; the import contract in `pyproject.toml`
holds it to that.
"""

from workflows.context import StepContext
from workflows.definition import Workflow
from workflows.errors import (
    FlowCancelled,
    FlowError,
    FlowNotEnded,
    FlowTimeout,
    ResultNotLoaded,
    RollbackError,
    StepError,
    StepNotFound,
    StepSkipped,
    WorkflowError,
)
from workflows.handle import FlowHandle
from workflows.provider import WorkflowProvider
from workflows.registry import StepRegistry
from workflows.report import FlowReport, FlowStatus, FlowSummary, FlowTree, RollbackReport, StepReport
from workflows.step import Step, step

__all__ = [
    "FlowCancelled",
    "FlowError",
    "FlowHandle",
    "FlowNotEnded",
    "FlowReport",
    "FlowStatus",
    "FlowSummary",
    "FlowTimeout",
    "FlowTree",
    "ResultNotLoaded",
    "RollbackError",
    "RollbackReport",
    "Step",
    "StepContext",
    "StepError",
    "StepNotFound",
    "StepRegistry",
    "StepReport",
    "StepSkipped",
    "Workflow",
    "WorkflowError",
    "WorkflowProvider",
    "step",
]
