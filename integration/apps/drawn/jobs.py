"""The app of the chaos runs: the handlers of `event_app`, and beside them those whose jobs are under
controls.
"""

from __future__ import annotations

from typing import Any

from apps.event_app import provider, toil

from eventbus import Event, Limit, Retry

__all__ = ["bounded", "merged", "provider"]

bounded = Event("bounded", payload=dict[str, Any], limit=Limit(at_once=6, rate=["200/1s"]))
merged = Event("merged", payload=dict[str, Any], key=lambda payload: payload["key"])

for _event in (bounded, merged):
    provider.on(_event, retry=Retry(attempts=3, delay="50ms", backoff="fixed"), concurrency=8)(toil)
