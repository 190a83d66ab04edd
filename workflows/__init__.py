"""Durable distributed workflows on top of `eventbus`: the public API.

The packages behind it: `definition` (a workflow and its steps), `records` (the data of a flow in the server),
`execution` (calling the functions of a workflow), `distributed` (running flows in workers) and `inline`
(running a flow in this process, see `workflows.testing`).
This package imports only `eventbus`, the public API, and `eventbus.lowlevel`, the low-level API; the import
contract in `pyproject.toml` enforces it. The exception is `cli`, which also imports `eventbus.cli.toolkit`.
"""

from workflows.client.handle import FlowHandle
from workflows.client.many_flows import FlowsChange
from workflows.client.scheduling import FlowSchedules
from workflows.definition.context import StepContext
from workflows.definition.middleware import AttemptContext
from workflows.definition.signal import Signal
from workflows.definition.step import Step, step
from workflows.definition.task import Task, task
from workflows.definition.task_context import TaskContext, step_key, task_context
from workflows.definition.workflow import Workflow
from workflows.errors import (
    ConflictError,
    FlowCancelled,
    FlowError,
    FlowNotEnded,
    FlowTimeout,
    HistoryFull,
    NonDeterminismError,
    ResultNotLoaded,
    RollbackError,
    StepError,
    StepFailed,
    StepNotFound,
    StepSkipped,
    WorkflowError,
)
from workflows.functions.calls.group import Winner
from workflows.functions.context import FlowContext
from workflows.functions.definition import Durable
from workflows.functions.durable import durable
from workflows.machines.context import MachineContext
from workflows.machines.machine import StateMachine
from workflows.machines.settled import Settled
from workflows.machines.transition import END, Transition, transition
from workflows.pipelines.context import PipelineContext
from workflows.pipelines.pipeline import Pipeline
from workflows.provider import WorkflowProvider
from workflows.records.report import (
    FlowReport,
    FlowStatus,
    FlowSummary,
    FlowTree,
    MachineReport,
    MoveReport,
    RollbackReport,
    StepReport,
)
from workflows.registry import StepRegistry

__all__ = [
    "END",
    "AttemptContext",
    "ConflictError",
    "Durable",
    "FlowCancelled",
    "FlowContext",
    "FlowError",
    "FlowHandle",
    "FlowNotEnded",
    "FlowReport",
    "FlowSchedules",
    "FlowStatus",
    "FlowSummary",
    "FlowTimeout",
    "FlowTree",
    "FlowsChange",
    "HistoryFull",
    "MachineContext",
    "MachineReport",
    "MoveReport",
    "NonDeterminismError",
    "Pipeline",
    "PipelineContext",
    "ResultNotLoaded",
    "RollbackError",
    "RollbackReport",
    "Settled",
    "Signal",
    "StateMachine",
    "Step",
    "StepContext",
    "StepError",
    "StepFailed",
    "StepNotFound",
    "StepRegistry",
    "StepReport",
    "StepSkipped",
    "Task",
    "TaskContext",
    "Transition",
    "Winner",
    "Workflow",
    "WorkflowError",
    "WorkflowProvider",
    "durable",
    "step",
    "step_key",
    "task",
    "task_context",
    "transition",
]
