"""The end of a call that adds emissions or trees: the part that the send buffer and the tree sender share.

Not here: how batches are filled. The two senders fill them by different rules, because an emission refers
to the queues of its batch, and a tree may be larger than a call.

What must always hold: an emission fails with `enqueued=False` only if its job cannot run: nothing of it can
have reached the server, or only chunks of a tree that never opens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from eventbus.emit.completion import CompletionTracker
from eventbus.emit.emission import PendingEmission
from eventbus.errors import EmitError, NoWorker, QueueFull, StoreError, StoreUnavailable
from eventbus.model.names import split_group
from eventbus.store.calls.tree_store import TreeVerdict
from eventbus.store.scripting.script_rows import AddVerdict
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.emission")

IN_FLIGHT = 4
"""Calls of one sender under way at most."""

REFUSALS = frozenset({"full", "unserved", "foreign"})
"""The words of a verdict on an emission that the server did not take."""


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
    tracker.waits.join(emission, verdict.job, verdict.state, verdict.text, since=since)


def refusal_of(emission: PendingEmission[Any], verdict: AddVerdict, max_waiting: int | str) -> EmitError:
    """Return the error of an emission that the server did not take. `max_waiting` is that of its queue."""
    event, job_id, text = emission.event, emission.job_id, verdict.text
    if verdict.word == "full":
        message = _describe_full(event, max_waiting, verdict)
        return QueueFull(message, event=event, job_id=job_id, queue=text)
    if verdict.word == "unserved":
        return NoWorker(_describe_unserved(event, text), event=event, job_id=job_id, queue=text)
    return EmitError(
        f"{event} was not enqueued: another program's value stands in the key {text!r} of the server; look "
        "at it, and delete or rename it",
        event=event,
        job_id=job_id,
    )


def _describe_full(event: str, limit: int | str, verdict: AddVerdict) -> str:
    """Say which queue is full, whether a worker serves it, and what the caller can do."""
    _, group = split_group(verdict.text)
    what = f"queue {verdict.text!r} holds its max_waiting of {limit} jobs"
    if verdict.state == "served":
        way_out = "emit again later, or start more workers"
        return f"{what}; {way_out}{f' for group {group!r}' if group else ''}"
    if not group:
        return f"{what}, and no worker serves it; start one"
    return (
        f"{what}, and no worker serves group {group!r}; start one, or remove the group: "
        f"provider.remove_group({event!r}, {group!r})"
    )


def _describe_unserved(event: str, queue: str) -> str:
    """Say which group of an event has no worker, and what the caller can do."""
    _, group = split_group(queue)
    if not group:
        return f"no worker serves {event}, and require_worker is set; start one, or leave require_worker out"
    return (
        f"no worker serves group {group!r} of {event}, and require_worker is set; start one, leave "
        f"require_worker out, or remove the group: provider.remove_group({event!r}, {group!r})"
    )


def may_have_arrived(error: BaseException) -> bool:
    """Say whether a call that ended with `error` may still have reached the server."""
    return not isinstance(error, StoreError) or error.sent


def late_behind(address: str) -> StoreUnavailable:
    """Return why something is given up that was never part of a call."""
    return StoreUnavailable(
        f"it waited behind others that the server at {address} did not take in time", address=address
    )


def note_unexpected(message: str, error: BaseException) -> None:
    """Log `error` unless it is the store's or a cancellation, which are part of normal work."""
    if not isinstance(error, (StoreError, asyncio.CancelledError)):
        _log.error(message, exc_info=error)


def describe_lost(
    emission: PendingEmission[Any], error: BaseException, *, maybe_sent: bool, hint: str
) -> EmitError:
    """Return the error of an emission that is given up. `hint` says where to look if it may have arrived.

    It is kept as long as the emission. So what it was raised by keeps no frames: they have the call with its
    payloads.
    """
    forget_frames(error)
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


def forget_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error and of those that led to it."""
    left, seen = [error], set[int]()
    while left:
        one = left.pop()
        seen.add(id(one))
        one.__traceback__ = None
        left += (
            each for each in (one.__cause__, one.__context__) if each is not None and id(each) not in seen
        )


async def end_calls(calls: Collection[asyncio.Future[Any]]) -> None:
    """Cancel the calls under way, and wait until each has notified its emissions.

    The callbacks of a call that ends must remove it from `calls`.
    """
    for call in list(calls):
        call.cancel()
    while calls:
        await asyncio.wait(list(calls))
        await asyncio.sleep(0)  # a step of the loop, in which the callbacks of the ended calls run
