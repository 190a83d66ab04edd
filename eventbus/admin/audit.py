"""The audit: who did what, or was refused, as the server keeps it.

An action is noted before it is done, and its outcome replaces that entry. So an entry `begun` that stays was
cut off: nobody knows whether it was done. Refusals are kept apart and counted, so that they push no action
out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from eventbus.admin.namespace import Namespace, OldName
from eventbus.errors import DefinitionError
from eventbus.model.names import shown
from eventbus.store.calls.audit_store import AuditRow

_LIMIT = 1000
_PAGE = 500
_CURSOR = re.compile(r"\d{1,20}-\d{1,20}")
_FIELDS = ("actor", "address", "action", "kind", "target", "queue", "outcome", "reason", "detail", "request")


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One action that somebody asked for. `at_ms` is when it was over, a Unix time in ms of the server's
    clock.

    `outcome` is changed, unchanged, refused, failed, or begun: cut off, so that nobody knows. `reason` is the
    actor's, `detail` says what was done, why it was refused, or what failed. `times` is how often the actor
    was refused this action from this address within the hour; the entry has the last target.
    """

    id: str
    at_ms: int
    actor: str = ""
    address: str = ""
    action: str = ""
    kind: str = ""
    target: str = ""
    queue: str = ""
    outcome: str = ""
    reason: str = ""
    detail: str = ""
    request: str = ""
    times: int = 1


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of entries, newest first. `cursor` asks for the next page; None on the last page."""

    entries: list[AuditEntry]
    cursor: str | None


class Audit(Namespace):
    """The audit: `list` what was done, or `note` an action."""

    async def note(self, fields: Mapping[str, str], *, replaced: str = "") -> str:
        """Append an entry, and return its id; in the place of the entry with the id `replaced`, if there is
        one.
        """
        store, deadline = self._begin("note an action")
        return await store.controls.audit.append(fields, replaced=replaced, deadline=deadline)

    async def list(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        target: str | None = None,
        outcome: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> AuditPage:
        """Return a page of the audit, newest first: of one actor, action, target (an id or a queue) or
        outcome.

        It has the newest 10,000 actions, and the newest 1,000 refusals, of the last 90 days.
        """
        if not 0 < limit <= _LIMIT:
            raise DefinitionError(f"expected limit to be 1 to {_LIMIT}, got: {shown(limit)}")
        if cursor is not None and not _CURSOR.fullmatch(cursor):
            raise DefinitionError(f"expected the cursor of a page of the audit, got: {shown(cursor)}")
        asked = {"actor": actor, "action": action, "outcome": outcome}
        store, deadline = self._begin("read the audit")
        found, before = list[AuditEntry](), cursor or ""
        while True:
            rows = await store.controls.audit.read(_PAGE, before=before, deadline=deadline)
            for row in rows:
                if len(found) == limit:
                    return AuditPage(entries=found, cursor=before)
                before, entry = row.id, _entry(row)
                is_meant = all(value in (None, getattr(entry, name)) for name, value in asked.items())
                if is_meant and target in (None, entry.target, entry.queue):
                    found.append(entry)
            if len(rows) < _PAGE:
                return AuditPage(entries=found, cursor=None)

    __call__: Final = OldName(list)  # noqa: A003  (the method)


def _entry(row: AuditRow) -> AuditEntry:
    told = {name: row.fields.get(name, "") for name in _FIELDS}
    times = int(row.fields.get("times", "1"))
    if times > 1:
        told["detail"] = f"{told['detail']} ({times:,} times)".lstrip()
    return AuditEntry(id=row.id, at_ms=row.at_ms, times=times, **told)
