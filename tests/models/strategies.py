"""Hypothesis strategies: what emitters send with an add, and how handlers end."""

from __future__ import annotations

from hypothesis import strategies as st

from eventbus.store.scripting.script_rows import AddRow

__all__ = ["DELAYS", "KEEPS", "LEASE", "LONE", "MANY", "PLAIN", "ROWS", "START", "STATES", "TEXTS"]

START = 1_800_000_000_000
LEASE = 10_000
_BODIES = st.sampled_from(['{"d":1}', "x" * 100])
STATES = st.sampled_from(["completed", "completed", "failed", "delayed", "waiting", "parked"])
DELAYS = st.sampled_from([0, 500, 30_000])
TEXTS = st.sampled_from(["1", '"' + "x" * 100 + '"', '"' + "x" * 9000 + '"'])
"""Outcomes that fit into a field of the record, that need a key of their own, and that no reply can carry."""

KEEPS = st.sampled_from([*[""] * 9, "0,", "0,0", "30000,200000", ",0", "500000,"])
"""How long jobs are kept: no time, shorter and longer than their queues keep them."""

LONE = st.builds(
    AddRow,
    id=st.just(""),
    limit=st.just(""),
    queue=st.sampled_from([1, 1, 1, 1, 2]),
    body=_BODIES,
    **dict.fromkeys(("key", "print", "delay", "due", "span", "keep"), st.just("")),
    **dict.fromkeys(("priority", "lifo", "meeting"), st.just(0)),
    reply=st.sampled_from([1, 1, 0]),
)

"""An emission without options: it takes a shorter path."""

PLAIN = st.lists(LONE, min_size=1, max_size=4)
"""Some of them."""

MANY = st.lists(LONE, min_size=9, max_size=9)
"""So many that suspects among them have caps over 1."""

ROWS = st.lists(
    st.builds(
        AddRow,
        id=st.just(""),
        limit=st.sampled_from(["", "", "", "p", "q"]),
        queue=st.sampled_from([1, 1, 2]),
        body=_BODIES,
        key=st.sampled_from(["", "", "k", "l"]),
        print=st.sampled_from(["p", "q"]),
        delay=st.sampled_from([*[""] * 9, 0, 500, LEASE, 70_000]),
        due=st.sampled_from([*[""] * 6, START, START + 50_000]),
        priority=st.sampled_from([0, 0, -1, 1]),
        lifo=st.sampled_from([0, 0, 0, 1]),
        reply=st.sampled_from([1, 1, 0]),
        meeting=st.sampled_from([0, 0, 0, 1, 2]),
        span=st.just(""),
        keep=KEEPS,
    ),
    min_size=1,
    max_size=4,
)
"""Emissions without ids. A queue is named by its place."""
