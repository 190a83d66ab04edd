"""The server: what it is and holds, and what `eventbus check` finds. No address, no URL, no setting of the
program.

The checks try each command that is used, and look for queues that nobody serves; so they are made at most
each minute, for all viewers, and a viewer who comes while they are made is not kept waiting.
"""

from __future__ import annotations

import asyncio

import msgspec

from eventbus.admin.server import ServerReport
from eventbus.dashboard.desk.desk import Desk
from eventbus.dashboard.desk.queues import queue_target
from eventbus.dashboard.desk.rows import NoQuery, Read
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.entry.rights import Target
from eventbus.store.diagnostics import Finding

_PATIENCE = 1.0
_QUEUES = ("workers", "paused", "queues")
"""The findings that name queues."""


class ServerView(msgspec.Struct, frozen=True, kw_only=True):
    """The server, and the findings of its checks; None while these are made for the first time."""

    server: ServerReport
    findings: list[Finding] | None


async def read_server(desk: Desk, caller: Caller, _path: dict[str, str], _query: NoQuery) -> ServerView:
    """Return the server, without what findings say of queues where the caller may not see all of them."""
    desk.demand(caller, "server.read", Target("server"), "such page")
    report = await desk.server.read()
    try:
        async with asyncio.timeout(_PATIENCE):
            findings: list[Finding] | None = await desk.checks.read()
    except TimeoutError:
        findings = None
    if findings is not None and not await _sees_all(desk, caller):
        findings = [each for each in findings if each.subject not in _QUEUES]
    return ServerView(server=report, findings=findings)


async def _sees_all(desk: Desk, caller: Caller) -> bool:
    known = await desk.queues.read()
    return all(desk.sees(caller, queue_target(each.queue)) for each in known.queues)


READS = (Read("/server", "The server, and its checks.", ServerView, read_server),)
