"""After each test nothing is left: no task, thread, child process, connection or board of gauges, and no key
that stays for ever.

`KINDS` says for each kind of key when it goes. What goes "after" something has an expiry;
what goes "with" its record has a record; a key pointer has an expiry once its job ended.

`nothing_is_left` in the outermost conftest checks every test. Connections and keys are checked
if the test uses the shared server.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import redis
from drivers.children import child_processes
from models.records import STATES

import eventbus
from eventbus.store.keys import KINDS
from eventbus.telemetry.gauge_board import boards

__all__ = ["Watch", "connect", "find_tasks", "wait_gone"]

_OWN = ("leak-watch", "admin")
"""Connections of the tests themselves."""

_WITHIN = 60.0
_BY_HAND = (
    "never",
    "with its last job",
    "with its last root",
    "with its last emitter",
    "by retention",
    "when it is removed",
)
_WITH_RECORD = ("with the record", "when empty", "when it is open")
_ENDED = {"completed", "failed", "cancelled"}
_PACKAGE = str(Path(eventbus.__file__).parent)


class Watch:
    """Compares what was there before a test with what is there after it."""

    def __init__(self, client: Any) -> None:
        """`client` is connected to the shared server; None for a test without it."""
        self._client = client
        self._before = self._find()

    def _find(self) -> set[str]:
        found = {f"thread {each.ident} {each.name}" for each in threading.enumerate() if _is_ours(each)}
        found |= {f"process {pid} {name}" for pid, name in child_processes().items()}
        found |= {f"gauge board {id(each)}" for each in list(boards)}
        if self._client is not None:
            names = {each["id"]: each["name"] for each in self._client.client_list()}
            found |= {f"connection {number} {name}" for number, name in names.items() if _may_be_ours(name)}
        return found

    def find_new(self) -> set[str]:
        """What was not there before the test."""
        return self._find() - self._before

    def forget_keys(self, prefix: str, planted: Iterable[str]) -> list[str]:
        """Remove all keys of a test; return those that nothing else would ever have removed."""
        names = sorted(self._client.scan_iter(match=f"{prefix}:*", count=1000))
        leaks = _judge(self._client, set(names).difference(planted))
        if names:
            self._client.unlink(*names)
        return leaks


def wait_gone(find: Callable[[], set[str]]) -> set[str]:
    """Return what is still found after 20 seconds; whatever ends before that is no leak."""
    end = time.monotonic() + _WITHIN
    while (left := find()) and time.monotonic() < end:
        time.sleep(0.002)  # threads, other processes and the server: nothing to await
    return left


def find_tasks() -> set[str]:
    """Return the tasks of our packages that run in this event loop."""
    return {f"task {each}" for each in asyncio.all_tasks() if _runs_our_code(each)}


def _may_be_ours(client: str) -> bool:
    """By default a connection is named after host and process; those of other processes do not count."""
    other = re.match(r".*-(\d+)(-[a-z]+)?$", client)
    return client not in _OWN and (other is None or int(other[1]) == os.getpid())


def _is_ours(thread: threading.Thread) -> bool:
    return thread.name.startswith("eventbus")


def _runs_our_code(task: asyncio.Task[Any]) -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and code.co_filename.startswith(_PACKAGE)


def _judge(client: Any, names: set[str]) -> list[str]:
    ordered = sorted(names)
    lifetimes = client.pipeline(transaction=False)
    for name in ordered:
        lifetimes.ttl(name)
    pairs = zip(ordered, lifetimes.execute(), strict=True)
    return [name for name, lifetime in pairs if lifetime == -1 and _is_leak(client, name)]


def _is_leak(client: Any, name: str) -> bool:
    root, _, rest = name.partition("}:")
    kind, _, what = rest.partition(":")
    if kind not in KINDS:
        return True
    goes = KINDS[kind][3]
    if goes in _BY_HAND:
        return False
    record = f"{root}}}:job:{what}"
    if goes in _WITH_RECORD:
        return not client.exists(record)
    if kind == "held":  # without an expiry while its worker is registered
        return not client.hexists(name, "#")
    if kind == "key":  # without an expiry while its job is open
        pointed = client.hget(name, "job")
        state = pointed and client.getrange(f"{root}}}:job:{pointed}", 0, 0)
        return not state or STATES[ord(state) % 16] in _ENDED
    return True


def connect(url: str) -> Any:
    """Open a connection for the leak check alone."""
    return redis.Redis.from_url(url, decode_responses=True, encoding_errors="replace", client_name=_OWN[0])
