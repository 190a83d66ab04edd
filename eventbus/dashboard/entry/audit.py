"""The audit: one log event for each action that somebody asked for, also for those that were refused.

It holds who, from which address, what, about which target, why, and how it ended; never a payload, a cookie or a token.
"""

from __future__ import annotations

from typing import Literal

from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.entry.rights import Target
from eventbus.telemetry.logging import get_logger

__all__ = ["Outcome", "note_action"]

Outcome = Literal["changed", "unchanged", "refused", "failed"]

_log = get_logger("eventbus.dashboard")


def note_action(
    caller: Caller, action: str, target: Target, *, outcome: Outcome, reason: str = "", detail: str = ""
) -> None:
    """Log an action. `reason` is the actor's own, `detail` says why it was refused or failed."""
    _log.info(
        "dashboard action",
        actor=caller.actor.name,
        address=caller.address,
        action=action,
        kind=target.kind,
        target=target.id,
        queue=target.event,
        outcome=outcome,
        reason=reason,
        detail=detail,
        request=caller.request_id,
    )
