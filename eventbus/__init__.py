"""Typed events with awaited results on Redis or Valkey.

The front door. Behind it, each layer importing only what stands to its right:
cli -> provider, emitter, subscriber ... -> engine (jobs, queues, workers) -> store (the only
code that knows Redis) -> words (errors, config, codec: values without I/O).
"""

from eventbus.config import Keep
from eventbus.context import EventContext, JobFacts, SyncContext
from eventbus.emission import Emission
from eventbus.errors import (
    ConfigError,
    DefinitionError,
    EmissionExpired,
    EmitError,
    EventBusError,
    HandlerError,
    JobCancelled,
    JobError,
    PayloadError,
    ProcessDied,
    ProviderStopped,
    QueueFull,
    ResponseTimeout,
    StalledError,
    StoreCorrupt,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    UnknownJob,
    Unrecoverable,
    UsageError,
)
from eventbus.event import Event
from eventbus.middleware import CallNext
from eventbus.provider import EventProvider
from eventbus.retry import Retry

__all__ = [
    "CallNext",
    "ConfigError",
    "DefinitionError",
    "Emission",
    "EmissionExpired",
    "EmitError",
    "Event",
    "EventBusError",
    "EventContext",
    "EventProvider",
    "HandlerError",
    "JobCancelled",
    "JobError",
    "JobFacts",
    "Keep",
    "PayloadError",
    "ProcessDied",
    "ProviderStopped",
    "QueueFull",
    "ResponseTimeout",
    "Retry",
    "StalledError",
    "StoreCorrupt",
    "StoreError",
    "StoreRefused",
    "StoreUnavailable",
    "SyncContext",
    "UnknownJob",
    "Unrecoverable",
    "UsageError",
]
