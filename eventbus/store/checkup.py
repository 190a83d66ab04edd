"""What a server is like for us: findings, each with what to do about it.

Looks only: the commands whose rights it tries get a key of its own that is not there, and is
gone at the end. Not here: how findings are shown.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from eventbus.errors import StoreError, StoreRefused, StoreUnavailable
from eventbus.store.channel import Channel
from eventbus.store.connection import Connector
from eventbus.store.keys import Keys
from eventbus.store.store import OLDEST, SHARD, parse_info

__all__ = ["TRIED", "Checkup", "Finding"]

_ANSWER_WITHIN = 5.0
_SILENT_MS = 60_000
_BAD_WRITE = "its disk may be full or read-only; see the server's log, new jobs are refused meanwhile"

#: Command -> arguments that carry it out on `key` without harm; those of docs/operations.md.
TRIED: dict[str, tuple[str, ...]] = {
    "eval": ("return 1", "1", "key"),
    "evalsha": ("0" * 40, "1", "key"),
    "time": (),
    "exists": ("key",),
    "expire": ("key", "1"),
    "pexpire": ("key", "1"),
    "del": ("key",),
    "unlink": ("key",),
    "rename": ("key", "key"),
    "get": ("key",),
    "incrby": ("key", "0"),
    "set": ("key", "", "PX", "1"),
    "hset": ("key", "a", "b"),
    "hget": ("key", "a"),
    "hgetall": ("key",),
    "hmget": ("key", "a"),
    "hexists": ("key", "a"),
    "hvals": ("key",),
    "hdel": ("key", "a"),
    "rpush": ("key", "a"),
    "lindex": ("key", "0"),
    "llen": ("key",),
    "lrange": ("key", "0", "0"),
    "ltrim": ("key", "0", "0"),
    "sadd": ("key", "a"),
    "smembers": ("key",),
    "smismember": ("key", "a"),
    "srem": ("key", "a"),
    "zadd": ("key", "0", "a"),
    "zcard": ("key",),
    "zrank": ("key", "a"),
    "zrange": ("key", "0", "0"),
    "zrangebyscore": ("key", "0", "0"),
    "zrevrange": ("key", "0", "0"),
    "zscore": ("key", "a"),
    "zrem": ("key", "a"),
    "zremrangebyrank": ("key", "0", "0"),
    "zremrangebyscore": ("key", "0", "0"),
    "zpopmin": ("key",),
    "bzpopmin": ("key", "0.01"),
    "xadd": ("key", "NOMKSTREAM", "*", "a", "b"),
    "xread": ("STREAMS", "key", "0"),
    "xtrim": ("key", "MAXLEN", "0"),
}


class Finding(msgspec.Struct, frozen=True):
    """One thing looked at. An `error` keeps the bus from working, a `warning` may cost jobs or time."""

    subject: str
    level: Literal["ok", "warning", "error"]
    said: str
    remedy: str = ""


class Checkup:
    """Looks at one server. Used once."""

    def __init__(self, connector: Connector, *, prefix: str, name: str) -> None:
        self._connector = connector
        self._keys = Keys(prefix, SHARD)
        self._channel = Channel(connector, name=name, answer_timeout=_ANSWER_WITHIN)

    async def run(self, queues: Iterable[str], *, allow_eviction: bool, replicated: bool) -> list[Finding]:
        """Return what was found; at a server that cannot be used, as far as it came."""
        try:
            await self._call("INFO")  # connects
            begin = time.monotonic()
            facts = parse_info(await self._call("INFO"))
            took = time.monotonic() - begin
            found = [
                _reached(facts, self._connector.address, took),
                *_version(facts),
                *_role(facts, replicated=replicated),
                _eviction(facts, allow_eviction=allow_eviction),
                *_persistence(facts, await self._config("appendfsync")),
                await self._rights(replicated=replicated),
            ]
            return [*found, *await self._workers(list(queues))]
        except StoreUnavailable as error:
            return [
                Finding("server", "error", str(error), "start a server there, or name another one with --url")
            ]
        except StoreError as error:
            return [Finding("server", "error", str(error))]
        finally:
            await self._channel.aclose()

    async def _call(self, *command: str) -> Any:
        return await self._channel.call(*command, deadline=time.monotonic() + _ANSWER_WITHIN)

    async def _config(self, name: str) -> str:
        """A setting of the server; empty where asking is not allowed, which it need not be."""
        try:
            answer: list[str] = await self._call("CONFIG", "GET", name)
        except StoreRefused:
            return ""
        return answer[1] if len(answer) > 1 else ""

    async def _rights(self, *, replicated: bool) -> Finding:
        """Try each command that we use; only the refusal for want of a right counts."""
        missing: list[str] = []
        tried = TRIED | ({"wait": ("0", "1")} if replicated else {})
        for number, (command, arguments) in enumerate(tried.items()):
            # A key for each: the type that one command leaves would be another's error.
            key = self._keys.of("scratch", f"{secrets.token_hex(6)}-{number}")
            try:
                await self._call(command, *(key if each == "key" else each for each in arguments))
                await self._call("PEXPIRE", key, "1")
            except StoreRefused as error:
                if error.code == "NOPERM" and command not in missing:
                    missing.append(command)
        if missing:
            return Finding(
                "rights",
                "error",
                f"the user of the URL may not use {', '.join(missing)} on keys of {self._keys.root}",
                "give it the rights that docs/operations.md lists",
            )
        return Finding("rights", "ok", f"all {len(tried)} commands are allowed")

    async def _now(self) -> int:
        try:
            seconds, _ = await self._call("TIME")
        except StoreRefused:
            return round(time.time() * 1000)
        return int(seconds) * 1000

    async def _workers(self, queues: list[str]) -> Iterable[Finding]:
        """Which of the queues a worker announced itself for lately."""
        silent: list[str] = []
        try:
            now = await self._now()
            for queue in queues:
                key = self._keys.of("pools", queue)
                pools: list[str] = await self._call("ZRANGE", key, "0", "-1", "WITHSCORES")
                if not any(now - float(score) < _SILENT_MS for score in pools[1::2]):
                    silent.append(queue)
        except StoreRefused:
            return []  # for want of a right, which was told
        if silent:
            said = f"none serves {', '.join(silent)}"
            return [Finding("workers", "warning", said, "start one: eventbus worker MODULE:PROVIDER")]
        return [Finding("workers", "ok", "each queue is served")] if queues else []


def _reached(facts: Mapping[str, str], address: str, took: float) -> Finding:
    if facts.get("loading") == "1":
        return Finding("server", "error", f"{address} is loading its data", "wait until it has")
    return Finding("server", "ok", f"{address} answers within {took * 1000:.1f} ms")


def _version(facts: Mapping[str, str]) -> Iterable[Finding]:
    valkey = facts.get("valkey_version")
    version = facts.get("redis_version", "0")
    shown = f"Valkey {valkey}" if valkey else f"Redis {version}"
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        remedy = f"use Redis {OLDEST[0]}.{OLDEST[1]} or newer, or Valkey"
        yield Finding("version", "error", f"{shown} is too old", remedy)
    else:
        yield Finding("version", "ok", shown)
    if facts.get("cluster_enabled") == "1":
        remedy = "Cluster is not supported yet; use the URL of one server"
        yield Finding("version", "error", "the server is a node of a cluster", remedy)


def _role(facts: Mapping[str, str], *, replicated: bool) -> Iterable[Finding]:
    if facts.get("role") == "slave":
        primary = f"{facts.get('master_host')}:{facts.get('master_port')}"
        yield Finding("role", "error", "it is a read-only replica", f"use the URL of its primary, {primary}")
        return
    count = int(facts.get("connected_slaves", "0"))
    said = f"primary with {count} replica{'' if count == 1 else 's'}"
    if replicated and not count:
        remedy = "start a replica: with durability replicated, emissions wait for one"
        yield Finding("role", "error", said, remedy)
    else:
        yield Finding("role", "ok", said)


def _eviction(facts: Mapping[str, str], *, allow_eviction: bool) -> Finding:
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy == "noeviction":
        return Finding("maxmemory-policy", "ok", policy)
    said = f"{policy}: the server may drop jobs when its memory is full"
    level: Literal["warning", "error"] = "warning" if allow_eviction else "error"
    return Finding("maxmemory-policy", level, said, "set maxmemory-policy noeviction")


def _persistence(facts: Mapping[str, str], fsync: str) -> Iterable[Finding]:
    if facts.get("aof_enabled") != "1":
        said = (
            "appendonly no: a crash of the server loses everything since its last snapshot, if it makes any"
        )
        yield Finding("persistence", "warning", said, "set appendonly yes; see docs/operations.md")
    elif fsync == "no":
        said = "appendonly yes, appendfsync no: a crash of the machine loses what it had not written"
        yield Finding("persistence", "warning", said, "set appendfsync everysec or always")
    else:
        yield Finding("persistence", "ok", f"appendonly yes{f', appendfsync {fsync}' if fsync else ''}")
    for name, what in (
        ("aof_last_write_status", "write of its append-only file"),
        ("rdb_last_bgsave_status", "snapshot"),
    ):
        if facts.get(name, "ok") != "ok":
            yield Finding("persistence", "error", f"the last {what} failed", _BAD_WRITE)
