"""The second door: the parts that systems built on top of the event bus stand on.

Jobs, trees of jobs, checkpoints and consumers in the engine's own words, and the words that
go with them: codecs, records of errors, durations, ambient facts, spans. The package `workflows` uses
only this door and the first. Nothing here knows events or workflows.
"""

from eventbus.ambient import Ambient, current, enter
from eventbus.annotations import is_untyped, types_agree
from eventbus.codec import Codec
from eventbus.durations import LONGEST, Duration, milliseconds, seconds
from eventbus.engine.consumer import Consumer, Retention
from eventbus.engine.job import Job, Settle, complete, fail, give_back, retry
from eventbus.failure import Failure, describe, describe_cancelled, is_final, revive
from eventbus.logs import Logger, get_logger
from eventbus.names import check_job_id, check_key, shown
from eventbus.telemetry import trace_id_of, tracer

__all__ = [
    "LONGEST",
    "Ambient",
    "Codec",
    "Consumer",
    "Duration",
    "Failure",
    "Job",
    "Logger",
    "Retention",
    "Settle",
    "check_job_id",
    "check_key",
    "complete",
    "current",
    "describe",
    "describe_cancelled",
    "enter",
    "fail",
    "get_logger",
    "give_back",
    "is_final",
    "is_untyped",
    "milliseconds",
    "retry",
    "revive",
    "seconds",
    "shown",
    "trace_id_of",
    "tracer",
    "types_agree",
]
