"""Steps of which nobody knows what they did: they were left in the middle, and did not run again.

Always holds: such a step is reported as `unknown`, whatever the engine calls the end of its job: failed by
its rescue, or cancelled by the stop of its flow before it ran again.
"""

from __future__ import annotations

import msgspec

from eventbus.lowlevel import Failure

__all__ = ["is_unknown", "unknown_text"]

_encode = msgspec.json.Encoder().encode


def is_unknown(state: str, stalls: int, text: str) -> bool:
    """Say whether a job that ended in `state` after so many stalls may have done what is not recorded."""
    return (state == "cancelled" and stalls > 0) or (state == "failed" and _stalls_in(text) > 0)


def unknown_text(stalls: int, text: str) -> str:
    """Return the record of the error that says so, as JSON text."""
    if _stalls_in(text):
        return text
    why = "it was left in the middle (its worker died, or it ignores its cancellation) when the flow was stopped"
    return _encode(Failure("StalledError", why, stalls=max(stalls, 1))).decode()


def _stalls_in(text: str) -> int:
    try:
        return msgspec.json.decode(text, type=Failure).stalls
    except (msgspec.MsgspecError, UnicodeError):
        return 0
