"""The kinds of seeds: each has faults of its own, and demands of its own."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["KINDS", "Kind", "kind_of"]


class Kind(NamedTuple):
    """What may happen in a simulation."""

    faults: tuple[str, ...]
    """Faults that come one after the other, besides those of single connections."""
    kills: bool
    """Whether workers are killed, about one each second."""
    is_exact: bool
    """Whether each job must run exactly once for each attempt, without a stall."""
    fails_over: bool
    """Whether the server falls back to an older state: what it acknowledged meanwhile may be lost."""


_CONNECTIONS = ("cut", "flush", "mute", "restart", "refuse")
_ALL = (*_CONNECTIONS, "stop", "pause", "skew", "server skew")

KINDS = {
    "calm": Kind(_CONNECTIONS, kills=False, is_exact=True, fails_over=False),
    "wild": Kind(_ALL, kills=True, is_exact=False, fails_over=False),
    "slow": Kind(_ALL, kills=False, is_exact=False, fails_over=False),
    "failover": Kind((*_ALL, *("failover",) * 4), kills=False, is_exact=False, fails_over=True),
    "failover with kills": Kind((*_ALL, *("failover",) * 4), kills=True, is_exact=False, fails_over=True),
}
"""Calm: only connections fail, and the server for a moment. Wild: all faults. Slow: all, but nobody is
killed, because the rescue of a dead worker's jobs hides what else was forgotten. Failover: the server falls
back.
"""

_TURNS = ("calm", "wild", "calm", "slow", "failover", "calm", "wild", "failover with kills")


def kind_of(seed: int) -> str:
    """Return the kind of a seed."""
    return _TURNS[seed % len(_TURNS)]
