"""The ambient facts of the running code: the user's meta, and the job that is being handled, if any.

One context variable holds them all, so that each emission reads only one. It follows asyncio's rules: a task
sees the facts that surrounded its creation.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any

import msgspec


class Ambient(msgspec.Struct, frozen=True, gc=False):
    """The facts that emissions inherit from the code around them. Empty text means absent."""

    meta: Mapping[str, Any] | None = None
    correlation_id: str = ""
    job_id: str = ""
    traceparent: str = ""
    tracestate: str = ""


NOTHING = Ambient()
_current: ContextVar[Ambient] = ContextVar("eventbus_ambient", default=NOTHING)

current: Callable[[], Ambient] = _current.get
"""Return the ambient facts of the caller."""

enter: Callable[[Ambient], Token[Ambient]] = _current.set
"""Set the ambient facts of the caller's task from here on."""


def job_around(task: asyncio.Task[Any]) -> str:
    """Return the id of the job that a task works for. Empty if there is none, and always on Python 3.11."""
    if sys.version_info < (3, 12):  # tasks have no `get_context` there
        return ""
    return task.get_context().get(_current, NOTHING).job_id


@contextmanager
def with_meta(meta: Mapping[str, Any], *, correlation_id: str = "") -> Generator[None]:
    """Add `meta` and the correlation id to each emission in the block. Inner values win over outer ones."""
    outer = current()
    inner = msgspec.structs.replace(outer, meta={**(outer.meta or {}), **meta} or None)
    if correlation_id:
        inner = msgspec.structs.replace(inner, correlation_id=correlation_id)
    token = _current.set(inner)
    try:
        yield
    finally:
        _current.reset(token)
