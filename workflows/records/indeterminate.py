"""Steps whose effect is indeterminate: they were interrupted while running, and did not run again.

What must always hold: such a step is reported as `unknown`, whatever state its job ended in: failed by the
rescue, or cancelled because its flow stopped before it ran again.
"""

from __future__ import annotations

import msgspec

from eventbus.lowlevel import Failure
from workflows.records.records import stalls_in

_encode = msgspec.json.Encoder().encode


def is_unknown(state: str, stalls: int, text: str) -> bool:
    """Tell from a job's final state, stalls and error text whether it may have had an unrecorded effect."""
    return (state == "cancelled" and stalls > 0) or (state == "failed" and stalls_in(text) > 0)


def unknown_text(stalls: int, text: str) -> str:
    """Return the error record of such a step, as JSON text: its own `text` if that is one already."""
    if stalls_in(text):
        return text
    why = (
        "it was left in the middle (its worker died, or it ignores its cancellation) "
        "when the flow was stopped"
    )
    return _encode(Failure("StalledError", why, stalls=max(stalls, 1))).decode()
