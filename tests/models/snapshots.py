"""A snapshot of a server: every key, read in one call, and the invariants of each snapshot.

It does not know which calls were made (see `job_model`). It only checks that each job is in the one
place that its state names, and that every key expires that must expire according to `KINDS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from models.records import CORE, FLAGS, MORE, decode

from eventbus.store.keys import KINDS, TIME_DIGITS

__all__ = ["ENDED", "SUSPECT", "UNIT", "Finals", "Snapshot", "pass_time", "told_to"]

ENDED = ("completed", "failed", "cancelled")
SUSPECT = 3
"""A job that is blamed for so many stalls waits with the suspects."""
UNIT = 30_000
"""Expiry times pass in whole units of model time, in ms; a test takes much less real time than one unit."""

_SMALL = 256
_BESIDE = (("more", "MORE"), ("body", "BODY"), ("result", "RESULT"), ("journal", "JOURNAL"))
_SIDES = ("progress", "log", "lines", "waiters", "checkpoints", "inbox", "live")

_READ = """
local rows = {}
for _, name in ipairs(redis.call('KEYS', '*')) do
  local kind, value = redis.call('TYPE', name).ok, nil
  if string.find(name, '}:held:', 1, true) then
    value = {}
    local all = redis.call('HGETALL', name)
    for i = 1, #all, 2 do
      local is_job = string.sub(all[i], 1, 1) ~= '#'
      value[i], value[i + 1] = all[i], is_job and string.sub(all[i + 1], 7, 7)
        .. string.gsub(string.sub(all[i + 1], 10), '%z', ' ') or ''
    end
  elseif string.find(name, '}:slots:', 1, true) then
    value = redis.call('HGETALL', name)
    for i = 1, #value, 2 do
      local field = value[i]
      if field == '' or string.sub(field, 1, 1) == ':' then
        value[i + 1] = tostring(struct.unpack('>I4', value[i + 1]))
      end
      if field == '=' then value[i + 1] = '' end
      if field == '' then value[i] = 'running' end
    end
  elseif kind == 'hash' then value = redis.call('HGETALL', name)
  elseif kind == 'zset' then value = redis.call('ZRANGE', name, 0, -1, 'WITHSCORES')
  elseif kind == 'set' then value = redis.call('SMEMBERS', name)
  elseif kind == 'list' then value = redis.call('LRANGE', name, 0, -1)
  elseif kind == 'string' and string.find(name, '}:job:', 1, true) then
    value = string.gsub(redis.call('GET', name), '.', function(each)
      return string.format('%02x', string.byte(each))
    end)
  elseif kind == 'string' then value = redis.call('GET', name)
  else
    value = {}
    for _, entry in ipairs(redis.call('XRANGE', name, '-', '+')) do
      if entry[2][1] == 'd' then
        for _, each in ipairs(cmsgpack.unpack(entry[2][2])) do value[#value + 1] = each end
      end
    end
  end
  rows[#rows + 1] = { name, redis.call('PTTL', name), value }
end
return rows
"""

_PASS = """
local gone = {}
for _, name in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', name)
  if left >= 0 and not string.find(name, ':replies:', 1, true) then
    left = math.ceil(left / ARGV[1]) * ARGV[1] - ARGV[2] * ARGV[1]
    if left > 0 then
      redis.call('PEXPIRE', name, string.format('%.0f', left))
    else
      redis.call('DEL', name)
      gone[#gone + 1] = name
    end
  end
end
return gone
"""


def pass_time(client: Any, units: int) -> None:
    """Bring every expiry nearer by `units`, except those of reply streams, which emitters renew."""
    client.eval(_PASS, 0, UNIT, units)


class Snapshot:
    """All keys of a server that has one shard and nothing else."""

    def __init__(self, client: Any) -> None:
        self.values: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
        """kind -> name ('' for a key that each shard has once) -> content."""
        self.lives: dict[str, dict[str, int]] = {kind: {} for kind in KINDS}
        """kind -> name -> units until it expires, -1 for never."""
        for full, ttl, value in client.eval(_READ, 0):
            kind, _, name = full.partition("}:")[2].partition(":")
            assert kind in KINDS, f"the key {full} is of no known kind"
            self.lives[kind][name] = -1 if ttl < 0 else -(-ttl // UNIT)
            self.values[kind][name] = _shape(KINDS[kind][0], value)
        for queue, entries in self.values["completed"].items():
            self.values["completed"][queue] = {
                entry[TIME_DIGITS:]: int(entry[:TIME_DIGITS]) for entry in entries
            }
        self._flags: dict[str, int] = {}
        self.jobs: dict[str, dict[str, str]] = {}
        """job -> its fields, those of its record and those beside it."""
        for job, text in self.values["job"].items():
            self._flags[job] = bytes.fromhex(text)[1]
            self.jobs[job] = decode(bytes.fromhex(text), self.values["more"].get(job))
        self.held: dict[str, str] = {}
        """job -> the worker that holds it."""
        self.slots: dict[str, set[str]] = {}
        """queue -> the jobs whose holds take a slot of its limit."""
        self._keys: dict[str, Counter[str]] = {}
        """queue -> limit key -> how many of these holds name it."""
        for worker, holds in self.values["held"].items():
            for job, hold in holds.items():
                if not job.startswith("#"):
                    self._note_hold(worker, job, hold)
        self._check_slots()
        self._tombstones: Counter[str] = Counter()
        for kind in ("ready", "suspects"):
            for queue, entries in self.values[kind].items():
                self.values[kind][queue] = self._confirm(queue, entries=entries)
        _check_lanes(self.values, self._keys)
        for name, entries in self.values["lane"].items():
            self.values["lane"][name] = self._confirm(*name.split(":"), entries=entries)

    def _note_hold(self, worker: str, job: str, hold: str) -> None:
        """A held job is active: its record does not say so, unless it names the token of its holder."""
        assert job not in self.held, f"{job} is held by {self.held[job]} and by {worker}"
        hold, _, slot = hold.partition(" ")
        queue, _, key = slot.partition(" ")
        if queue:
            self.slots.setdefault(queue, set()).add(job)
            assert self.jobs[job].get("limit", "") == key, f"{job} takes a slot of another key"
        if key:
            self._keys.setdefault(queue, Counter())[key] += 1
        self.held[job] = worker
        record = self.jobs[job]
        assert record["state"] == "waiting", f"{job} is held by {worker} in the state {record['state']}"
        is_named = "is_root" not in record and ("root" in record or "tree" in record)
        assert record.get("token") == (hold[1:] if is_named else None), f"{job} names another holder"
        record["state"], record["token"] = "active", hold[1:]

    def _check_slots(self) -> None:
        """The number of each limit is that of the holds that name its queue."""
        counted = {
            queue: int(fields["running"])
            for queue, fields in self.values["slots"].items()
            if "running" in fields
        }
        real = {queue: len(self.slots.get(queue, ())) for queue in counted}
        assert counted == real, "the number of a limit has moved away from what it counts"

    def _confirm(self, queue: str, lane: str = "", *, entries: list[str]) -> dict[str, int]:
        """Return the jobs whose records confirm these entries, with their places; count the tombstones."""
        found: dict[str, int] = {}
        for place, entry in enumerate(entries):
            job, _, number = entry.partition("!")
            record = self.jobs.get(job, {})
            confirmed = (record.get("state"), record.get("queue"), record.get("entry", ""))
            if confirmed != ("waiting", queue, number):
                self._tombstones[queue] += 1
                continue
            assert job not in found, f"{job} stands twice in {queue}"
            assert not lane or record["limit"] == lane, f"{job} stands in the lane of another key"
            found[job] = place
        return found

    def waiting(self, queue: str) -> list[str]:
        """Return the waiting jobs of a queue in the order of claims, the suspects last."""
        ranked = self.zset("ready+", queue)
        first = [job for job, score in ranked.items() if score < 0]
        return [
            *first,
            *self.zset("ready", queue),
            *(job for job in ranked if job not in first),
            *self.zset("suspects", queue),
            *(job for name in self._lanes_of(queue) for job in self.zset("lane", name)),
        ]

    def _lanes_of(self, queue: str) -> list[str]:
        return sorted(name for name in self.values["lane"] if name.rpartition(":")[0] == queue)

    def dead(self, queue: str) -> int:
        """Return how many tombstones the lists of a queue have, as the server counts them."""
        return int(self.values["dead"].get("", {}).get(queue, 0))

    def zset(self, kind: str, name: str = "") -> dict[str, int]:
        """Members with their scores, in order; empty if there is no such key."""
        return self.values[kind].get(name, {})

    @property
    def looks(self) -> dict[str, int]:
        """Queue -> when somebody is to look at its jobs that go by themselves."""
        return {name[6:]: score for name, score in self.zset("due").items() if name.startswith("leave:")}

    def text_of(self, job: str) -> str:
        """The result or error of a job, wherever it lies."""
        return self.jobs[job].get("result") or self.values["result"].get(job, "")

    def check(self) -> None:
        """Check what must hold after any call."""
        self._check_places()
        self._check_due()
        for job, record in self.jobs.items():
            assert record.keys() <= CORE.keys() | MORE.keys(), (
                f"{job} has fields that no table names: {record}"
            )
            large = [name for name, value in record.items() if len(value.encode()) > _SMALL]
            assert not large, f"fields of {job} are over {_SMALL} bytes: {large}"
            self._check_flags(job)
        for kind, lives in self.lives.items():
            for name, life in lives.items():
                self._check_life(kind, name, life)

    def _check_flags(self, job: str) -> None:
        """Check that the flags of a record tell of all that stands beside it: who forgets it goes by them."""
        flags = {name for name, bit in FLAGS.items() if self._flags[job] & bit}
        beside = {kind: job in self.values[kind] for kind in KINDS}
        for kind, flag in _BESIDE:
            assert beside[kind] == (flag in flags), f"{job}: {flags}, and its {kind}: {beside[kind]}"
        sides = [kind for kind in _SIDES if beside[kind]]
        assert bool(sides) <= ("SIDE" in flags), f"the flags of {job} say nothing of its {sides}"
        assert ("STOP" in flags) == ("stop" in self.jobs[job]), f"{job}: {flags}"

    def _check_places(self) -> None:
        stands: dict[str, list[str]] = {}
        for job in self.held:
            stands.setdefault(job, []).append("active")
        registered = {worker for worker, holds in self.values["held"].items() if "#" in holds}
        assert registered == self.zset("workers").keys(), "a worker is registered exactly while it has leases"
        assert set(self.held.values()) <= registered, "a worker holds jobs and is not registered"
        queues = {*self._tombstones, *self.values["dead"].get("", {})}
        counts = {queue: self.dead(queue) for queue in queues}
        assert counts == {queue: self._tombstones[queue] for queue in queues}, "how many tombstones there are"
        for kind in ("ready", "ready+", "suspects", "lane", "delayed", "parked", "leaving", *ENDED):
            for queue, members in self.values[kind].items():
                for job in members:
                    stands.setdefault(job, []).append(f"{kind}:{queue}")
        should = {job: [place] for job, record in self.jobs.items() if (place := _place_of(record))}
        assert stands == should, "a job stands where its state does not say"

    def _check_due(self) -> None:
        """Check that each queue with delayed jobs stands in `due`, not later than the first of them, and no
        other.
        """
        noted = {name[2:]: score for name, score in self.zset("due").items() if name.startswith("q:")}
        first = {queue: min(jobs.values()) for queue, jobs in self.values["delayed"].items()}
        assert noted.keys() == first.keys()
        late = [queue for queue, score in noted.items() if score > first[queue]]
        assert not late, f"delayed jobs are looked at late: {late}"
        unseen = self.values["leaving"].keys() - self.looks.keys()
        assert not unseen, f"nobody looks at what goes by itself in {unseen}"

    def _check_life(self, kind: str, name: str, life: int) -> None:
        goes = KINDS[kind][3]
        if goes in ("with the record", "when empty", "when it is open"):
            assert name in self.jobs, f"{kind}:{name} has no record"
            assert life == -1, f"{kind}:{name} goes before its record"
        elif goes in (
            "never",
            "with its last job",
            "with its last root",
            "with its last emitter",
            "by retention",
            "when it is removed",
        ):
            assert life == -1, f"{kind}:{name} expires"
        elif kind == "held":
            assert (life == -1) == ("#" in self.values["held"][name]), f"the life of the holds of {name}"
        elif kind == "key":
            pointer = self.values["key"][name]
            is_open = "state" not in pointer
            assert (life == -1) == is_open, f"the pointer {name} is {pointer} and has a life of {life}"
        else:
            assert life >= 0, f"{kind}:{name} stays for ever"


def _check_lanes(values: dict[str, dict[str, Any]], holds: dict[str, Counter[str]]) -> None:
    """Check that a key is in `turns` or rests exactly while its lane is not empty, and that its numbers are
    right.

    `holds` has for each queue how many holds name each of its limit keys.
    """
    lanes: dict[str, set[str]] = {}
    entries: Counter[str] = Counter()
    for name, lane in values["lane"].items():
        queue, _, key = name.rpartition(":")
        lanes.setdefault(queue, set()).add(key)
        entries[queue] += len(lane)
    for queue in {*lanes, *values["turns"], *values["resting"]}:
        both: Sequence[str] = [*values["turns"].get(queue, []), *values["resting"].get(queue, [])]
        assert sorted(both) == sorted(lanes.get(queue, set())), f"the keys of {queue} that have jobs: {both}"
    for queue, fields in values["slots"].items():
        assert int(fields.get("#", 0)) == entries[queue], f"how many entries the lanes of {queue} have"
        counted = {name[1:]: int(count) for name, count in fields.items() if name[:1] == ":"}
        real = holds.get(queue, Counter()) if "running" in fields else {}
        assert counted == dict(real), f"how many jobs of each key run in {queue}"


class Finals:
    """The final states of jobs, as they were first seen: they never change."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, str, str]] = {}

    def check(self, now: Snapshot) -> None:
        for job, record in now.jobs.items():
            if record["state"] in ENDED:
                final = (record["state"], record["ended"], now.text_of(job))
                assert self._seen.setdefault(job, final) == final, f"{job} ended twice"
            else:
                assert job not in self._seen, f"{job} had ended, and is {record['state']} again"


def told_to(stream: list[Any]) -> Counter[tuple[Any, ...]]:
    """The rows of a reply stream: job, state, carried, text."""
    return Counter(tuple(stream[i : i + 4]) for i in range(0, len(stream), 4))


def _place_of(record: dict[str, str]) -> str:
    """Return the list or the set that it must be in; a member that waits for others or has ended is
    in none.
    """
    state = record["state"]
    if state == "waiting-children" or (state in ENDED and "root" in record):
        return ""
    if state == "active":
        return state
    if state in ENDED and record.get("keep", ",").split(",")[state != "completed"]:
        state = "leaving"
    if state == "waiting":
        is_suspect = int(record.get("stalls", 0)) - int(record.get("spared", 0)) >= SUSPECT
        if "limit" in record and not is_suspect:
            return f"lane:{record['queue']}:{record['limit']}"
        state = "suspects" if is_suspect else "ready+" if int(record.get("priority", 0)) else "ready"
    return f"{state}:{record['queue']}"


def _shape(kind: str, value: Any) -> Any:
    if kind == "hash":
        return dict(zip(value[::2], value[1::2], strict=True))
    if kind == "zset":
        return {name: int(float(score)) for name, score in zip(value[::2], value[1::2], strict=True)}
    return value
