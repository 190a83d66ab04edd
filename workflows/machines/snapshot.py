"""The snapshot of a machine: what it is between two moves, as live texts of its flow's root job.

What must always hold: the texts of one move are written by one append, with its entry; whoever reads them
together sees one move. A reader ignores fields that it does not know, because releases may differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from eventbus import StoreCorrupt

MACHINE, STATE, CHILDREN, ACCEPTS, DOUBTS = "machine", "state", "children", "accepts", "doubts"

NAMES = (MACHINE, STATE, CHILDREN, ACCEPTS, DOUBTS)
"""The texts that an activation begins with."""

HISTORY = 100
"""The entries that the journal of a machine keeps, the newest ones."""

_DOCUMENT, _UNDO = "doc/", "undo/"

NOTHING = msgspec.Raw()
"""No JSON value. As the default of a field it is left out, but only this very object is."""


class Trouble(
    msgspec.Struct,
    omit_defaults=True,
    rename={
        "transition": "n",
        "origin": "g",
        "attempts": "a",
        "error": "e",
        "due_ms": "w",
        "payload": "r",
        "signal": "s",
        "chosen": "i",
    },
):
    """What failed last, since the last ordinary move. `origin` is the place where that was.

    `due_ms` is when it is tried again; 0: it failed for good. `payload` is that of its trigger, `signal` the
    id of that while the inbox still has it, and `chosen` the one that its sender chose, if so.
    """

    transition: str
    origin: str
    attempts: int = 0
    error: msgspec.Raw = NOTHING
    due_ms: int = 0
    payload: msgspec.Raw = NOTHING
    signal: str = ""
    chosen: str = ""

    @property
    def failure(self) -> str:
        """The record of the error, as JSON text."""
        return bytes(self.error).decode()

    @property
    def is_over(self) -> bool:
        """Whether nobody tries it again by itself."""
        return not self.due_ms


class Awaited(
    msgspec.Struct,
    omit_defaults=True,
    rename={"id": "j", "workflow": "n", "given": "i", "version": "v", "is_heard": "h"},
):
    """A child that the machine has started: the id of its flow, the workflow, its version and its input.

    `is_heard`: it has ended, and a transition with `after` failed for good when it heard of that. So it is
    awaited until a move starts other children.
    """

    id: str
    workflow: str
    given: msgspec.Raw
    version: str = ""
    is_heard: bool = False


class Obligation(
    msgspec.Struct,
    omit_defaults=True,
    rename={"transition": "n", "move": "c", "is_done": "d", "error": "e", "traceparent": "h"},
):
    """A move whose transition has a rollback. Once that has run `is_done` is true, and `error` is why it
    failed, if so.
    """

    transition: str
    move: int
    is_done: bool = False
    error: msgspec.Raw = NOTHING
    traceparent: str = ""

    @property
    def name(self) -> str:
        """The live text that has it."""
        return f"{_UNDO}{self.move}"

    @property
    def path(self) -> str:
        """Its name in reports."""
        return f"{self.transition}@{self.move}"


class Snapshot(
    msgspec.Struct,
    omit_defaults=True,
    rename={
        "place": "p",
        "moves": "c",
        "entered_ms": "t",
        "trouble": "e",
        "run": "x",
        "result": "r",
        "due_ms": "w",
        "owed": "o",
    },
):
    """Where a machine stands. `run` is the run of the flow that wrote it; `result` is that of the flow, at
    END.

    `due_ms` is when the first of its delayed transitions is due here, for people; workers ask their
    definition. `owed` counts the moves that have a rollback.
    """

    place: str
    moves: int = 0
    entered_ms: int = 0
    trouble: Trouble | None = None
    run: int = 1
    result: msgspec.Raw = NOTHING
    due_ms: int = 0
    owed: int = 0

    @property
    def stands(self) -> bool:
        """Whether a transition failed for good at this place, so that none fires by itself."""
        return self.trouble is not None and self.trouble.is_over and self.trouble.origin == self.place


_encode = msgspec.json.Encoder().encode
_decode_snapshot = msgspec.json.Decoder(Snapshot).decode
_decode_children = msgspec.json.Decoder(list[Awaited]).decode
_decode_undo = msgspec.json.Decoder(Obligation).decode
_decode_doubts = msgspec.json.Decoder(list[Obligation]).decode


def write_snapshot(snapshot: Snapshot) -> str:
    """Return a snapshot as JSON text."""
    return _encode(snapshot).decode()


def read_snapshot(flow_id: str, live: Mapping[str, str]) -> Snapshot | None:
    """Return the snapshot among the live texts of a flow; None before the first one. Raises StoreCorrupt."""
    text = live.get(MACHINE)
    if text is None:
        return None
    try:
        return _decode_snapshot(text)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise StoreCorrupt(f"the snapshot of flow {flow_id} cannot be read: {error}") from None


def write_children(children: Iterable[Awaited]) -> str:
    """Return the children that a machine awaits as JSON text; empty if there are none."""
    every = list(children)
    return _encode(every).decode() if every else ""


def read_children(flow_id: str, live: Mapping[str, str]) -> list[Awaited]:
    """Return the children that a machine awaits. Raises StoreCorrupt."""
    text = live.get(CHILDREN)
    try:
        return _decode_children(text) if text else []
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise StoreCorrupt(f"the children of flow {flow_id} cannot be read: {error}") from None


def write_doubts(doubts: Iterable[Obligation]) -> str:
    """Return the transitions in doubt as JSON text; empty if there are none."""
    every = list(doubts)
    return _encode(every).decode() if every else ""


def read_doubts(flow_id: str, live: Mapping[str, str]) -> list[Obligation]:
    """Return the transitions with a rollback whose body may have taken effect although no move says so.
    Raises StoreCorrupt.
    """
    text = live.get(DOUBTS)
    try:
        return _decode_doubts(text) if text else []
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise StoreCorrupt(f"the transitions in doubt of flow {flow_id} cannot be read: {error}") from None


def document_name(name: str) -> str:
    """Return the live text of a document."""
    return _DOCUMENT + name


def documents_in(live: Mapping[str, str]) -> dict[str, str]:
    """Return the documents among live texts, by name, as JSON."""
    return {name.removeprefix(_DOCUMENT): text for name, text in live.items() if name.startswith(_DOCUMENT)}


def write_obligation(obligation: Obligation) -> dict[str, str]:
    """Return an obligation as a live text."""
    return {obligation.name: _encode(obligation).decode()}


def obligations_in(flow_id: str, live: Mapping[str, str]) -> list[Obligation]:
    """Return the moves with a rollback, the newest first. Raises StoreCorrupt."""
    try:
        found = [_decode_undo(text) for name, text in live.items() if name.startswith(_UNDO)]
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise StoreCorrupt(f"a rollback of flow {flow_id} cannot be read: {error}") from None
    return sorted(found, key=lambda each: -each.move)
