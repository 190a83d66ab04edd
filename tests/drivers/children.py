"""The child processes of this test process: its own, and those that its fork server started for it."""

from __future__ import annotations

import multiprocessing
from multiprocessing import resource_tracker
from pathlib import Path

from drivers.fork_server import server_pids

__all__ = ["child_processes"]


def child_processes() -> dict[int, str]:
    """Return the names by number, also of those that ended and were not yet waited for.

    Without the fork server itself and Python's resource tracker, which stay for the next test. A system that
    does not tell (it is not Linux) has those of `multiprocessing` alone.
    """
    if not Path("/proc/self/task").exists():
        return {each.pid: each.name for each in multiprocessing.active_children() if each.pid is not None}
    servers = server_pids()
    pids = _children_of("self").union(*map(_children_of, servers)) - servers
    pids.discard(getattr(resource_tracker._resource_tracker, "_pid", None))
    return {pid: _name_of(pid) for pid in pids}


def _children_of(process: int | str) -> set[int]:
    pids: set[int] = set()
    for each in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            pids.update(map(int, each.read_text().split()))
        except OSError:
            continue  # the thread has ended
    return pids


def _name_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return "?"
