"""Trees of jobs, such as flows: a root with all its members."""

from __future__ import annotations

import asyncio

import msgspec

from eventbus.admin.jobs.attempts import FailureReport, RunTimes, error_line, read_failures
from eventbus.admin.jobs.job_report import JobReport, read_job
from eventbus.admin.jobs.retrials import remove_jobs, was_done
from eventbus.admin.namespace import Namespace
from eventbus.model.names import check_job_id
from eventbus.store.bounds import CALL_ROWS, PAGE_BYTES
from eventbus.store.scripting.script_rows import TreeMember
from eventbus.store.store import Store

_ENDED = ("completed", "failed", "cancelled", "root")


class MemberReport(msgspec.Struct, frozen=True, kw_only=True):
    """One member of a tree. `needed_by` are the ids of the jobs that wait or waited for it."""

    id: str
    state: str
    queue: str
    attempts: int = 0
    stalls: int = 0
    created_ms: int = 0
    claimed_ms: int = 0
    ended_ms: int = 0
    error: str = ""
    failures: list[FailureReport] = []
    needed_by: list[str] = []


class TreeReport(msgspec.Struct, frozen=True, kw_only=True):
    """A tree: its root, and its members as they were added, including those of earlier runs."""

    root: JobReport
    members: list[MemberReport]


class Trees(Namespace):
    """Trees of jobs by their roots: `get` one with its members, or `remove` one that has ended."""

    async def get(self, root_id: str) -> TreeReport:
        """Return a root with all members of its tree; of a nested tree its root alone. Raises UnknownJob."""
        store, deadline = self._begin("look at a tree")
        root = await read_job(store, self._routes, root_id, deadline=deadline)
        members: list[MemberReport] = []
        while True:
            page = await store.trees.look(
                root_id, first=len(members), limit=CALL_ROWS, max_bytes=PAGE_BYTES, deadline=deadline
            )
            logs = await asyncio.gather(*(_log_of(store, member, deadline) for member in page.members))
            members += map(_member, page.members, logs)
            if not page.members or len(members) >= page.total:
                return TreeReport(root=root, members=members)

    async def remove(self, root_id: str) -> bool:
        """Remove a tree of jobs that has ended, such as a flow, by its root: all its members go with it.

        Return False, and change nothing, while it has not ended: cancel it first, so that what it did is
        undone. As with `jobs.remove`, it is listed no more and cannot be run again, and its records go within
        four minutes of its end. Its idempotency key stays for its time. Raises UsageError for a member of
        another tree.
        """
        store, deadline = self._begin("remove a tree")
        (word,) = await remove_jobs(store, self._settings, [check_job_id(root_id)], _ENDED, deadline=deadline)
        return was_done(word, root_id, "removed")


async def _log_of(store: Store, member: TreeMember, deadline: float) -> list[str]:
    """Return the log of a member. Most are not read, because they are empty or repeat the outcome."""
    has_one_failure = member.state == "failed" and member.attempts == 1 and not member.stalls
    if has_one_failure or not (member.attempts or member.stalls):
        return []
    return (await store.inspection.job(member.id, deadline=deadline)).log


def _member(member: TreeMember, log: list[str]) -> MemberReport:
    return MemberReport(
        id=member.id,
        state=member.state,
        queue=member.queue,
        attempts=member.attempts,
        stalls=member.stalls,
        created_ms=member.created,
        claimed_ms=member.claimed,
        ended_ms=member.ended,
        error=error_line(member.text) if member.state in ("failed", "cancelled") else "",
        failures=read_failures(
            member.state, member.text, log, RunTimes(started_ms=member.claimed, ended_ms=member.ended)
        ),
        needed_by=member.needs.split(),
    )
