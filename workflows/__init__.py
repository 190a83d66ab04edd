"""Durable distributed workflows on top of `eventbus`: the public API.

The packages behind it: `definition` (a workflow and its steps), `records` (the data of a flow in the server),
`execution` (calling the functions of a workflow), `distributed` (running flows in workers) and `inline`
(running a flow in this process, see `workflows.testing`).
This package imports only `eventbus`, the public API, and `eventbus.lowlevel`, the low-level API; the import
contract in `pyproject.toml` enforces it. The exception is `cli`, which also imports `eventbus.cli.toolkit`.
"""

from workflows.definition.context import StepContext
from workflows.definition.step import Step, step
from workflows.definition.workflow import Workflow
from workflows.distributed.handle import FlowHandle
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
from workflows.provider import WorkflowProvider
from workflows.records.report import FlowReport, FlowStatus, FlowSummary, FlowTree, RollbackReport, StepReport
from workflows.registry import StepRegistry

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
