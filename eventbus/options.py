"""The keyword options of the provider's calls, for type checkers."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from eventbus.config import Keep
from eventbus.durations import Duration
from eventbus.retry import Retry

__all__ = ["EmitKeywords", "ProviderKeywords"]


class ProviderKeywords(TypedDict, total=False):
    """Settings of a provider; `Settings` documents each."""

    name: str
    prefix: str
    reply_timeout: Duration | None
    retry: Retry | int
    concurrency: int
    max_concurrency: int
    lease: Duration
    grace: Duration
    keep_completed: Keep | int | str | timedelta | tuple[int | None, Duration | None]
    keep_failed: Keep | int | str | timedelta | tuple[int | None, Duration | None]
    key_ttl: Duration
    max_waiting: int | None
    max_payload: int | str
    max_result: int | str
    hang_after: Duration
    max_stalls: int
    durability: Literal["default", "replicated"]
    allow_eviction: bool


class EmitKeywords(TypedDict, total=False):
    """Options of one emission; `EventProvider.emit` documents each."""

    reply_timeout: Duration | None
    delay: Duration
    at: datetime
    priority: int
    idempotency_key: str
    meta: dict[str, Any]
    retry: Retry
    lifo: bool
    reply: bool
    reuse_failure: bool
    supersede: bool
