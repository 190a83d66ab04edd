"""Typed events with awaited results on Redis or Valkey.

This package is the public API. Behind it, in short, each layer imports only the layers to its right:
cli -> provider -> handlers -> emit -> engine (jobs, queues, workers) -> store (the only code that
knows Redis) -> settings, model, errors (values without I/O).

Each public name is imported when a program first asks for it. Python runs this file before the first
line of the command line. A fast import lets `eventbus worker` handle signals before the rest is loaded.
"""

TYPE_CHECKING = (
    False  # type checkers assume True; importing it from typing would take longer than this whole file
)
if TYPE_CHECKING:
    from eventbus.admin.controls import QueueControls
    from eventbus.admin.watch import Watch
    from eventbus.emit.emission import Emission
    from eventbus.emit.sync_emission import SyncEmission
    from eventbus.errors import (
        ConfigError,
        CountChanged,
        DefinitionError,
        EmissionExpired,
        EmitError,
        EventBusError,
        HandlerError,
        JobCancelled,
        JobError,
        NoWorker,
        PayloadError,
        ProcessDied,
        ProviderStopped,
        QueueFull,
        ResponseTimeout,
        SignalRefused,
        StalledError,
        StoreCorrupt,
        StoreError,
        StoreRefused,
        StoreUnavailable,
        UnknownJob,
        Unrecoverable,
        UsageError,
    )
    from eventbus.handlers.batch_context import BatchContext, SyncBatchContext
    from eventbus.handlers.collection import Handlers
    from eventbus.handlers.context import EventContext, JobFacts, ProcessContext, SyncContext
    from eventbus.handlers.middleware import CallNext
    from eventbus.handlers.worker import EventWorker
    from eventbus.model.batch import Batch
    from eventbus.model.event import Event, EventKeywords
    from eventbus.model.keep import Keep
    from eventbus.model.later import Later
    from eventbus.model.limit import Limit
    from eventbus.model.redaction.sensitive import Sensitive
    from eventbus.model.retry import Retry
    from eventbus.provider import EventProvider
    from eventbus.schedule_client import Schedule, ScheduleClient
    from eventbus.schedules.options import ScheduleKeywords, ScheduleReport
    from eventbus.settings.keywords import EmitKeywords, HandlerKeywords
    from eventbus.telemetry.change import Change
    from eventbus.telemetry.job_failure import JobFailure
    from eventbus.telemetry.log_filter import JobLogFilter


__all__ = [
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

_PLACES = (
    "errors",
    "model.keep",
    "model.retry",
    "model.later",
    "model.limit",
    "model.redaction.sensitive",
    "model.batch",
    "settings.keywords",
    "model.event",
    "telemetry.change",
    "telemetry.job_failure",
    "handlers.middleware",
    "handlers.context",
    "handlers.batch_context",
    "handlers.collection",
    "emit.emission",
    "schedules.options",
    "schedule_client",
    "admin.controls",
    "admin.watch",
    "emit.sync_emission",
    "handlers.worker",
    "provider",
    "telemetry.log_filter",
)
"""The modules that hold the public names. The modules that import least come first."""

if not TYPE_CHECKING:  # otherwise a type checker would accept any name

    def __getattr__(name):  # noqa: ANN001, ANN202
        """Import the public object of this name."""
        from importlib import import_module  # noqa: PLC0415  (as late as the rest)

        for path in _PLACES if name in __all__ else ():
            module = import_module(f"eventbus.{path}")
            if hasattr(module, name):
                # Kept as a global, so that Python asks this function once for each name.
                found = globals()[name] = getattr(module, name)
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


del TYPE_CHECKING


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
