"""The public modules: what they offer is what is meant, and all of it."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable

import pytest

import eventbus
import eventbus.lowlevel
import eventbus.testing
import workflows
import workflows.testing
from eventbus import errors
from eventbus.admin.audit import Audit
from eventbus.admin.events import Events
from eventbus.admin.inspector import Inspector
from eventbus.admin.jobs.jobs import Jobs
from eventbus.admin.namespace import OldName
from eventbus.admin.operations import Operations
from eventbus.admin.queues import Queues
from eventbus.admin.server import Server
from eventbus.admin.trees import Trees
from eventbus.admin.workers import Workers
from eventbus.sync import SyncProvider
from workflows import errors as workflow_errors


def test_the_front_door_offers_just_this() -> None:
    assert eventbus.__all__ == [
        "Batch",
        "BatchContext",
        "CallNext",
        "Change",
        "ConfigError",
        "CountChanged",
        "DefinitionError",
        "Emission",
        "EmissionExpired",
        "EmitError",
        "EmitKeywords",
        "Event",
        "EventBusError",
        "EventContext",
        "EventKeywords",
        "EventProvider",
        "EventWorker",
        "HandlerError",
        "HandlerKeywords",
        "Handlers",
        "JobCancelled",
        "JobError",
        "JobFacts",
        "JobFailure",
        "JobLogFilter",
        "Keep",
        "Later",
        "Limit",
        "NoWorker",
        "PayloadError",
        "ProcessContext",
        "ProcessDied",
        "ProviderStopped",
        "QueueControls",
        "QueueFull",
        "ResponseTimeout",
        "Retry",
        "Schedule",
        "ScheduleClient",
        "ScheduleKeywords",
        "ScheduleReport",
        "Sensitive",
        "SignalRefused",
        "StalledError",
        "StoreCorrupt",
        "StoreError",
        "StoreRefused",
        "StoreUnavailable",
        "SyncBatchContext",
        "SyncContext",
        "SyncEmission",
        "UnknownJob",
        "Unrecoverable",
        "UsageError",
        "Watch",
    ]


def test_nothing_public_lies_behind_the_door_unlisted() -> None:
    unlisted = [
        name
        for name, value in vars(eventbus).items()
        if not name.startswith("_")
        and not isinstance(value, types.ModuleType)
        and name not in eventbus.__all__
    ]
    assert unlisted == []


def test_every_error_is_offered_and_belongs_to_the_one_tree() -> None:
    assert set(errors.__all__) <= set(eventbus.__all__)
    for name in errors.__all__:
        kind = getattr(errors, name)
        if kind is not errors.Unrecoverable:  # handlers raise it, the package never does
            assert issubclass(kind, eventbus.EventBusError)


def test_the_drawing_of_the_tree_is_the_tree() -> None:
    drawn = _drawn(errors.__doc__ or "")
    real = {
        name: getattr(errors, name).__bases__[0].__name__
        for name in errors.__all__
        if name not in ("EventBusError", "Unrecoverable")
    }
    assert drawn == real


def _drawn(text: str) -> dict[str, str]:
    """Read class -> parent from the lines drawn with `├──` and `└──`."""
    parents = ["EventBusError"]
    found: dict[str, str] = {}
    for line in text.splitlines():
        if "── " in line:
            depth = (line.index("── ") - 1) // 4
            name = line.split("── ")[1].split()[0]
            found[name] = parents[depth - 1]
            parents[depth:] = [name]
    return found


_PUBLIC = (eventbus, eventbus.lowlevel, eventbus.testing, workflows, workflows.testing)
_CLASSES = [
    pytest.param(getattr(module, name), id=f"{module.__name__}.{name}")
    for module in _PUBLIC
    for name in module.__all__
    if isinstance(getattr(module, name), type)
]
_FUNCTIONS = [
    pytest.param(getattr(module, name), id=f"{module.__name__}.{name}")
    for module in _PUBLIC
    for name in module.__all__
    if inspect.isfunction(getattr(module, name))
]


def _is_ours(value: object) -> bool:
    return getattr(value, "__module__", "").startswith(("eventbus", "workflows"))


@pytest.mark.parametrize("kind", _CLASSES)
def test_public_methods_say_what_they_promise(kind: type) -> None:
    members = {
        member: value for base in kind.__mro__ if _is_ours(base) for member, value in vars(base).items()
    }
    silent = [
        member
        for member, value in members.items()
        if not member.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, (property, classmethod, staticmethod)))
        and not inspect.getdoc(value)
    ]
    assert silent == []


@pytest.mark.parametrize("kind", _CLASSES)
def test_public_names_say_what_they_are_and_have_whole_signatures(kind: type) -> None:
    assert vars(kind).get("__doc__"), f"{kind.__name__} has no text of its own"
    bare = [
        f"{member}({parameter.name})"
        for member, value in inspect.getmembers(kind, inspect.isfunction)
        if not member.startswith("_") and _is_ours(value)
        for parameter in inspect.signature(value).parameters.values()
        if parameter.name != "self" and parameter.annotation is inspect.Parameter.empty
    ]
    assert bare == []


@pytest.mark.parametrize("function", _FUNCTIONS)
def test_public_functions_say_what_they_promise(function: Callable[..., object]) -> None:
    assert inspect.getdoc(function)
    bare = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.annotation is inspect.Parameter.empty
    ]
    assert bare == []


@pytest.mark.parametrize("module", _PUBLIC, ids=lambda module: module.__name__)
def test_what_a_door_offers_is_sorted_and_there(module: types.ModuleType) -> None:
    assert all(hasattr(module, name) for name in module.__all__)
    kinds = (lambda name: name.isupper(), lambda name: name[0].isupper(), lambda name: name[0].islower())
    assert module.__all__ == sorted(
        module.__all__, key=lambda name: (next(i for i, is_kind in enumerate(kinds) if is_kind(name)), name)
    )


def test_the_door_of_workflows_offers_just_this() -> None:
    assert set(workflows.__all__) >= {"StepContext", "StepError", "Workflow", "WorkflowProvider", "step"}
    assert not [name for name in workflows.__all__ if name in eventbus.__all__], "one name, one module"


def test_every_error_of_workflows_is_offered_and_drawn() -> None:
    offered = {name for name in workflow_errors.__all__ if inspect.isclass(getattr(workflow_errors, name))}
    assert offered <= set(workflows.__all__)
    assert set(_drawn(workflow_errors.__doc__ or "")) == offered


# What a user is offered behind a dot. A name is added here on purpose: it is a promise, and has its words in
# the docs.
_CONTEXT = (
    "attempt causation_id correlation_id event group job_id keep_line log meta provider stopping worker"
)
_OFFERED = {
    eventbus.EventProvider: (
        "add_group cancel context emit emit_many failed flush include inspector jobs lifespan listen on "
        "on_failure pause pool pools queues remove_group result resume schedules set_limit settings start "
        "stop subscribe sync unsubscribe use watch watching worker"
    ),
    # `add`, `has_job_of`, `remove`, `running` and `start` are for the provider; the API reference
    # leaves them out.
    eventbus.EventWorker: (
        "add claimed has_job_of health id is_idle queues remove request_stop running start stop wait "
        "wait_drained"
    ),
    eventbus.Handlers: "on",
    eventbus.JobFailure: (
        "attempts causes correlation_id error error_type flow_id group is_declared job_id message meta name "
        "outcome queue rollback rollback_errors root_id stalls step traceback worker"
    ),
    eventbus.Emission: "cancel cancelled correlation_id done enqueued event groups job_id joined",
    eventbus.SyncEmission: "cancel correlation_id done enqueued groups job_id joined result",
    eventbus.JobFacts: _CONTEXT,
    eventbus.EventContext: f"{_CONTEXT} emit emit_many progress save saved shared",
    eventbus.SyncContext: f"{_CONTEXT} emit emit_many progress save saved shared",
    eventbus.ProcessContext: f"{_CONTEXT} progress save saved",
    eventbus.Watch: "aclose newest pending position reached",
    eventbus.Change: "at_ms attempt due_ms error job_id note position queue state what worker",
    Inspector: "audit events jobs operations queues server trees within workers",
    Jobs: (
        "cancel delay edit find find_by_field get list prioritize promote remove replace_payload retry why"
    ),
    Trees: "get remove",
    Queues: "controls count failures groups history list names purge retry_all",
    Workers: "list",
    Operations: "begin get list preview run stop",
    Audit: "list note",
    Server: "check report",
    Events: "get list",
    eventbus.Event: "default errors keep_completed keep_failed key limit name payload reply require_worker "
    "result retry retry_on ttl",
    eventbus.testing.TestBus: (
        "adopt advance drain emitted expect fail hold keep kill_worker lose_connections now ran refuse "
        "release replace run server_away settle signal_when start_worker stop_worker trigger_when"
    ),
    SyncProvider: "cancel close emit emit_many pause result resume set_limit",
    workflows.WorkflowProvider: "cancel_all definition execute failed flow_page flows graph handle "
    "on_failure pause provider register remove report resume retry retry_all run_inline schedules "
    "set_limit signal status tree use versions waits",
    workflows.AttemptContext: (
        "attempt correlation_id flow_id job_id kind log meta run step traceparent workflow"
    ),
    workflows.FlowSchedules: "add cron every",
    workflows.FlowHandle: "cancel id report result retry signal state status trigger workflow",
    workflows.FlowContext: (
        "continue_as_new correlation_id emit flow flow_id gather history_is_long input keep_line log map "
        "meta now patched race random retired rollback run shared sleep state step uuid wait_for worker"
    ),
    workflows.Durable: (
        "check_signal concurrency errors function input is_answer keep_completed keep_failed limit "
        "max_history name output retry retry_on signals state timeout version where"
    ),
    workflows.Task: (
        "codec function is_async item_codec key name pool result retry rollback timeout undo undo_is_async "
        "undo_retry undo_timeout using where"
    ),
    workflows.TaskContext: "attempt keep_line key save saved stopping worker",
    workflows.Signal: "decode encode name type",
    workflows.StepContext: (
        "attempt correlation_id data emit emit_many flow_id input job_id keep_line load log meta progress "
        "provider result results run save saved shared step stopping traceparent tracestate worker workflow"
    ),
}


async def charge() -> None:
    """Do nothing."""


@workflows.durable("order")
async def _durable(ctx: workflows.FlowContext[int]) -> None:
    """Do nothing."""


@pytest.mark.parametrize("kind", _OFFERED, ids=lambda kind: kind.__name__)
def test_public_objects_offer_just_what_is_for_users(kind: type) -> None:
    provider = eventbus.EventProvider("memory:")
    flows = workflows.WorkflowProvider(provider)
    made: dict[type, object] = {  # what has attributes that its class does not know of
        eventbus.EventProvider: provider,
        Inspector: provider.inspector,
        eventbus.Event: eventbus.Event("order.placed"),
        eventbus.testing.TestBus: eventbus.testing.TestBus(provider),
        workflows.WorkflowProvider: flows,
        workflows.FlowSchedules: flows.schedules,
        workflows.FlowHandle: flows.handle("checkout~0123456789abcdef0123"),
        workflows.Durable: _durable,
        workflows.Task: workflows.task(charge),
        workflows.Signal: workflows.Signal("approval"),
    }
    old = {name for name, value in vars(kind).items() if isinstance(value, OldName)}
    offered = {name for name in dir(made.get(kind, kind)) if not name.startswith("_")} - old
    assert offered == set(_OFFERED[kind].split())
