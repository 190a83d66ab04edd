"""The bounds that hold in several places: of calls, of answers, and of what the server keeps.

Each stands here once. Python imports it by its name. A Lua file writes `bounds.NAME`, and gets the number
where its text is read (`write_bounds`), so a script pays nothing for it. A number that has one place stays
there.

What must always hold: the texts of scripts, and so their digests and the name of the library, change with a
bound; so releases with other bounds share no script.
"""

from __future__ import annotations

import re

from eventbus.model.windows import LONGEST_HOURS, LONGEST_MINUTES
from eventbus.telemetry.change import SHOWN_BYTES

CALL_ROWS = 200
"""Rows of one call that cost the server little each: jobs, settles, appends, queues that are read.

The server serves nobody else while a script runs, so a call has to be short.
"""

HEAVY_ROWS = 100
"""Rows of one call that cost the server more than a plain job: members and edges of trees, jobs that are
retried, removed, promoted or swept, schedules that fire.
"""

CALL_QUEUES = 50
"""Queues or workers of one call that reads or sweeps several things of each: so no call holds others up for a
millisecond.
"""

CALL_BYTES = 1 << 20
"""Bytes of bodies, outcomes or texts of one call, and of those that a script reads to answer it.

The last text may go over it. The server copies them while it serves nobody else.
"""

PAGE_JOBS = 1000
"""Jobs that one call looks at without changing them, which costs less than a change of so many."""

PAGE_BYTES = 4 << 20
"""Bytes of outcomes in one answer: they are read and sent, and not stored, so more than `CALL_BYTES`."""

CALL_HOLDS = 20_000
"""Holds (`hold.lua`) that one call reads: a hold is a few bytes, and those of a worker are one key."""

SEARCHED = 100_000
"""Entries of a list in which one entry is looked for. In a longer list it counts as not
found, because a call that passes more would hold others up.
"""

COMMAND_VALUES = 1000
"""Values of one command in a script: Lua's stack, on which they are put, has room for some thousands."""

LOG_ERRORS = 50
"""The newest failures and stalls that the log of one job has."""

KEPT_LINES = 100
"""The newest lines that a job keeps, and so the most that are worth sending."""

WHY_BYTES = 64
"""Bytes of the reason why a job is parked or set apart: a field beside the record, which lists show."""

TOLD_BYTES = SHOWN_BYTES
"""Bytes of a text in a change that watchers are told, whether the server or a worker tells it."""

REASON_CHARACTERS = 512
"""Characters of a text that an operator gives: who did something, and why."""

HANDED_MS = 1500
"""Milliseconds within which a worker confirms a job that was handed to it. It reads of it at once; an event
loop that is blocked for longer would hold the job up.
"""

MESSAGES_MS = 120_000
"""Milliseconds that wakes of a pool and messages to a worker stay behind the last one: whoever reads none
for two minutes is gone.
"""

REPLIES_MS = 600_000
"""Milliseconds that the reply stream of an emitter lives after it was attended last: ten minutes, in which an
emitter that hangs may come back.
"""

MINUTE_CHUNKS = int(LONGEST_MINUTES) // 3600 + 1
"""Chunks of the history by minute, each of an hour, in which the longest window may have a part."""

HOUR_CHUNKS = int(LONGEST_HOURS) // 86_400 + 1
"""Chunks of the history by hour, each of a day, in which the longest window may have a part."""

_IN_LUA = re.compile(r"\bbounds\.([A-Z_]+)\b")


def write_bounds(text: str) -> str:
    """Return a Lua text with the numbers of the bounds that it names. Raises KeyError for an unknown name."""
    return _IN_LUA.sub(lambda named: str(globals()[named[1]]), text)
