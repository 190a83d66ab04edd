"""Failures: failed jobs by their error.

A group is what the caller sees of its errors: whoever sees types alone has one group for each type. It is
named by a digest of that, so that the name says no more than the line.
"""

from __future__ import annotations

import hashlib

import msgspec

from eventbus.admin.jobs.failures import FailureGroup
from eventbus.dashboard.desk.desk import Desk
from eventbus.dashboard.desk.queues import queue_target
from eventbus.dashboard.desk.rows import NoQuery, Read
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.problem import Problem

_FLOWS = "workflow."
_MOST = 200


class FailureLine(msgspec.Struct, frozen=True, kw_only=True):
    """One group. `id` names it; `sample` is the newest of its jobs. `can_retry`: the caller may, and they are
    no flows.
    """

    id: str
    error: str
    queue: str
    count: int
    newest_ms: int
    oldest_ms: int
    sample: str
    can_retry: bool = False


class FailureList(msgspec.Struct, frozen=True, kw_only=True):
    """The largest groups, 200 at most; `left_out` is how many more there are."""

    failures: list[FailureLine]
    left_out: int = 0


async def read_failures(desk: Desk, caller: Caller, _path: dict[str, str], _query: NoQuery) -> FailureList:
    """Return the groups that the caller may see."""
    seen = await _read_groups(desk, caller)
    lines = [_line(desk, caller, group) for group in seen[:_MOST]]
    return FailureList(failures=lines, left_out=max(len(seen) - _MOST, 0))


async def find_group(desk: Desk, caller: Caller, failure: str) -> FailureGroup:
    """Return the group of that name. Raises Problem, 404, if the caller may not see it."""
    for group in await _read_groups(desk, caller):
        if _id_of(group) == failure:
            return group
    raise Problem(404, "there is no such group of failures, or no job of it any more")


async def _read_groups(desk: Desk, caller: Caller) -> list[FailureGroup]:
    """Return the groups as the caller sees them. Those whose errors look the same are one."""
    found: dict[tuple[str, str], FailureGroup] = {}
    for group in await desk.failures.read():
        if not desk.sees(caller, queue_target(group.queue), jobs=True):
            continue
        error = desk.redaction(caller, queue_target(group.queue)).error(group.error)
        other = found.get((group.queue, error))
        newest = group if other is None or group.newest_ms > other.newest_ms else other
        found[group.queue, error] = msgspec.structs.replace(
            newest,
            error=error,
            count=group.count + (other.count if other else 0),
            oldest_ms=min(group.oldest_ms, other.oldest_ms if other else group.oldest_ms),
        )
    return sorted(found.values(), key=lambda each: -each.count)


def _line(desk: Desk, caller: Caller, group: FailureGroup) -> FailureLine:
    may_retry = not group.queue.startswith(_FLOWS) and desk.may(
        caller, "job.retry", queue_target(group.queue)
    )
    return FailureLine(id=_id_of(group), can_retry=may_retry, **msgspec.structs.asdict(group))


def _id_of(group: FailureGroup) -> str:
    return hashlib.sha256(f"{group.queue}\n{group.error}".encode("utf-8", "surrogatepass")).hexdigest()[:20]


READS = (Read("/failures", "The failed jobs by their error.", FailureList, read_failures),)
