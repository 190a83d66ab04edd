"""The reconciliation after chaos: each emission, its record and the journal of its handler, side by side.

What must always hold:
- lost: every job that the server acknowledged has ended and has a record;
- ended twice: the server delivered the outcome of a job once (counted on the wire, in the reply
  stream), and the emitter, the record and one run in the journal all have that outcome;
- past its timeout: every emission has an outcome, and none of them ended later than it may.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Any

import msgspec
from checks.audit import Audit
from harness.backends import Backend
from harness.journal import Journal
from harness.load import Answer
from harness.wire import Call, read_answer

from eventbus import EmitError, HandlerError, JobCancelled, ResponseTimeout, StalledError

__all__ = ["Deliveries", "Reconciliation"]

_FLAWS = ("lost", "ended twice", "heard another outcome", "past its timeout", "timed out", "unexplained")


class Deliveries:
    """Counts how often the server delivered each outcome, by the reply stream entries on the wire."""

    def __init__(self) -> None:
        self._entries: dict[str, set[bytes]] = defaultdict(set)

    def listen(self, call: Call, frame: bytes) -> None:
        """Note the entries of an answer; if a stream is read again, it shows the same entries."""
        if call.name == "XREAD":
            self.note(read_answer(frame))

    def note(self, answer: Any) -> None:
        """Note the entries of an answer of XREAD."""
        for _, entries in answer or ():
            for place, fields in entries:
                if fields[0] == b"d":
                    for job in msgspec.msgpack.decode(fields[1])[::4]:
                        self._entries[job].add(place)

    def twice(self) -> set[str]:
        return {job for job, places in self._entries.items() if len(places) > 1}

    def __len__(self) -> int:
        return len(self._entries)


class Reconciliation:
    """Compares all sources once, after the run."""

    def __init__(
        self,
        answers: list[Answer],
        late: list[str],
        deliveries: Deliveries,
        backend: Backend,
        journal: Journal,
        *,
        repeated: Collection[str] = (),
    ) -> None:
        """`late` are the jobs whose outcome reached the emitter too late; `repeated` those that ended, and
        that an operator let run again: their emitters heard the first outcome.
        """
        self._repeated = repeated
        self.audit = Audit(backend)
        self.answers = answers
        self.told = len(deliveries)
        self.runs = journal.runs()
        self.completed = sum(each.error is None for each in answers)
        self.failed = Counter(_reason(each.error) for each in answers if each.error is not None)
        self.flaws: dict[str, set[str]] = {name: set() for name in _FLAWS}
        self._given: dict[str, set[str]] = defaultdict(set)
        for entry in journal.read("ended"):
            self._given[entry.job].add(entry.payload["by"])
        self.flaws["ended twice"] |= deliveries.twice() - set(repeated)
        self.flaws["past its timeout"].update(late)
        for answer in answers:
            self._compare(answer)
        known = {each.job for each in answers}
        self.flaws["unexplained"] |= (set(self.audit.jobs) | set(self.runs)) - known

    @property
    def rescued(self) -> int:
        return sum(record.stalls for record in self.audit.jobs.values())

    def is_clean(self) -> bool:
        return not (any(self.flaws.values()) or self.audit.problems or self.audit.left_open())

    def lines(self) -> list[str]:
        """Return the lines that are printed."""
        runs = Counter(self.runs.values())
        rows: list[tuple[str, object]] = [
            ("emitted", len(self.answers)),
            ("completed", self.completed),
            ("failed", _shown(self.failed)),
            *((name, len(jobs)) for name, jobs in self.flaws.items()),
            ("outcomes told on the wire", self.told),
            ("runs of a job", _shown(runs)),
            ("rescued", self.rescued),
            ("left open", self.audit.left_open() or 0),
            ("problems in the server", len(self.audit.problems)),
        ]
        shown = [f"{name:<26} {value}" for name, value in rows]
        shown += [
            f"{name}: {job} {self._story(job)}"
            for name, jobs in self.flaws.items()
            for job in sorted(jobs)[:5]
        ]
        return shown + self.audit.problems[:5]

    def _compare(self, answer: Answer) -> None:
        record = self.audit.jobs.get(answer.job)
        if isinstance(answer.error, EmitError):
            if answer.error.enqueued is False and record is not None:
                self.flaws["unexplained"].add(answer.job)
            return
        if isinstance(answer.error, ResponseTimeout):
            self.flaws["timed out"].add(answer.job)
        if record is None or record.state not in ("completed", "failed", "cancelled"):
            self.flaws["lost"].add(answer.job)
        elif answer.job not in self._repeated and not self._is_told_right(
            answer, record.state, msgspec.json.decode(record.text)
        ):
            self.flaws["heard another outcome"].add(answer.job)

    def _is_told_right(self, answer: Answer, state: str, outcome: Any) -> bool:
        """Tell whether the emitter got the recorded outcome, and whether one run gave it."""
        if answer.error is None:
            is_given = answer.result["by"] in self._given[answer.job]
            return state == "completed" and outcome == answer.result and is_given
        if isinstance(answer.error, JobCancelled):
            return state == "cancelled"
        return state == "failed" and _reason(answer.error) in (
            outcome["type"],
            outcome["type"].rpartition(".")[2],
        )

    def _story(self, job: str) -> str:
        heard = next((each for each in self.answers if each.job == job), None)
        return f"heard {heard}, recorded {self.audit.jobs.get(job)}, {self.runs[job]} runs"


def _reason(error: Exception) -> str:
    if isinstance(error, HandlerError):
        return error.type_name.rpartition(".")[2]
    if isinstance(error, EmitError):
        return f"EmitError(enqueued={error.enqueued})"
    return "StalledError" if isinstance(error, StalledError) else type(error).__name__


def _shown(counts: Counter[Any]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items())) or "0"
