"""The context of a transition: the copy that it works on, and what is recorded with its move.

What must always hold: after its attempt has ended a context does nothing any more, so that a body that
ignores its cancellation changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar, Unpack

import msgspec

from eventbus import Emission, EmitKeywords, Event, StoreRefused, UsageError
from eventbus.lowlevel import Codec, HasLifespans, LifespanValues, Logger, get_logger, shown
from workflows.definition.codecs import flow_codecs
from workflows.definition.flow_definition import AnyDefinition, AnyWorkflow, definition_of
from workflows.execution.surroundings import Surroundings

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")
Q = TypeVar("Q")

MAX_STATE = 256 << 10
"""The bytes of a state as JSON."""

MAX_DOCUMENT = 1 << 20
"""The bytes of a document as JSON."""

_MOST_DOCUMENTS = 50  # of one move: a row has at most 100 live texts
_MOST_CHILDREN = 1000
_MOST_INPUT = 900_000  # bytes; the children that a machine awaits stand in one text of at most 1 MiB


class NewChild(msgspec.Struct, frozen=True):
    """A flow to start with the move: its definition, and its input as JSON."""

    definition: AnyDefinition
    given: bytes


class MachineContext(LifespanValues, Generic[S]):
    """What a transition, a guard and a rollback get: `async def prepare(self, ctx: MachineContext[Draft])`.

    `state` is a copy of the machine's state: change it, or set another one. It is recorded with the move, as
    are `save` and `children`; a body that fails leaves nothing of them. `place` is where the machine stands,
    and `moves` how many moves it has made. `attempt` counts from 1 for each transition. `key` is
    `<flow id>/<run>/<number of the move>/<transition>`: the same in all attempts of this transition for this
    move, and in no other; that of a rollback ends with `undo`. Give it to a service that must not act twice.
    `error` is the text of the last failure at this place, or the one that led to this error place, else
    empty.
    """

    __slots__ = (
        "_around",
        "_check_child",
        "_children",
        "_documents",
        "_has_ended",
        "_load",
        "_log",
        "_may_change",
        "attempt",
        "correlation_id",
        "error",
        "flow_id",
        "key",
        "meta",
        "moves",
        "place",
        "state",
    )

    def __init__(
        self,
        around: Surroundings,
        state: S,
        *,
        place: str,
        moves: int,
        key: str,
        load: Callable[[str], Awaitable[str | None]],
        check: Callable[[AnyDefinition], None],
        attempt: int = 1,
        error: str = "",
        may_change: bool = True,
    ) -> None:
        """`load(name)` reads the document `name`, and `check(definition)` raises for what cannot be started
        here. A guard and a rollback may change nothing.
        """
        self.state: S = state
        self.place: str = place
        self.moves: int = moves
        self.key: str = key
        self.attempt: int = attempt
        self.error: str = error
        self.flow_id: str = around.flow_id
        self.meta: Mapping[str, Any] = around.meta
        self.correlation_id: str = around.correlation_id
        self._around = around
        self._load = load
        self._check_child = check
        self._may_change = may_change
        self._documents: dict[str, str] = {}
        self._children: list[NewChild] = []
        self._has_ended = False
        self._log: Logger | None = None

    @property
    def log(self) -> Logger:
        """A structlog logger bound to the flow, its workflow and the place."""
        if self._log is None:
            self._log = get_logger("workflows.machine").bind(**self._around.facts, place=self.place)
        return self._log

    def save(self, name: str, value: Any) -> None:
        """Save a document with the move, in place of the one of this name. None takes the document away.

        Raises PayloadError for a value that cannot be stored, or over 1 MiB, and UsageError for a name that
        is none, or for more than 50 documents in one move.
        """
        self._check_open("save")
        if (
            not isinstance(name, str)  # pyright: ignore[reportUnnecessaryIsInstance]
            or not 0 < len(name) <= 128
            or not name.isprintable()
        ):
            raise UsageError(
                f"expected the name of a document of 1 to 128 printable characters, got: {shown(name)}"
            )
        if name not in self._documents and len(self._documents) >= _MOST_DOCUMENTS:
            raise UsageError(f"a move saves at most {_MOST_DOCUMENTS} documents; save more with the next one")
        if value is None:
            self._documents[name] = ""
            return
        codec = Codec(type(value), role="result", owner=f"document {name!r}", max_bytes=MAX_DOCUMENT)
        self._documents[name] = codec.encode(value).decode()

    async def load(self, name: str, type: type[T] | Any = Any) -> T | Any:  # noqa: A002  (the field's word)
        """Return a document as a value of `type`: what this transition saved, else what was recorded; None
        without one.

        Raises PayloadError for one that does not fit, StoreError.
        """
        self._check_open("load", changes=False)
        text = self._documents[name] if name in self._documents else await self._load(name)
        if not text:
            return None
        return Codec(type, role="result", owner=f"document {name!r}", max_bytes=MAX_DOCUMENT).decode(text)

    def children(self, workflow: AnyWorkflow[Q, Any], inputs: Iterable[Q]) -> None:
        """Start a flow of `workflow` for each of `inputs` with the move. A transition with `after` hears of
        their ends.

        `workflow` must be registered where the machine is. Raises DefinitionError, PayloadError for an input
        that does not fit, and UsageError for more than 1,000 children, or inputs of more than 900,000 bytes
        together; then it starts none of them.
        """
        self._check_open("children")
        definition = definition_of(workflow, "what ctx.children starts")
        codecs = flow_codecs(definition)
        self._check_child(definition)
        children = [*self._children, *(NewChild(definition, codecs.input.encode(each)) for each in inputs)]
        if len(children) > _MOST_CHILDREN:
            raise UsageError(f"a move starts at most {_MOST_CHILDREN} children, got: {len(children)}")
        size = sum(len(child.given) for child in children)
        if size > _MOST_INPUT:
            raise UsageError(
                f"the inputs of the children of a move have {size} bytes, but at most {_MOST_INPUT} are "
                "possible; save what is large as a document or elsewhere, and give the children its name"
            )
        self._children = children

    def emit(
        self, event: Event[Q, R] | str, payload: Any = None, **options: Unpack[EmitKeywords]
    ) -> Emission[R]:
        """Emit an event; await the emission for its result. What a body emits is sent at once, also if the
        move then fails.

        Give it an `idempotency_key`, such as `ctx.key`, if it must not be sent twice.
        """
        self._check_open("emit")
        return self._around.tools.emits.emit(event, payload, **options)

    @property
    def _lifespans(self) -> HasLifespans:
        return self._around.tools

    # For the run of the machine.

    def take(self) -> tuple[dict[str, str], list[NewChild]]:
        """Return the documents and the children of the move."""
        return self._documents, self._children

    def close(self) -> None:
        """Let it do nothing from now on."""
        self._has_ended = True

    def _check_open(self, call: str, *, changes: bool = True) -> None:
        if self._has_ended:
            raise StoreRefused(
                f"ctx.{call} did nothing: the attempt of this transition at place {self.place!r} has ended, "
                "and another one may have begun"
            )
        if changes and not self._may_change:
            raise UsageError(
                f"ctx.{call} is for transitions: guards and rollbacks of a machine record nothing"
            )


def key_of(around: Surroundings, number: int, name: str) -> str:
    """Return the idempotency key of what `name` does as or for the move of this number."""
    return f"{around.flow_id}/{around.run}/{number}/{name}"
