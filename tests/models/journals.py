"""Journals, sleep and signals in the job model: what a job says of itself, what wakes it, and the calls
around it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from models.strategies import LONE

from eventbus.store.scripting.packing import Append
from eventbus.store.scripting.script_rows import (
    AddRow,
    AppendRefusal,
    JournalRow,
    NoteRow,
    SettleRow,
    TurnAnswer,
)

__all__ = ["JournalRules", "Story", "append", "check_stories", "check_told", "fall_asleep"]


@dataclass
class Story:
    """What a job has recorded, and what it was sent."""

    journal: list[str] = field(default_factory=list[str])
    live: dict[str, str] = field(default_factory=dict[str, str])
    inbox: dict[str, str] = field(default_factory=dict[str, str])
    """signal -> order, name and payload."""
    heard: int = 0
    listens: bool = False

    @property
    def size(self) -> int:
        return sum(map(len, self.journal)) + sum(map(len, self.inbox.values()))

    def stored(self) -> dict[str, Any]:
        """Return what the server must have, by kind of key; empty for no key."""
        size = sum(map(len, self.inbox.values()))
        counts = {"#": str(self.heard), "#b": str(size)} if self.heard else {}
        return {"journal": self.journal, "live": self.live, "inbox": self.inbox | counts}


def append(model: Any, worker: str, rows: list[Append]) -> list[AppendRefusal]:
    """Do the appends of a turn; return those that are refused."""
    refused: list[AppendRefusal] = []
    for place, row in enumerate(rows, 1):
        if not model.holds(row.id, row.token) or row.token.partition(":")[0].rstrip("+") != worker:
            refused.append(AppendRefusal(place, "lost", 0))
            continue
        job = model.jobs[row.id]
        journal, entries = job.story.journal, list(row.entries)
        if row.place == len(journal):
            if entries:
                job.attempts = job.stalls = job.spared = job.alone = job.crowd = job.fatal = 0
            journal += entries
            job.story.live |= row.live
            for signal in row.taken:
                job.story.inbox.pop(signal, None)
        elif row.place > len(journal):
            refused.append(AppendRefusal(place, "behind", len(journal)))
        elif journal[row.place : row.place + len(entries)] != entries:
            refused.append(AppendRefusal(place, "torn", len(journal)))
    return refused


def fall_asleep(job: Any, row: SettleRow, now: int) -> bool:
    """Let a job sleep; return whether a signal wakes it at once."""
    job.note_first()
    job.attempts = job.stalls = job.spared = job.alone = job.crowd = job.fatal = 0
    if row.text and job.story.heard != int(row.text):
        job.state = "waiting"
        return True
    job.story.listens, job.has_begun = bool(row.text), True
    job.state = "waiting-children" if row.delay < 0 else "delayed"
    job.due = job.due if row.delay < 0 else now + row.delay
    return False


def check_told(model: Any, answer: TurnAnswer) -> None:
    """Each claim brings the journal and the inbox of its job, if it has any."""
    should: list[JournalRow] = []
    for claim in answer.claims:
        story = model.jobs[claim.id].story
        if story.journal or story.heard:
            told = next((each for each in answer.journals if each.id == claim.id), None)
            assert told is not None, f"the claim of {claim.id} brings no journal"
            assert dict(zip(told.signals[::2], told.signals[1::2], strict=True)) == story.inbox
            should.append(
                JournalRow(claim.id, len(story.journal), story.heard, story.journal[:500], told.signals)
            )
    assert sorted(answer.journals) == sorted(should), "what claims bring"


def check_stories(model: Any, values: dict[str, dict[str, Any]]) -> None:
    """All that jobs have recorded is there, and nothing else."""
    for kind in ("journal", "live", "inbox"):
        should = {job.id: stored for job in model.jobs.values() if (stored := job.story.stored()[kind])}
        assert values[kind] == should, f"the {kind} of jobs"


class JournalRules:
    """The calls around journals, for the state machine of jobs."""

    bench: Any
    store: Any
    model: Any
    leases: Any
    check: Any
    count: Any
    rows: Any
    woken: ClassVar[int] = 0
    """How many sleeping jobs a signal woke, in all examples."""
    appended: ClassVar[int] = 0

    @precondition(lambda self: self.leases)
    @rule(
        data=st.data(),
        worker=st.sampled_from(["w", "w", "w+", "x"]),
        behind=st.sampled_from([0, 0, 0, 0, 1, -1]),
        width=st.sampled_from([1, 1, 2, 0]),
        settles=st.booleans(),
    )
    def append(self: Any, data: st.DataObject, worker: str, behind: int, width: int, settles: bool) -> None:
        """Append to some jobs, mostly at the right place; maybe settle all in the same turn."""
        held = [(job.id, job.token) for job in self.model.held_by(worker.rstrip("+"))]
        leases = st.sampled_from([*self.leases[-4:], *held * 3])
        some = data.draw(st.lists(leases, min_size=1, max_size=3, unique_by=lambda each: each[0]))
        self.rows = [self._row(job, token, behind, width) for job, token in some]
        JournalRules.appended += len(held) > 0
        self._next_turn(
            worker,
            self._settle_all(worker.rstrip("+"), "completed", "1") if settles else (),
            want=0,
            appends=self.rows,
        )

    def _row(self, job: str, token: str, behind: int, width: int) -> Append:
        story = self.model.jobs[job].story if job in self.model.jobs else Story()
        self.count += width
        entries = [f"entry {self.count + n}" for n in range(width)]
        live = {"state": str(self.count)} if width != 1 else {}
        taken = list(story.inbox)[:1] if width else []
        return Append(job, token, max(0, len(story.journal) - behind), entries, live, taken)

    @precondition(lambda self: self.rows)
    @rule(worker=st.sampled_from(["w", "w+", "x"]))
    def append_again(self: Any, worker: str) -> None:
        """The same rows by another turn: the one that brought them was given up."""
        self._next_turn(worker, want=0, appends=self.rows)

    @precondition(lambda self: any(job.state == "active" for job in self.model.jobs.values()))
    @rule(
        data=st.data(),
        worker=st.sampled_from(["w", "w", "x"]),
        delay=st.sampled_from([-1, -1, 0, 500, 30_000]),
        want=st.sampled_from([0, 1000]),
    )
    def sleep(self: Any, data: st.DataObject, worker: str, delay: int, want: int) -> None:
        """All that a worker holds sleeps; it knows of all signals, of all but the last one, or listens to
        none.
        """
        rows: list[SettleRow] = []
        for job in self.model.held_by(worker):
            known = [str(job.story.heard), str(max(0, job.story.heard - 1)), *[""][: delay >= 0]]
            text = data.draw(st.sampled_from(known))
            rows.append(SettleRow(job.id, job.token, "suspended", "", text, delay))
        self._next_turn(worker, rows, want=want)

    @rule(
        data=st.data(),
        worker=st.sampled_from(["w", "w", "x"]),
        delay=st.sampled_from([-1, -1, 500]),
        signals=st.integers(0, 2),
        row=LONE,
    )
    def get_on(self: Any, data: st.DataObject, worker: str, delay: int, signals: int, row: AddRow) -> None:
        """A worker claims all that there is, its jobs append and sleep, and some are signalled."""
        self.add("em", [row])
        self._next_turn(worker)
        if not self.model.held_by(worker):
            return
        self.append(data, worker, behind=0, width=1, settles=False)
        self.sleep(data, worker, delay, want=0)
        for _ in range(signals):
            self.signal(data, repeats=False)
        self._next_turn(worker)

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), repeats=st.booleans())
    def signal(self: Any, data: st.DataObject, repeats: bool) -> None:
        """Signal a job, mostly one that sleeps."""
        asleep = [job.id for job in self.model.jobs.values() if job.story.listens]
        job_id = data.draw(st.sampled_from(["none", *list(self.model.jobs)[-4:], *asleep * 4]))
        self._send(job_id, repeats)

    def wake_all(self: Any) -> None:
        for job in [job for job in self.model.jobs.values() if job.story.listens]:
            self._send(job.id, repeats=False)

    def _send(self: Any, job_id: str, repeats: bool) -> None:
        self.count += 1
        for _ in range(1 + repeats):
            word = self.bench.run(
                self.store.journals.signal,
                job_id,
                signal=f"s{self.count}",
                name="go",
                payload="now",
                deadline=10.0**12,
                now=self.model.now,
            )
            assert word == self._signal(job_id, f"s{self.count}")
            self.check()

    def _signal(self, job_id: str, signal: str) -> str:
        job = self.model.jobs.get(job_id)
        if job is None:
            return "unknown"
        taken = job.story.live.get("#taken", "")
        if signal in taken.split():
            return "sent"
        if not job.is_open:
            return "ended"
        job.story.live["#taken"] = f"{signal} {taken}"
        job.story.heard += 1
        job.story.inbox[signal] = f"{job.story.heard} go now"
        if job.story.listens and job.state in ("delayed", "waiting-children"):
            job.story.listens = False
            JournalRules.woken += 1
            job.due = self.model.now if job.state == "delayed" else job.due
            self.model.place(job)
        return "sent"

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), progress=st.sampled_from(["1", '"half"']))
    def note(self: Any, data: st.DataObject, progress: str) -> None:
        notes = [NoteRow(job, token, progress) for job, token in self.some_leases(data.draw)]
        assert self.bench.run(self.store.note, notes) == self.model.note(notes)
        self.check()
