"""What surrounds the running code: ambient meta, and the job being handled, if any.

One context variable holds all of it, so that each emission costs one look. It follows
asyncio's rules: a task sees what surrounded its creation.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import msgspec

__all__ = ["Ambient", "current", "enter", "with_meta"]


class Ambient(msgspec.Struct, frozen=True, gc=False):
    """Facts that emissions inside inherit. Empty text means absent."""

    meta: Mapping[str, Any] | None = None
    correlation_id: str = ""
    job_id: str = ""
    traceparent: str = ""
    tracestate: str = ""


_NOTHING = Ambient()
_current: ContextVar[Ambient] = ContextVar("eventbus_ambient", default=_NOTHING)

current = _current.get
"""Return what surrounds the caller."""

enter = _current.set
"""Set what surrounds the caller's task from here on."""


@contextmanager
def with_meta(meta: Mapping[str, Any]) -> Generator[None]:
    """Add `meta` to every emission inside; inner values win over outer ones."""
    outer = current()
    token = _current.set(msgspec.structs.replace(outer, meta={**(outer.meta or {}), **meta}))
    try:
        yield
    finally:
        _current.reset(token)
