"""The end of a call that adds emissions or trees: the part that the send buffer and the tree sender share.

Not here: how batches are filled. The two senders fill them by different rules, because an emission refers
to the queues of its batch, and a tree may be larger than a call.

What must always hold: an emission fails with `enqueued=False` only if its job cannot run: nothing of it can have
reached the server, or only chunks of a tree that never opens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from eventbus.emit.completion import CompletionTracker
from eventbus.emit.emission import PendingEmission
from eventbus.errors import EmitError, StoreError
from eventbus.store.scripting.script_rows import AddVerdict
from eventbus.store.tree_store import TreeVerdict
from eventbus.telemetry.logging import get_logger

__all__ = ["describe_lost", "end_calls", "join", "may_have_arrived", "note_unexpected"]

_log = get_logger("eventbus.emission")


def join(
    tracker: CompletionTracker,
    emission: PendingEmission[Any],
    verdict: AddVerdict | TreeVerdict,
    *,
    since: float,
    **facts: str,
) -> None:
    """Let the emission wait for the earlier job that has its key. `facts` are for the log.

    `since` is when the call was first sent, in monotonic seconds.
    """
    if verdict.word == "other":
        _log.warning(
            "idempotency key met another payload, the first one wins",
            event_name=emission.event,
            **facts,
            job_id=verdict.job,
        )
    tracker.join(emission, verdict.job, verdict.state, verdict.text, since=since)


def may_have_arrived(error: BaseException) -> bool:
    """Say whether a call that ended with `error` may still have reached the server."""
    return not isinstance(error, StoreError) or error.sent


def note_unexpected(message: str, error: BaseException) -> None:
    """Log `error` unless it is the store's or a cancellation, which are part of normal work."""
    if not isinstance(error, (StoreError, asyncio.CancelledError)):
        _log.error(message, exc_info=error)


def describe_lost(
    emission: PendingEmission[Any], error: BaseException, *, maybe_sent: bool, hint: str
) -> EmitError:
    """Return the error of an emission that is given up. `hint` says where to look if it may have arrived."""
    why = "the provider stopped" if isinstance(error, asyncio.CancelledError) else error
    lost = EmitError(
        f"it is unknown whether {emission.event} was enqueued: {why}; {hint} tells"
        if maybe_sent
        else f"{emission.event} was not enqueued: {why}",
        event=emission.event,
        job_id=emission.job_id,
        enqueued=None if maybe_sent else False,
    )
    lost.__cause__ = error
    return lost


async def end_calls(calls: Collection[asyncio.Future[Any]]) -> None:
    """Cancel the calls under way, and wait until each has notified its emissions.

    The callbacks of a call that ends must remove it from `calls`.
    """
    for call in list(calls):
        call.cancel()
    while calls:
        await asyncio.wait(list(calls))
        await asyncio.sleep(0)  # a step of the loop, in which the callbacks of the ended calls run
