"""The checks of a server behind `eventbus check`: each makes a finding, with a remedy.

Not here: how findings are shown. What must always hold: a check leaves nothing behind. A command
whose right is tried gets a key that did not exist before and is gone afterwards.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from eventbus.errors import StoreError, StoreRefused, StoreUnavailable
from eventbus.model import clock
from eventbus.store.calls.backlog import Backlog, Neglected
from eventbus.store.calls.control_store import ControlStore
from eventbus.store.calls.presence_store import PresenceStore
from eventbus.store.calls.roster import RosterStore
from eventbus.store.calls.silent_workers import find_silent
from eventbus.store.connection.channel import Channel
from eventbus.store.connection.connector import Connector
from eventbus.store.connection.retrying import RetryingCaller
from eventbus.store.keys import Keys
from eventbus.store.server_info import failed_saves, parse_info
from eventbus.store.store import OLDEST, SHARD

_ANSWER_WITHIN = 5.0
_LOOK_WITHIN = 20.0
_NAMED = 8
"""A finding names at most this many queues."""
_OPTIONAL = frozenset({"scan"})
"""Commands that only these checks need."""
_LOOK_AT_WORKER = (
    "look at the worker that does not answer: eventbus workers, and its log for `event loop blocked`"
)
_BAD_WRITE = "its disk may be full or read-only; see the server's log, new jobs are refused meanwhile"

#: Command -> arguments that run it on `key` without harm. docs/operations.md lists the same commands.
TRIED: dict[str, tuple[str, ...]] = {
    "eval": ("return 1", "1", "key"),
    "evalsha": ("0" * 40, "1", "key"),
    "time": (),
    "scan": ("0", "COUNT", "1"),
    "exists": ("key",),
    "expire": ("key", "1"),
    "pexpire": ("key", "1"),
    "persist": ("key",),
    "del": ("key",),
    "unlink": ("key",),
    "rename": ("key", "key"),
    "get": ("key",),
    "getrange": ("key", "0", "0"),
    "mget": ("key",),
    "incrby": ("key", "0"),
    "set": ("key", "", "PX", "1"),
    "setrange": ("key", "0", ""),
    "mset": ("key", ""),
    "msetnx": ("key", ""),
    "hset": ("key", "a", "b"),
    "hget": ("key", "a"),
    "hgetall": ("key",),
    "hmget": ("key", "a"),
    "hincrby": ("key", "a", "0"),
    "hlen": ("key",),
    "hrandfield": ("key", "1"),
    "hdel": ("key", "a"),
    "lpush": ("key", "a"),
    "rpush": ("key", "a"),
    "lpop": ("key",),
    "rpop": ("key",),
    "lindex": ("key", "0"),
    "llen": ("key",),
    "lpos": ("key", "a"),
    "lrange": ("key", "0", "0"),
    "lrem": ("key", "0", "a"),
    "ltrim": ("key", "0", "0"),
    "sadd": ("key", "a"),
    "scard": ("key",),
    "smembers": ("key",),
    "smismember": ("key", "a"),
    "srandmember": ("key", "1"),
    "srem": ("key", "a"),
    "zadd": ("key", "0", "a"),
    "zcard": ("key",),
    "zcount": ("key", "0", "0"),
    "zrank": ("key", "a"),
    "zrange": ("key", "0", "0"),
    "zrangebyscore": ("key", "0", "0"),
    "zrevrange": ("key", "0", "0"),
    "zscore": ("key", "a"),
    "zrem": ("key", "a"),
    "zremrangebyscore": ("key", "0", "0"),
    "zpopmin": ("key",),
    "zpopmax": ("key",),
    "bzpopmin": ("key", "0.01"),
    "xadd": ("key", "NOMKSTREAM", "*", "a", "b"),
    "xdel": ("key", "0-1"),
    "xread": ("STREAMS", "key", "0"),
    "xrevrange": ("key", "+", "-", "COUNT", "1"),
    "xtrim": ("key", "MAXLEN", "0"),
}


#: Those of them that looking needs. docs/operations.md lists the same commands for a user who only looks.
VIEWING: frozenset[str] = frozenset(
    {
        *("eval", "evalsha", "time", "scan", "exists", "get", "getrange", "mget"),
        *("hget", "hgetall", "hmget", "hlen"),
        *("lindex", "llen", "lpos", "lrange", "smembers", "smismember", "srandmember"),
        *("zcard", "zcount", "zscore", "zrank", "zrange", "zrangebyscore", "zrevrange", "xrevrange"),
    }
)


class Finding(msgspec.Struct, frozen=True):
    """The result of one check. An `error` keeps the bus from working; a `warning` may cost jobs or time."""

    subject: str
    level: Literal["ok", "warning", "error"]
    said: str
    remedy: str = ""


class Checkup:
    """The checks of one server. Used once."""

    def __init__(self, connector: Connector, *, prefix: str, name: str, names_addresses: bool = True) -> None:
        """Without `names_addresses` no finding says where a server is."""
        self._connector = connector
        self._names_addresses = names_addresses
        self._keys = Keys(prefix, SHARD)
        self._channel = Channel(connector, name=name, answer_timeout=_ANSWER_WITHIN)
        caller = RetryingCaller(self._channel, keys=self._keys)
        self._presence = PresenceStore(caller, self._keys)
        self._controls = ControlStore(caller, self._keys)
        self._roster = RosterStore(caller, self._keys)
        self._lacking: list[str] = []
        """Commands of `_OPTIONAL` that the user of the URL may not use."""

    async def run(self, queues: Iterable[str], *, allow_eviction: bool, replicated: bool) -> list[Finding]:
        """Return the findings; for a server that cannot be used, only the finding that says why."""
        served = list(queues)
        try:
            await self._call("INFO")  # connects, so that the next answer is timed without it
            begin = clock.monotonic()
            facts = parse_info(await self._call("INFO"))
            took = clock.monotonic() - begin
            found = [
                _reached(facts, self._connector.address if self._names_addresses else "it", took),
                *_version(facts),
                *_role(facts, replicated=replicated, names_addresses=self._names_addresses),
                _eviction(facts, allow_eviction=allow_eviction),
                *_persistence(facts, await self._config("appendfsync")),
                await self._rights(replicated=replicated, serves=bool(served)),
            ]
            found += await self._workers(served)
            return [*found, *await self._paused(), *await self._backlog()]
        except StoreError as error:
            return [self._unusable(error)]
        finally:
            await self._channel.aclose()

    def _unusable(self, error: StoreError) -> Finding:
        is_away = isinstance(error, StoreUnavailable)
        if not self._names_addresses:  # the text of the error may name them
            return Finding("server", "error", "it does not answer" if is_away else "it refuses")
        remedy = "start a server there, or name another one with --url" if is_away else ""
        return Finding("server", "error", str(error), remedy)

    async def _call(self, *command: str) -> Any:
        return await self._channel.call(*command, deadline=clock.monotonic() + _ANSWER_WITHIN)

    async def _config(self, name: str) -> str:
        """Return a setting of the server, or `''` if the user may not ask for it, which is fine."""
        try:
            answer: list[str] = await self._call("CONFIG", "GET", name)
        except StoreRefused:
            return ""
        return answer[1] if len(answer) > 1 else ""

    async def _rights(self, *, replicated: bool, serves: bool) -> Finding:
        """Try each command that we use. Only a refusal for a missing right counts.

        A user who may do all that looking needs, and nothing else, is one for people who look: a warning,
        unless a program is to serve queues with it.
        """
        tried = TRIED | ({"wait": ("0", "1")} if replicated else {})
        refused = [
            command
            for number, (command, arguments) in enumerate(tried.items())
            # Each command gets its own key, because a value left by another command may have the wrong type.
            if not await self._may(command, arguments, f"{secrets.token_hex(6)}-{number}")
        ]
        self._lacking = [command for command in refused if command in _OPTIONAL]
        missing = [command for command in refused if command not in _OPTIONAL]
        user, where = await self._user(), f"on keys of {self._keys.root}"
        if missing and VIEWING.isdisjoint(missing) and set(missing) >= set(TRIED) - VIEWING and not serves:
            said = (
                f"{user} may only look: it may neither emit nor work, nor change anything, "
                "because it may not use"
            )
            remedy = "for more than looking give it the rights that docs/operations.md lists"
            return Finding("rights", "warning", f"{said} {', '.join(missing)} {where}", remedy)
        if missing:
            said = f"{user} may not use {', '.join(missing)} {where}"
            return Finding("rights", "error", said, "give it the rights that docs/operations.md lists")
        which = (
            f"all commands but {', '.join(self._lacking)}, which only this look needs"
            if self._lacking
            else f"all {len(tried)} commands"
        )
        return Finding("rights", "ok", f"{user} may use {which}")

    async def _may(self, command: str, arguments: Iterable[str], name: str) -> bool:
        """Try a command on a key of this name, and let nothing stay. Return whether the user may use it."""
        key = self._keys.of("scratch", name)
        may = True
        try:
            await self._call(command, *(key if argument == "key" else argument for argument in arguments))
        except StoreRefused as error:
            may = error.code != "NOPERM"
        if command in VIEWING or not may:
            return may
        for remove in (("PEXPIRE", key, "1"), ("DEL", key), ("UNLINK", key)):
            try:
                await self._call(*remove)
            except StoreRefused:
                continue  # a right that is missing, which is found when it is tried
            break
        return may

    async def _user(self) -> str:
        """Return the user of the server that the URL leads to, as the server names it."""
        try:
            return f"user {await self._call('ACL', 'WHOAMI')}"
        except StoreRefused:  # it may not ask, which is fine
            return "the user of the URL"

    async def _workers(self, queues: list[str]) -> Iterable[Finding]:
        """Report which of the queues have live workers, and how many."""
        try:
            looks = await self._presence.survey(queues, deadline=clock.monotonic() + _LOOK_WITHIN)
        except StoreRefused:
            return []  # a right is missing, which `_rights` reported
        counts = {queue: look.workers for queue, look in zip(queues, looks, strict=True)}
        silent = [queue for queue, count in counts.items() if not count]
        if silent:
            known = await self._describe_silent(silent)
            names = [queue + known.get(queue, "") for queue in silent]
            said = f"none serves {', '.join(names)}"
            remedy = _LOOK_AT_WORKER if known else "start one: eventbus worker MODULE:PROVIDER"
            return [Finding("workers", "warning", said, remedy)]
        if not queues:
            return []
        shown = ", ".join(f"{queue} by {count}" for queue, count in list(counts.items())[:_NAMED])
        more = f" and {len(counts) - _NAMED} more" if len(counts) > _NAMED else ""
        return [Finding("workers", "ok", f"each queue is served: {shown}{more}")]

    async def _describe_silent(self, queues: Iterable[str]) -> dict[str, str]:
        """Return what is known of the silent workers of these queues, as text to go behind a name."""
        deadline = clock.monotonic() + _LOOK_WITHIN
        try:
            now = await self._roster.now(deadline=deadline)
            found = find_silent(await self._roster.workers(deadline=deadline), now)
        except StoreRefused:
            return {}  # a right is missing, which `_rights` reported
        return {queue: f"; {found[queue][0].describe(now)}" for queue in queues if queue in found}

    async def _paused(self) -> Iterable[Finding]:
        """Report queues that somebody has paused."""
        deadline = clock.monotonic() + _LOOK_WITHIN
        try:
            looks = await self._controls.look(
                await self._controls.limited(deadline=deadline), deadline=deadline
            )
        except StoreRefused:
            return []  # a right is missing, which `_rights` reported
        names = sorted(f"{each.queue} (by {each.fields['by']})" for each in looks if "paused" in each.fields)
        if not names:
            return []
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        said = f"paused: {', '.join(names[:_NAMED])}{more}"
        return [Finding("paused", "warning", said, "let them go on: eventbus queues resume NAME")]

    async def _backlog(self) -> Iterable[Finding]:
        """Report queues of any program in which jobs wait and that nobody serves: a name may be misspelt."""
        if "scan" in self._lacking:
            said = "not looked for jobs that nobody serves: the user of the URL may not use scan"
            return [Finding("queues", "warning", said, "give it the right +scan; see docs/operations.md")]
        backlog = Backlog(self._channel, self._presence, self._keys)
        try:
            found, is_whole = await backlog.find(deadline=clock.monotonic() + _LOOK_WITHIN)
        except StoreRefused:
            return []  # a right is missing, which `_rights` reported
        part = "" if is_whole else "; the server has too many keys to look at, there may be others"
        if not found:
            return [Finding("queues", "ok", f"no jobs wait that nobody serves{part}")]
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        known = await self._describe_silent(each.queue for each in found)
        shown = (_shown(each, known.get(each.queue, "")) for each in found[:_NAMED])
        said = f"nobody serves {', '.join(shown)}{more}{part}"
        remedy = (
            "start a worker that serves them, or mend the name where it is emitted; "
            "a group that is needed no more: eventbus groups EVENT --remove GROUP"
        )
        if known:
            remedy = (
                _LOOK_AT_WORKER if len(known) == len(found) else f"{_LOOK_AT_WORKER}; for the others {remedy}"
            )
        return [Finding("queues", "warning", said, remedy)]


def _shown(queue: Neglected, silent: str) -> str:
    counts = [f"{queue.waiting} waiting"] if queue.waiting else []
    counts += [f"{queue.delayed} delayed"] if queue.delayed else []
    return f"{queue.queue} ({', '.join(counts)}{silent})"


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


def _role(facts: Mapping[str, str], *, replicated: bool, names_addresses: bool) -> Iterable[Finding]:
    if facts.get("role") == "slave":
        primary = f", {facts.get('master_host')}:{facts.get('master_port')}" if names_addresses else ""
        yield Finding("role", "error", "it is a read-only replica", f"use the URL of its primary{primary}")
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
    for failed in failed_saves(facts):
        yield Finding("persistence", "error", failed, _BAD_WRITE)
