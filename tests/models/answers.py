"""Compares the answer to each cancel with what became of its jobs, whatever other calls came in between.

Three rules hold without a model. After True (`ended`, `asked`) a job of the request ends as cancelled.
False (`over`) is never the answer to a request that ended the job itself. A repeated request gets the
same answer, unless another request ended the job or the record is gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from models.snapshots import ENDED, Snapshot

from eventbus.store.scripting.script_rows import CancelRow

__all__ = ["Answers"]

_YES = ("ended", "asked")


class Answers:
    """All cancels of one shard."""

    def __init__(self) -> None:
        self.rows: list[CancelRow] = []
        """The requests that were sent, each listed once."""
        self._words: dict[str, dict[str, str]] = {}
        """call -> job -> the first answer."""
        self._asked: dict[str, dict[str, list[str]]] = {}
        """call -> job -> the jobs that the request concerned when it was answered first."""

    def note(self, rows: Sequence[CancelRow], words: Sequence[str], now: Snapshot) -> None:
        """Note that the server answered `words`; `now` is its content after the call."""
        for row, word in zip(rows, words, strict=True):
            known = self._words.setdefault(row.call, {})
            if row.id not in known:
                known[row.id] = word
                self._asked.setdefault(row.call, {})[row.id] = _targets(row, now)
                self.rows.append(row)
            self._check_repeat(row, known[row.id], word, now)

    def _check_repeat(self, row: CancelRow, first: str, word: str, now: Snapshot) -> None:
        if "unknown" in (word, first) or (first in _YES) == (word in _YES):
            return
        assert word == "over", f"{row.id} was {first}, and is {word} now"
        assert not _made_by(row, now), f"{row.id} was cancelled by {row.call}, which hears that it was not"

    def check(self, now: Snapshot) -> None:
        """Compare every answer with the records."""
        for row in self.rows:
            word = self._words[row.call][row.id]
            states = [now.jobs.get(each, {}).get("state") for each in self._asked[row.call][row.id]]
            if word in _YES and states and all(state in ENDED for state in states):  # and none is forgotten
                assert "cancelled" in states, f"{row.id} was {word}, and ended {states}"
            if word == "over":
                assert not _made_by(row, now), f"{row.id} was cancelled by {row.call}, which heard `over`"


def _targets(row: CancelRow, now: Snapshot) -> list[str]:
    return [each for each in now.jobs if each == row.id or each.startswith(f"{row.id}@")]


def _made_by(row: CancelRow, now: Snapshot) -> bool:
    """Tell whether this very request ended one of its jobs, or is stopping it."""
    records = [now.jobs[each] for each in _targets(row, now)]
    return any(row.call in (each.get("stopper"), each.get("cancel")) for each in records)
