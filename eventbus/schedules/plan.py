"""A plan: what a schedule is, as it is kept in the server, and the job of a slot.

A plan has all that firing needs, also the payload, so any worker can fire it, whether it knows the event or
not.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from eventbus.errors import DefinitionError
from eventbus.model.message import NOT_HIDDEN, EventMessage, encode_message
from eventbus.model.names import shown
from eventbus.schedules.timetable import Timetable
from eventbus.store.keys import key_digest

Overlap: TypeAlias = Literal["skip", "queue", "cancel", "allow"]
CatchUp: TypeAlias = Literal["skip", "once", "all"]
OnFailure: TypeAlias = Literal["go on", "pause"]

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")
_ID_LENGTH = 128


class RootForm(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the job of a slot is the root of a tree: its timeout, ms, and the fields of its body that the slot
    decides.
    """

    meta: str
    """The field of the meta, with the schedule and the slot."""
    key: str
    chain: str
    """The field of the correlation id, which is the id of the job."""
    timeout: int = 0
    traceparent: str = ""
    """The fields of the trace around the call that made the schedule; `''` for a body without them."""
    tracestate: str = ""
    baggage: str = ""


class ScheduledRoot(msgspec.Struct, frozen=True):
    """What a schedule adds at each slot, for systems built on top: the root of a tree, without members.

    The id of a root is `<name>~` and 20 hex digits. `body` is a JSON object, which gets the fields of `form`.
    """

    name: str
    queue: str
    body: bytes
    form: RootForm


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a schedule emits, when, and what becomes of slots that overlap or were missed. Times are ms."""

    event: str
    queue: str
    table: Timetable
    payload: msgspec.Raw = msgspec.Raw(b"null")
    has_default: bool = True
    overlap: Overlap = "skip"
    catch_up: CatchUp = "once"
    window: int = 86_400_000
    on_failure: OnFailure = "go on"
    limit: int = 0
    limit_key: str = ""
    """The digest of the limit key of `payload`, for an event that has a limit by key."""
    hidden: msgspec.Raw = NOT_HIDDEN
    """Where `payload` is sensitive, for the messages (`EventMessage`)."""
    root: RootForm | None = None
    """If the jobs are roots of trees; then `event` is the name in their ids, and `payload` their body."""
    meta: dict[str, Any] | None = None
    """The meta of each job, beside `schedule` and `slot`."""
    correlation_id: str = ""
    """The chain that the schedule was made in; empty: each job begins one of its own."""
    traceparent: str = ""
    tracestate: str = ""
    baggage: str = ""

    def check(self) -> None:
        """Raise DefinitionError for a plan that could not fire."""
        self.table.check()
        for field, value, kinds in (
            ("overlap", self.overlap, Overlap),
            ("catch_up", self.catch_up, CatchUp),
            ("on_failure", self.on_failure, OnFailure),
        ):
            if value not in get_args(kinds):
                expected = ", ".join(map(repr, get_args(kinds)))
                raise DefinitionError(f"expected {field} to be one of {expected}, got: {shown(value)}")
        if (
            not isinstance(self.limit, int)  # pyright: ignore[reportUnnecessaryIsInstance]
            or isinstance(self.limit, bool)
            or self.limit < 0
        ):
            raise DefinitionError(f"expected limit to be a whole number from 1, got: {shown(self.limit)}")

    def encode(self) -> str:
        """Return the plan as JSON text."""
        return msgspec.json.encode(self).decode()

    def digest(self) -> str:
        """Return what tells two plans apart. Who made it, by correlation id and trace, does not."""
        plain = msgspec.structs.replace(self, correlation_id="", traceparent="", tracestate="", baggage="")
        return hashlib.sha256(msgspec.json.encode(plain, order="deterministic")).hexdigest()[:32]

    def body(self, schedule: str, slot: int, job: str) -> str:
        """Return the body of the job of a slot. Its meta names the schedule and the slot, in ms."""
        meta, key = {**(self.meta or {}), "schedule": schedule, "slot": slot}, slot_key(schedule, slot)
        if self.root is None:
            message = EventMessage(
                payload=self.payload,
                meta=meta,
                correlation_id=self.correlation_id,
                traceparent=self.traceparent,
                tracestate=self.tracestate,
                baggage=self.baggage,
                key=key,
                hidden=self.hidden,
            )
            return encode_message(message)
        known: dict[str, msgspec.Raw] = msgspec.json.decode(self.payload, type=dict[str, msgspec.Raw])
        given = {self.root.meta: meta, self.root.key: key, self.root.chain: self.correlation_id or job}
        for field in ("traceparent", "tracestate", "baggage"):
            name, value = getattr(self.root, field), getattr(self, field)
            if name and value:
                given[name] = value
        return msgspec.json.encode(known | given).decode()

    def job(self, schedule: str, gen: str, slot: int, more: str = "") -> str:
        """Return the id of the job of a slot. `more` tells a triggered one from it."""
        name = f"{schedule}~{gen}.{slot}" + (f".{more}" if more else "")
        if self.root is None:
            return name
        return f"{self.event}~{hashlib.blake2b(name.encode(), digest_size=10).hexdigest()}"


decode_plan: Callable[[str | bytes], Plan] = msgspec.json.Decoder(Plan).decode


def check_id(given: object) -> str:
    """Return `given` if it can name a schedule. Raises DefinitionError otherwise."""
    if isinstance(given, str) and len(given) <= _ID_LENGTH and _ID.fullmatch(given):
        return given
    raise DefinitionError(
        f"expected id to be 1 to {_ID_LENGTH} letters, digits, '_', '.', ':' and '-', "
        f"beginning with a letter or digit, got: {shown(given)}"
    )


def slot_key(schedule: str, slot: int) -> str:
    """Return the idempotency key of a slot, as the handler sees it."""
    return f"sched:{schedule}:{slot}"


def slot_digest(schedule: str, slot: int) -> str:
    """Return what stands for the key of a slot in the server."""
    return key_digest(slot_key(schedule, slot))
