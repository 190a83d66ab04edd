"""The low-level API: the parts that systems built on top of the event bus use.

These are the job client, trees of jobs, checkpoints and consumers, and the values that go with them: codecs,
records of errors and their log events, durations, ambient facts, spans. The package `workflows` uses only
this API and the public one (`eventbus`). Nothing here knows workflows.
"""

from eventbus.admin.inspector import Inspector
from eventbus.admin.jobs.attempts import FailureReport
from eventbus.admin.jobs.job_report import JobReport, LogLine
from eventbus.admin.jobs.timeline import AttemptReport, TimelineEntry
from eventbus.emit.emission import Emission, OutcomeDecoder
from eventbus.emit.emission_check import check_emission
from eventbus.emit.job_tree import Member, Policy, Tree
from eventbus.engine.consumer import Consumer, Retention, TellingConsumer
from eventbus.engine.job import (
    Job,
    Settle,
    cancel,
    complete,
    fail,
    give_back,
    later,
    outside_job,
    park,
    retry,
    shelve,
    suspend,
)
from eventbus.handlers.attempt import Attempt, AttemptHost, Stopping
from eventbus.handlers.context import attempt_in, progress_text
from eventbus.handlers.extension import Extension, WorkerServices
from eventbus.handlers.failures.hook import FailureFunction, FailureHook, make_failure_hook
from eventbus.handlers.lifespan_values import HasLifespans, LifespanValues
from eventbus.handlers.middleware import chain, check_middleware
from eventbus.handlers.process.calls import ProcessCalls
from eventbus.handlers.process.import_path import (
    ImportPath,
    find,
    import_path_of_function,
    import_path_of_object,
)
from eventbus.handlers.saved import read_saved, saved_text
from eventbus.handlers.steering import Around, RunFacts, Steered
from eventbus.handlers.steering import SteeringTarget as Target
from eventbus.handlers.worker_host import WorkerHost
from eventbus.handlers.worker_pools import WorkerPool, WorkerPools
from eventbus.job_client import JobClient
from eventbus.model import chance, clock
from eventbus.model.codec import Codec, json_values
from eventbus.model.containment import Passing, contained, contained_await, original
from eventbus.model.durations import LONGEST, Duration, milliseconds, seconds
from eventbus.model.emits import Emits
from eventbus.model.keep import KeepGiven, check_keep
from eventbus.model.message import HIDDEN_FIELD
from eventbus.model.names import JOB_ID_LENGTH, check_correlation_id, check_job_id, check_key, shown
from eventbus.model.redaction.hidden_around import (
    hidden_around,
    hide_around,
    is_quoting,
    note_around,
    note_body_around,
)
from eventbus.model.redaction.hidden_values import HiddenValues
from eventbus.model.redaction.marks import encode_marks
from eventbus.model.redaction.places import blank, record_places
from eventbus.model.retry import check_answers
from eventbus.model.states import FINAL_STATES
from eventbus.model.type_matching import hints_of, is_untyped, types_agree
from eventbus.runtime.blocking_call import run_at_once, run_blocking, running_loop
from eventbus.runtime.places import Places
from eventbus.runtime.thread_pool import ThreadPool
from eventbus.schedules.plan import RootForm, ScheduledRoot
from eventbus.settings.keywords import check_options, check_priority, emit_options
from eventbus.settings.merging import option_of_key
from eventbus.store.bounds import PAGE_BYTES
from eventbus.store.calls.journal_store import SentSignal as Signal
from eventbus.store.calls.tree_store import RootPlace, RootRow, TreePage
from eventbus.store.scripting.script_rows import JOIN, REUSE, SUPERSEDE, Outcome, TreeMember
from eventbus.telemetry.error_groups import ends_attempts
from eventbus.telemetry.failure import (
    Failure,
    describe,
    describe_cancelled,
    hidden_of,
    hide_in_record,
    is_answer,
    is_excluded,
    is_final,
    is_settled_below,
    log_failure,
    mark_awaited,
    mark_of,
    mark_own,
    read_failure,
    revive,
    with_places_of,
)
from eventbus.telemetry.job_failure import FailureOutcome, outcome_of
from eventbus.telemetry.log_context import fact, set_facts, trace_facts, with_facts
from eventbus.telemetry.logging import Logger, get_logger
from eventbus.telemetry.metrics import Metric, instruments
from eventbus.telemetry.propagation import Ambient, current, enter
from eventbus.telemetry.spans import (
    attach_baggage,
    baggage_around,
    begin_apart,
    message_attributes,
    receive_span,
    trace_id_of,
    traceparent_of,
    tracer,
)
from eventbus.telemetry.tracebacks import hide_frames

__all__ = [
    "FINAL_STATES",
    "HIDDEN_FIELD",
    "JOB_ID_LENGTH",
    "JOIN",
    "LONGEST",
    "PAGE_BYTES",
    "REUSE",
    "SUPERSEDE",
    "Ambient",
    "Around",
    "Attempt",
    "AttemptHost",
    "AttemptReport",
    "Codec",
    "Consumer",
    "Duration",
    "Emission",
    "Emits",
    "Extension",
    "Failure",
    "FailureFunction",
    "FailureHook",
    "FailureOutcome",
    "FailureReport",
    "HasLifespans",
    "HiddenValues",
    "ImportPath",
    "Inspector",
    "Job",
    "JobClient",
    "JobReport",
    "KeepGiven",
    "LifespanValues",
    "LogLine",
    "Logger",
    "Member",
    "Metric",
    "Outcome",
    "OutcomeDecoder",
    "Passing",
    "Places",
    "Policy",
    "ProcessCalls",
    "Retention",
    "RootForm",
    "RootPlace",
    "RootRow",
    "RunFacts",
    "ScheduledRoot",
    "Settle",
    "Signal",
    "Steered",
    "Stopping",
    "Target",
    "TellingConsumer",
    "ThreadPool",
    "TimelineEntry",
    "Tree",
    "TreeMember",
    "TreePage",
    "WorkerHost",
    "WorkerPool",
    "WorkerPools",
    "WorkerServices",
    "attach_baggage",
    "attempt_in",
    "baggage_around",
    "begin_apart",
    "blank",
    "cancel",
    "chain",
    "chance",
    "check_answers",
    "check_correlation_id",
    "check_emission",
    "check_job_id",
    "check_keep",
    "check_key",
    "check_middleware",
    "check_options",
    "check_priority",
    "clock",
    "complete",
    "contained",
    "contained_await",
    "current",
    "describe",
    "describe_cancelled",
    "emit_options",
    "encode_marks",
    "ends_attempts",
    "enter",
    "fact",
    "fail",
    "find",
    "get_logger",
    "give_back",
    "hidden_around",
    "hidden_of",
    "hide_around",
    "hide_frames",
    "hide_in_record",
    "hints_of",
    "import_path_of_function",
    "import_path_of_object",
    "instruments",
    "is_answer",
    "is_excluded",
    "is_final",
    "is_quoting",
    "is_settled_below",
    "is_untyped",
    "json_values",
    "later",
    "log_failure",
    "make_failure_hook",
    "mark_awaited",
    "mark_of",
    "mark_own",
    "message_attributes",
    "milliseconds",
    "note_around",
    "note_body_around",
    "option_of_key",
    "original",
    "outcome_of",
    "outside_job",
    "park",
    "progress_text",
    "read_failure",
    "read_saved",
    "receive_span",
    "record_places",
    "retry",
    "revive",
    "run_at_once",
    "run_blocking",
    "running_loop",
    "saved_text",
    "seconds",
    "set_facts",
    "shelve",
    "shown",
    "suspend",
    "trace_facts",
    "trace_id_of",
    "traceparent_of",
    "tracer",
    "types_agree",
    "with_facts",
    "with_places_of",
]
