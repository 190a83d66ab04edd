"""What defines flows: a workflow of steps, a durable function, or a state machine.

The kinds live in rooms of their own, two of them above this one. What starts a flow of any kind needs no more
of it than this.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypedDict, TypeVar, cast

from eventbus import DefinitionError, Keep, Limit
from eventbus.lowlevel import Duration, KeepGiven, check_keep, check_options, shown
from workflows.definition.checks.options import check_concurrency, check_limit, check_timeout, check_version

I = TypeVar("I")  # noqa: E741  (input)
O = TypeVar("O")  # noqa: E741  (output)

FlowKind: TypeAlias = Literal["graph", "function", "machine"]


class FlowKeywords(TypedDict, total=False):
    """The options that each kind of workflow has; the kinds document them."""

    timeout: Duration | None
    concurrency: int | None
    limit: Limit | None
    keep_completed: KeepGiven | None
    keep_failed: KeepGiven | None
    version: str | None


class FlowDefinition(Generic[I, O]):
    """The base of the three kinds. `_max_input` bounds the JSON of an input in bytes; None: the provider
    alone bounds it.
    """

    _kind: ClassVar[FlowKind]
    _max_input: ClassVar[int | None] = None

    name: str
    input: Any
    output: Any
    errors: tuple[type[Exception], ...]
    timeout: float | None
    concurrency: int | None
    limit: Limit | None
    keep_completed: Keep | None
    keep_failed: Keep | None

    def _take(self, options: FlowKeywords, known: type, where: str) -> str | None:
        """Take what the kinds have in common, and return the version that was given. Raises DefinitionError,
        naming `where`, for a value that cannot be used, and for an option that is not in `known`.
        """
        check_options(options, known, where)
        self.timeout = check_timeout(options.get("timeout"), where)
        self.concurrency = check_concurrency(options.get("concurrency"), where)
        self.limit = check_limit(options.get("limit"), where)
        self.keep_completed = check_keep("keep_completed", options.get("keep_completed"), where)
        self.keep_failed = check_keep("keep_failed", options.get("keep_failed"), where)
        return check_version(options.get("version"), where)

    @property
    def version(self) -> str:
        """The version that was given, or one computed from the definition."""
        return self._version

    _version: str


class MachineClass(Generic[I]):
    """The base of state machines, which users give as classes: its `definition` is the definition."""


AnyDefinition: TypeAlias = FlowDefinition[Any, Any]

AnyWorkflow: TypeAlias = FlowDefinition[I, O] | type[MachineClass[I]]
"""What a caller gives: a workflow of any kind. The output of a state machine has no type of its own."""


def kind_of(definition: AnyDefinition) -> FlowKind:
    """Return the kind of a definition."""
    return definition._kind  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  (no name for users)


def most_of_input(definition: AnyDefinition, max_bytes: int) -> int:
    """Return the bytes that the JSON of an input may have where `max_bytes` is the limit of all values."""
    own = definition._max_input  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return min(max_bytes, own or max_bytes)


def definition_in(given: object) -> AnyDefinition | None:
    """Return the definition of a workflow, a durable function or the class of a state machine; None for other
    values.
    """
    if isinstance(given, type):
        given = given.__dict__.get("definition")  # that of a base class is another machine
    return cast("AnyDefinition", given) if isinstance(given, FlowDefinition) else None


def definition_of(given: object, what: str) -> AnyDefinition:
    """Return the definition of a workflow of any kind. Raises DefinitionError for other values."""
    found = definition_in(given)
    if found is None:
        raise DefinitionError(
            f"expected {what} to be a Workflow, a durable function or a StateMachine, got: {shown(given)}"
        )
    return found
