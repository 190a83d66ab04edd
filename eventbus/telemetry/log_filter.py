"""The log context for the standard library's `logging`: a filter that gives each record the facts of
its job.
"""

from __future__ import annotations

import logging

from structlog.contextvars import get_contextvars

_FACTS = (
    "event_name",
    "workflow",
    "flow_id",
    "step",
    "group",
    "job_id",
    "attempt",
    "correlation_id",
    "trace_id",
    "span_id",
)


class JobLogFilter(logging.Filter):
    """Gives each record the facts of the job whose handler logs it, for handlers of the standard `logging`
    module.

    Add it to a `logging.Handler`, not to a logger, because filters of loggers do not see the records of other
    loggers: `handler.addFilter(JobLogFilter())`. Then formats may use `%(job_id)s`, and formatters that write
    JSON find the attributes `event_name`, `workflow`, `flow_id`, `step`, `group`, `job_id`, `attempt`,
    `correlation_id`, `trace_id` and `span_id`. An attribute is `""` where there is no such fact. An attribute
    that the record has already, from `extra`, stays. It lets all records through. If records go to another
    thread first, add it to the handler that the program logs to, such as the `QueueHandler`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Give the record its facts; return True."""
        known = get_contextvars()
        for name in _FACTS:
            if not hasattr(record, name):
                setattr(record, name, known.get(name, ""))
        return True
