"""The log context: facts of the running job as structlog variables, for each log event of its handler.

The variables are structlog's own and are looked up once, because binding a fact by its name costs several
times as much as setting its variable.

What must always hold: no job is logged with the facts of another. So each variable is set in the context of
one job, which is a copy that ends with the job, or the code that set it resets it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar
from typing import Any

from structlog.contextvars import bind_contextvars

_ABSENT: Any = ...
"""The value by which structlog marks a variable that is not set."""

_known: dict[str, ContextVar[Any]] = {}


def fact(name: str) -> ContextVar[Any]:
    """Return the context variable of a fact. Once set, its value is in each log event of that context."""
    if name not in _known:
        # structlog makes its variables itself; binding the fact once, in a context of its own, is the way to
        # one.
        (token,) = Context().run(bind_contextvars, **{name: _ABSENT}).values()
        _known[name] = token.var
    return _known[name]


EVENT_NAME, GROUP, JOB_ID, ATTEMPT = fact("event_name"), fact("group"), fact("job_id"), fact("attempt")
CORRELATION_ID, TRACE_ID, SPAN_ID = fact("correlation_id"), fact("trace_id"), fact("span_id")


def forget_facts() -> None:
    """Remove the facts of all jobs from this context."""
    for variable in _known.values():
        if variable.get() is not _ABSENT:
            variable.set(_ABSENT)


def set_facts(facts: Mapping[str, Any]) -> None:
    """Give the log events of this context exactly these facts. The context is that of one job or attempt, and
    ends with it.
    """
    for name, variable in _known.items():
        value = facts.get(name, _ABSENT)
        if value is not _ABSENT or variable.get() is not _ABSENT:
            variable.set(value)


@contextmanager
def with_facts(facts: Mapping[str, Any]) -> Generator[None]:
    """Give the log events inside the block exactly these facts, without those of a surrounding job."""
    changed = [
        (variable, facts.get(name, _ABSENT))
        for name, variable in _known.items()
        if name in facts or variable.get() is not _ABSENT
    ]
    tokens = [variable.set(value) for variable, value in changed]
    try:
        yield
    finally:
        for token in tokens:
            token.var.reset(token)


def trace_facts(trace_id: str, *, job_id: str = "") -> dict[str, str]:
    """Return the `trace_id` and `span_id` of the attempt that runs in this context.

    Without a span, or if the attempt is not of the given `job_id`, returns the given `trace_id` alone. Empty
    if there is none.
    """
    if job_id in ("", JOB_ID.get()) and (span_id := SPAN_ID.get()) is not _ABSENT:
        return {"trace_id": TRACE_ID.get(), "span_id": span_id}
    return {"trace_id": trace_id} if trace_id else {}
