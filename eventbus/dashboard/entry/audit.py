"""The audit: each action that somebody asked for, also those that were refused, in the server and in the log.

    begin (`begun`, in the server) -> the action -> end (its outcome takes the place of that entry, and is
    logged)

It holds who, from which address, what, about which target, why, and how it ended; never a payload, a cookie
or a token. What must always hold: an action is not done before its entry stands in the server, unless the
server refuses the entry; that is logged.
"""

from __future__ import annotations

from typing import Literal

from eventbus.dashboard import timeouts
from eventbus.dashboard.entry.gate import Caller
from eventbus.dashboard.entry.rights import Target
from eventbus.errors import EventBusError
from eventbus.provider import EventProvider
from eventbus.telemetry.logging import get_logger

Outcome = Literal["changed", "unchanged", "refused", "failed"]

_log = get_logger("eventbus.dashboard")


class AuditTrail:
    """Writes the audit of one action."""

    def __init__(
        self, provider: EventProvider, caller: Caller, action: str, target: Target, *, reason: str
    ) -> None:
        """`reason` is the actor's own."""
        self._provider = provider
        self._begun = ""
        self._fields = {
            "actor": caller.actor.name,
            "address": caller.address,
            "action": action,
            "kind": target.kind,
            "target": target.id,
            "queue": target.event,
            "reason": reason,
            "request": caller.request_id,
        }

    async def begin(self) -> None:
        """Note that the action is about to be done."""
        self._begun = await self._keep({"outcome": "begun"})

    async def end(self, outcome: Outcome, detail: str = "") -> None:
        """Note how it ended; `detail` says what was done, why it was refused, or what failed."""
        told = self._fields
        _log.info(
            "dashboard action",
            actor=told["actor"],
            address=told["address"],
            action=told["action"],
            kind=told["kind"],
            target=told["target"],
            queue=told["queue"],
            outcome=outcome,
            reason=told["reason"],
            detail=detail,
            request=told["request"],
        )
        await self._keep({"outcome": outcome, "detail": detail})

    async def _keep(self, told: dict[str, str]) -> str:
        fields = {name: value for name, value in {**self._fields, **told}.items() if value}
        try:
            return await self._provider.inspector.within(timeouts.READ).audit.note(
                fields, replaced=self._begun
            )
        except EventBusError as error:
            _log.error("audit not kept by the server", action=self._fields["action"], error=str(error))
            return ""
