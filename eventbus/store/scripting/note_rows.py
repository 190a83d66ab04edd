"""Rows of the script `note`, beside the progress of a job (`script_rows.NoteRow`)."""

from __future__ import annotations

from typing import NamedTuple


class LineRow(NamedTuple):
    """A log line that a job keeps, under its lease. `age` is in ms."""

    id: str
    token: str
    number: int
    age: int
    text: str
