"""The second door: the parts that systems built on top of the event bus stand on.

Jobs, trees of jobs, checkpoints and consumers in the engine's own words, and the words that
go with them: codecs, records of errors, durations, ambient facts, spans. The package `workflows` uses
only this door and the first. Nothing here knows events or workflows.
"""

from eventbus.ambient import Ambient, current, enter
from eventbus.annotations import hints_of, is_untyped, types_agree
from eventbus.codec import Codec
from eventbus.durations import LONGEST, Duration, milliseconds, seconds
from eventbus.emission import Emission, Reading
from eventbus.engine.consumer import Consumer, Retention
from eventbus.engine.job import Job, Settle, cancel, complete, fail, give_back, park, retry
from eventbus.failure import Failure, describe, describe_cancelled, is_final, revive
from eventbus.guest import Guest, Host
from eventbus.inspector import Inspector
from eventbus.jobs import Jobs
from eventbus.logs import Logger, get_logger
from eventbus.names import check_job_id, check_key, shown
from eventbus.store.rows import JOIN, REUSE, SUPERSEDE, Outcome, TreeMember
from eventbus.store.trees import TreePage
from eventbus.telemetry import trace_id_of, tracer
from eventbus.tree import Member, Policy, Tree

__all__ = [
    "JOIN",
    "LONGEST",
    "REUSE",
    "SUPERSEDE",
    "Ambient",
    "Codec",
    "Consumer",
    "Duration",
    "Emission",
    "Failure",
    "Guest",
    "Host",
    "Inspector",
    "Job",
    "Jobs",
    "Logger",
    "Member",
    "Outcome",
    "Policy",
    "Reading",
    "Retention",
    "Settle",
    "Tree",
    "TreeMember",
    "TreePage",
    "cancel",
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
    "hints_of",
    "is_final",
    "is_untyped",
    "milliseconds",
    "park",
    "retry",
    "revive",
    "seconds",
    "shown",
    "trace_id_of",
    "tracer",
    "types_agree",
]
