"""The history of a load: what its clients were told, kept outside the server, and compared with what is
there.

What must always hold once the load has ended and every job was worked off:
- each acknowledged job has a record, is completed, and is listed as that once; no other job has a record;
- one worker settled it, once, and no settle of a live lease was refused;
- no job was claimed while another claim of it was live, nor after it was completed;
- no two jobs took the same order;
- its emitter got its outcome once.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from typing import NamedTuple

import msgspec
from checks.audit import Audit
from harness.backends import Backend

from eventbus.store.keys import Keys

__all__ = ["History"]


class _Event(NamedTuple):
    """`acknowledged`, `claimed`, `settling` (is about to be sent), `settled`, or `lost` (the settle was
    refused).
    """

    what: str
    job: str
    token: str
    state: str


class History:
    """What all clients of one load were told, in an order that is true of each job.

    A settle is noted before it is sent, and a claim after it was answered. So a claim that is noted while
    an earlier one is live was really answered while that one was live.
    """

    def __init__(self) -> None:
        self.given: dict[str, tuple[str, str]] = {}
        """job -> its queue and body, from before it is added."""
        self.put_back: set[str] = set()
        """Jobs that were given back or retried, which happens to each once."""
        self.complaints: list[str] = []
        """Errors, and answers that no caller should get."""
        self.counts: Counter[tuple[str, int]] = Counter()
        """Kind of event, `acknowledged <queue>` and `completed <queue>`, and port of the node -> number."""
        self._events: list[_Event] = []
        self._lock = threading.Lock()

    def note(self, what: str, job: str, *, token: str = "", state: str = "", port: int = 0) -> None:
        """Add an event; `port` is that of the node that answered."""
        with self._lock:
            self._events.append(_Event(what, job, token, state))
            self.counts[what, port] += 1
            if what == "acknowledged" or (what, state) == ("settled", "completed"):
                self.counts[f"{state or what} {self.given[job][0]}", port] += 1

    def complain(self, text: str) -> None:
        with self._lock:
            self.complaints.append(text)

    def count(self, what: str, *ports: int) -> int:
        """Return how often this happened, at these nodes or at any."""
        with self._lock:
            return sum(
                n for (kind, port), n in self.counts.items() if kind == what and port in (ports or (port,))
            )

    def jobs(self, what: str = "acknowledged", state: str = "") -> Counter[str]:
        """Return job -> how often this happened to it."""
        return Counter(each.job for each in self._events if each.what == what and each.state == state)

    def problems(self, backend: Backend, keys: Keys, emitter: str) -> dict[str, list[str]]:
        """Return all that is wrong -> the jobs concerned, with the server that has the shard now."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        self._judge_claims(found)
        self._judge_records(found, Audit(backend))
        heard = _outcomes(backend, keys.replies(emitter))
        found["outcome not told once"] += [job for job in self.jobs() if heard[job] != 1]
        found["outcome of a job that nobody added"] += set(heard) - set(self.jobs())
        found["complaint"] += self.complaints
        return {what: jobs for what, jobs in found.items() if jobs}

    def _judge_claims(self, found: dict[str, list[str]]) -> None:
        live: dict[str, str] = {}
        for what, job, token, state in self._events:
            if what == "claimed":
                if job in live:
                    found["claimed twice"].append(f"{job}: {live[job]} and {token}")
                live[job] = token
            elif what == "lost":
                found["settle refused"].append(job)
            elif what == "settling" and state != "completed":
                live.pop(job, None)  # from here on somebody may claim it again
        completed = self.jobs("settled", "completed")
        found["not settled once"] += [job for job in self.jobs() if completed[job] != 1]
        found["acknowledged twice"] += [job for job, times in self.jobs().items() if times > 1]

    def _judge_records(self, found: dict[str, list[str]], audit: Audit) -> None:
        for job in self.jobs():
            record = audit.jobs.get(job)
            if record is None or record.state != "completed":
                found["lost"].append(f"{job}: {record}")
        for job in self.jobs("settled", "completed"):
            if job not in audit.members("completed", self.given[job][0]):
                found["not listed"].append(job)
        found["nobody added"] += set(audit.jobs) - set(self.jobs())
        found["left open"] += map(str, audit.left_open().items())
        found["audit"] += audit.problems


def _outcomes(backend: Backend, stream: str) -> Counter[str]:
    """Return job -> how often its outcome is in the stream of its emitter."""
    heard: Counter[str] = Counter()
    with backend.client(decode_responses=False) as client:
        for _, fields in client.xrange(stream):
            if b"d" in fields:
                heard.update(msgspec.msgpack.decode(fields[b"d"])[::4])
    return heard
