"""The model of stalls: who is blamed for the end of a worker, which jobs are suspects, and which of them may
be claimed.

`lib/blame.lua` and `lib/suspects.lua` say the rules; here they stand once more, for the property models to
compare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from models.job_model_values import Job, Stalled, Turn
from models.trees.tree_model_values import Node

from eventbus.store.scripting.script_rows import TurnAnswer, WatchRow

__all__ = ["Blame", "Blames", "check_suspects", "is_spent", "note_rooms", "note_stall", "take_stalled"]

_BEAT = 3  # tenths of a lease


@dataclass(frozen=True)
class Blame:
    """What the end of one worker is blamed on: so many jobs, only those that were watched or all."""

    end: int
    heard: int
    beat: int
    count: int
    is_watched: bool
    is_alone: bool
    """Whether the worker ran nothing else."""

    def names(self, job: Stalled) -> bool:
        return not self.is_watched or _is_watched(job, self.heard)


class Blames:
    """The blames of workers that are being rescued, as the first call of each counted them."""

    def __init__(self) -> None:
        self._kept: dict[str, Blame] = {}

    def find(self, worker: str, end: int, lease: int, held: Sequence[Stalled]) -> Blame:
        kept = self._kept.get(worker)
        if kept is None or kept.end != end:
            watched = sum(_is_watched(job, end - lease) for job in held)
            kept = Blame(
                end, end - lease, lease * _BEAT // 10, watched or len(held), watched > 0, len(held) == 1
            )
            self._kept[worker] = kept
        return kept


def take_stalled(
    leases: dict[str, int], now: int, lease: int, nodes: Iterable[Node]
) -> list[tuple[Node, Blame]]:
    """Take the workers away whose leases ended; return what each held, the longest held first, with its
    blame.
    """
    stalled: list[tuple[Node, Blame]] = []
    for end, worker in sorted((end, worker) for worker, end in leases.items() if end <= now):
        del leases[worker]
        held = [each for each in nodes if each.is_held_by(worker)]
        blame = Blames().find(worker, end, lease, held)
        stalled += [(node, blame) for node in sorted(held, key=lambda node: (node.claimed, node.id))]
    return stalled


def _is_watched(job: Stalled, heard: int) -> bool:
    return job.is_suspect and heard - job.claimed[0] <= job.fatal


def note_stall(job: Stalled, blame: Blame | None) -> bool:
    """Count a stall; return whether the job is blamed for it."""
    is_blamed = blame is not None and blame.names(job)
    job.token, job.stalls, job.spared = "", job.stalls + 1, job.spared + (not is_blamed)
    job.has_begun = True
    job.note_first()
    if blame is not None and is_blamed and blame.count == 1 and not blame.is_alone:
        job.alone += 1
    if blame is not None and is_blamed and job.is_suspect:
        job.crowd, job.fatal = max(1, blame.count // 4), max(0, blame.heard - job.claimed[0]) + blame.beat
    return is_blamed


def is_spent(job: Stalled, blame: Blame, max_stalls: int) -> bool:
    """Return whether a job fails that was blamed: it ran alone, by itself a second time, or far too often."""
    blames = job.stalls - job.spared
    is_proven = blame.is_alone or job.alone > 1
    return blames > 4 * max_stalls or (blames > max_stalls and blame.count == 1 and is_proven)


def note_rooms(
    turn: Turn, answer: TurnAnswer, jobs: Mapping[str, Job], waiting: Callable[[str], list[Job]], until: int
) -> None:
    """Note who makes room for the suspects that an answer met; what was claimed needs none any more."""
    for row in answer.watches:
        jobs[row.id].room = ""
    can_make = turn.watched == 0 and not answer.watches
    for place in answer.lonely if can_make else ():
        for job in [job for job in waiting(turn.queues[place - 1][0]) if job.is_suspect][:1]:
            job.room = f"{until} {turn.worker.rstrip('+')}"


def _is_kept(job: Job, turn: Turn, now: int) -> bool:
    """Return whether another worker makes room for it."""
    until, _, worker = job.room.partition(" ")
    return job.room != "" and int(until) > now and worker != turn.worker.rstrip("+")


def check_suspects(
    turn: Turn, answer: TurnAnswer, chosen: Sequence[Job], left: dict[str, list[Job]], now: int
) -> None:
    """Check the suspects of a turn. `left` has those that wait behind it in the queues that it may claim
    from.
    """
    suspects = [job for job in chosen if job.is_suspect]
    caps = [job.crowd for job in suspects]
    assert list(answer.watches) == [WatchRow(job.id, job.crowd, job.fatal) for job in suspects]
    assert not suspects or len(suspects) <= turn.suspects, "more suspects than there is room for"
    assert not suspects or turn.watched + len(suspects) <= min(caps), "more are watched than the smallest cap"
    if 1 in caps:
        assert (turn.is_alone, len(chosen)) == (True, 1), "a suspect with a cap of 1 is alone"
    names = [name for name, _ in turn.queues]
    lonely = {names[place - 1] for place in answer.lonely}
    for name in lonely:
        assert left[name][0].crowd == 1, "who needs no room"
        assert not _is_kept(left[name][0], turn, now), "another worker makes room"
    is_full = len(chosen) >= turn.want or sum(len(job.body) for job in chosen) >= turn.max_bytes
    if is_full or turn.suspects <= len(suspects) or turn.watched + len(suspects) >= min(caps, default=1000):
        return
    quotas, took = dict(turn.queues), Counter(job.queue for job in chosen)
    for name, jobs in left.items():
        if took[name] >= quotas[name]:
            continue
        if jobs and jobs[0].crowd == 1:
            assert _is_kept(jobs[0], turn, now) or name in lonely, f"{name}: nobody makes room"
        elif jobs:
            assert turn.watched + len(suspects) + 1 > jobs[0].crowd, f"{name}: a suspect was left that fits"
