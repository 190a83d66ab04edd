"""An audit of a server: it reads every key of a prefix once, and lists what is wrong.

The fault tests rely on it. It reads the records itself and uses nothing of the store but the list of
kinds, so it must be changed together with the shape of the data.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import msgspec
from harness.backends import Backend
from harness.journal import Journal
from models.records import decode

from eventbus.store.keys import KINDS, TIME_DIGITS

__all__ = ["Audit", "JobRecord", "reconcile"]

_STAYS = (
    "never",
    "with its last job",
    "with its last root",
    "with its last emitter",
    "when empty",
    "when it is open",
    "by retention",
    "when it is removed",
)
_FINAL = ("completed", "failed", "cancelled")
_LINES = ("ready", "ready+", "suspects")
_CHUNK = 1000

#: For each key: its type, its ms to live; the record of a job, in hex, or its stalls; the job of a pointer;
#: and which entry of a list counts.
_LOOK = """
local rows = {}
for i, name in ipairs(ARGV) do
  local kind = redis.call('TYPE', name).ok
  local v = {}
  if string.find(name, '}:job:', 1, true) and kind == 'string' then
    v[1] = string.gsub(redis.call('GET', name), '.', function(each)
      return string.format('%02x', string.byte(each))
    end)
  elseif kind == 'hash' then
    v = redis.call('HMGET', name, 'stalls', 'job', 'entry')
  end
  rows[i] = { kind, redis.call('PTTL', name), v[1] or '', v[2] or '', v[3] or '' }
end
return rows
"""


#: The queues that the holds of a worker name, and the number that each limit counts.
_HOLDS = """
local queues = {}
for _, hold in ipairs(redis.call('HVALS', KEYS[1])) do
  local cut = string.find(hold, '\\0', 10, true)
  if cut then queues[#queues + 1] = string.sub(hold, cut + 1) end
end
return queues
"""
_NUMBER = "return struct.unpack('>I4', redis.call('HGET', KEYS[1], ''))"


class JobRecord(NamedTuple):
    """The record of one job; `text` is its outcome as JSON, `root` the tree that it belongs to."""

    state: str
    queue: str
    attempts: int
    stalls: int
    text: str
    root: str
    entry: str = ""


class Audit:
    """One audit of all keys under a prefix."""

    def __init__(self, backend: Backend, prefix: str = "eb") -> None:
        self._root = f"{prefix}:2:{{0}}:"
        self.names: dict[str, set[str]] = defaultdict(set)
        """kind -> the names of its keys, without the prefix and the kind."""
        self.jobs: dict[str, JobRecord] = {}
        self.problems: list[str] = []
        """Violations of `KINDS` and of the guarantees; empty if all is well."""
        self._beside: dict[str, tuple[int, str]] = {}
        """job -> its stalls, and which entry of a list counts."""
        self._pointers: dict[str, tuple[str, int]] = {}
        with backend.client() as client:
            self._read(client)
            self._members = {
                (kind, name): set(client.zrange(self._key(kind, name), 0, -1))
                for kind in ("ready+", "delayed", "parked", "failed", "cancelled", "leaving")
                for name in self.names.get(kind, ())
            }
            for name in self.names.get("completed", ()):
                entries = client.lrange(self._key("completed", name), 0, -1)
                jobs = [entry[TIME_DIGITS:] for entry in entries]
                self.problems += [
                    f"{job}: listed twice in completed" for job, n in Counter(jobs).items() if n > 1
                ]
                self._members["completed", name] = set(jobs)
            for job, (stalls, entry) in self._beside.items():
                if job in self.jobs:
                    self.jobs[job] = self.jobs[job]._replace(stalls=stalls, entry=entry)
            for kind in ("ready", "suspects"):
                for name in self.names.get(kind, ()):
                    self._read_line(kind, name, client.lrange(self._key(kind, name), 0, -1))
            self._read_holds(client)
            self._check_slots(client)
            self._texts(client)
        self._check_places()
        self._check_owners()

    def _read_line(self, kind: str, name: str, entries: list[str]) -> None:
        """Read a list of waiting jobs: an entry counts if the record of its job confirms it."""
        confirmed: list[str] = []
        for entry in entries:
            job, _, number = entry.partition("!")
            record = self.jobs.get(job)
            if record and (record.state, record.queue, record.entry) == ("waiting", name, number):
                confirmed.append(job)
        self.problems += [f"{job}: waits twice in {name}" for job, n in Counter(confirmed).items() if n > 1]
        self._members[kind, name] = set(confirmed)

    def members(self, kind: str, name: str = "") -> set[str]:
        """The jobs in one list or sorted set of jobs."""
        return self._members.get((kind, name), set())

    def left_open(self) -> dict[str, int]:
        """Return the keys that must be gone once all jobs have ended: kind -> number of keys."""
        open_kinds = ("ready+", "delayed", "parked", "roots", "needs", "leaves", "due")
        found = {kind: len(self.names[kind]) for kind in open_kinds if self.names.get(kind)}
        for kind in ("ready", "suspects"):  # tombstones may stay, until a worker looks
            if lists := [name for name in self.names.get(kind, ()) if self.members(kind, name)]:
                found[kind] = len(lists)
        held = self.members("active")
        return {**found, "active": len(held)} if held else found

    def _key(self, kind: str, name: str) -> str:
        return f"{self._root}{kind}:{name}" if name else f"{self._root}{kind}"

    def _read(self, client: Any) -> None:
        names: list[str] = list(set(client.scan_iter(count=5000)))
        look = client.register_script(_LOOK)
        for first in range(0, len(names), _CHUNK):
            chunk = names[first : first + _CHUNK]
            for name, row in zip(chunk, look(args=chunk), strict=True):
                self._note(name, *row)

    def _note(self, name: str, kind_found: str, ttl: int, *fields: str) -> None:
        kind, _, rest = name.removeprefix(self._root).partition(":")
        if not name.startswith(self._root) or kind not in KINDS:
            self.problems.append(f"{name}: no kind of ours")
            return
        if kind_found == "none":
            return  # it expired between two reads
        self.names[kind].add(rest)
        expected, _, _, goes = KINDS[kind]
        if expected not in (kind_found, "any"):
            self.problems.append(f"{name}: expected {expected}, is {kind_found}")
        is_bound = goes in _STAYS or goes == "with the record" or kind in ("key", "held")
        if ttl == -1 and not is_bound:
            self.problems.append(f"{name}: has no expiry, goes {goes}")
        first, job, entry = fields
        if kind == "job":
            self._note_record(rest, bytes.fromhex(first))
        if kind == "more":
            self._beside[rest] = int(first or 0), entry
        if kind == "key":
            self._pointers[name] = (job, ttl)

    def _note_record(self, job: str, text: bytes) -> None:
        # The record of a later release has its state at the same place; the tests that make one change
        # nothing else.
        record = decode(bytes([0x20 + text[0] % 16]) + text[1:])
        attempts, tree = int(record.get("attempts", 0)), record.get("root", "")
        self.jobs[job] = JobRecord(
            record["state"], record["queue"], attempts, 0, record.get("result", ""), tree
        )

    def _read_holds(self, client: Any) -> None:
        """A job that a worker holds is active, whatever its record says of its state."""
        for worker in self.names.get("held", ()):
            for job in client.hkeys(self._key("held", worker)):
                if job.startswith("#"):
                    continue
                held = self._members.setdefault(("active", ""), set())
                if job in held:
                    self.problems.append(f"{job}: held by two workers")
                held.add(job)
                if job in self.jobs and self.jobs[job].state == "waiting":
                    self.jobs[job] = self.jobs[job]._replace(state="active")

    def _check_slots(self, client: Any) -> None:
        """The number of a limit is that of the holds that name its queue."""
        named: Counter[str] = Counter()
        for worker in self.names.get("held", ()):
            named.update(client.eval(_HOLDS, 1, self._key("held", worker)))
        for queue in self.names.get("slots", ()):
            count = client.eval(_NUMBER, 1, self._key("slots", queue))
            if count != named[queue]:
                self.problems.append(f"slots:{queue} counts {count}, and {named[queue]} holds name it")

    def _texts(self, client: Any) -> None:
        """Read the large outcomes, which have a key of their own."""
        for job in self.names.get("result", ()):
            if job in self.jobs:
                text = client.get(self._key("result", job)) or ""
                self.jobs[job] = self.jobs[job]._replace(text=text)

    def _check_places(self) -> None:
        """Check that each job is in the one place of its state, and that each entry has a job.

        A job that waits for others is in none. Nor is an ended member of a tree: it goes with its root.
        """
        places: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for place, jobs in self._members.items():
            for job in jobs:
                places[job].append(place)
        for job, record in self.jobs.items():
            kinds = _LINES if record.state == "waiting" else (record.state,)
            if record.state in _FINAL:
                kinds = (record.state, "leaving")
            expected = [[(kind, "" if kind == "active" else record.queue)] for kind in kinds]
            if record.state == "waiting-children" or (record.root and record.state in _FINAL):
                expected = [[]]
            if places.pop(job, []) not in expected:
                self.problems.append(f"job {job} in state {record.state}: not just in one of {expected}")
        self.problems.extend(f"{job}: no record, but in {where}" for job, where in places.items())

    def _check_owners(self) -> None:
        for kind, names in self.names.items():
            if KINDS[kind][3] == "with the record":
                orphans = names.difference(self.jobs)
                self.problems.extend(f"{kind}:{name} outlives its record" for name in orphans)
        for name, (job, ttl) in self._pointers.items():
            record = self.jobs.get(job)
            if ttl == -1 and (record is None or record.state in _FINAL):
                self.problems.append(f"{name}: no expiry, and its job has ended")


def reconcile(
    backend: Backend,
    heard: Mapping[str, Any],
    *,
    journal: Journal | None = None,
    maybe: Collection[str] = (),
    result_of: Callable[[Any], Any] = lambda result: result,
    prefix: str = "eb",
) -> Audit:
    """Compare the results of emitters with the records and with what handlers did.

    `heard` is job -> its result; `maybe` are the jobs whose emitter could not learn whether they were
    enqueued. Every job in `heard` must have ended with that result, no job may have ended that was not
    emitted, each ended job must have run, and nothing may be left open.
    """
    audit = Audit(backend, prefix)
    assert audit.problems == []
    assert audit.left_open() == {}
    assert {job for job in audit.jobs if job not in heard and job not in maybe} == set(), (
        "nobody emitted these"
    )
    states = Counter(audit.jobs[job].state if job in audit.jobs else "lost" for job in heard)
    assert states == Counter({"completed": len(heard)})
    recorded = {job: msgspec.json.decode(audit.jobs[job].text) for job in heard}
    other = {
        job: (recorded[job], heard[job]) for job in heard if result_of(recorded[job]) != result_of(heard[job])
    }
    assert other == {}, "heard another result than the recorded one"
    if journal is not None:
        runs = journal.runs()
        assert set(runs) - set(audit.jobs) == set(), "ran, but there is no record"
        assert {job for job in audit.jobs if not runs[job]} == set(), "ended without a run"
    return audit
