"""Chance: the only module of the packages that draws random numbers for ids and pauses.

Not here: what must stay secret (sessions, tokens of the dashboard) takes `secrets`, and a durable function
has random numbers of its own, which a replay repeats.

What must always hold: callers write `chance.token(...)` and never import the function itself, so that a test
repeats a run by one replacement, as with `clock`.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable

token: Callable[[int], str] = secrets.token_hex
"""Return so many random bytes in hexadecimal digits."""

jitter: Callable[[], float] = random.random
"""Return a number from 0 up to 1, by which processes do the same thing at different times."""
