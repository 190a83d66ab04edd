"""Transitions: methods of a state machine that lead from one place, or several, to another one.

    automatic   fires when the machine stands at its place and its guard is true
    delayed     `delay="30 days"`: the same, once the machine has stood there for so long
    waiting     `wait=Payload`: fires when somebody triggers it, with a payload of that type
    following   `after="all"` or `"all_settled"`: fires when the children that the machine has started
                have ended

What must always hold: a transition that exists can be called: its function takes what it will get, as far as
its annotations tell.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Generic, Literal, Never, TypeAlias, TypeVar, cast, overload

from msgspec import UNSET, UnsetType

from eventbus import DefinitionError, Retry
from eventbus.lowlevel import Duration, is_untyped, seconds, shown
from workflows.definition.checks.options import check_retry, check_timeout
from workflows.definition.checks.signature import accepts, check_function, is_async, name_of, taken_by, told
from workflows.definition.message_type import MessageType
from workflows.machines.context import MachineContext
from workflows.machines.settled import Settled
from workflows.records.ids import check_step_name

P = TypeVar("P")
F = TypeVar("F", bound=Callable[..., Any])

After: TypeAlias = Literal["all", "all_settled"]

END: Final = "__end__"
"""The place at which a flow of a machine completes. What the transition that leads there returns is the
result of the flow.
"""

_TIMEOUT = 300.0  # seconds of an attempt
_ONCE = Retry(attempts=1)
_KINDS: dict[str, tuple[str, ...]] = {
    "automatic": ("the machine", "the context"),
    "delayed": ("the machine", "the context"),
    "waiting": ("the machine", "the context", "the payload"),
    "following": ("the machine", "the context", "what the children came to"),
}

Body: TypeAlias = Callable[[Any, MachineContext[Any]], Coroutine[Any, Any, Any]]
PayloadBody: TypeAlias = Callable[[Any, MachineContext[Any], P], Coroutine[Any, Any, Any]]
Answer: TypeAlias = bool | Awaitable[bool]
Guard: TypeAlias = Callable[..., Answer]


class Transition(MessageType[P]):
    """One transition, as an attribute of its machine's class. Do not change the attributes.

    `sources` are the places that it leads from, and `target` the one that it leads to. `payload` is the type
    of what triggers it. `delay` and `timeout` are in seconds, None for none.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        """Use `@transition(...)` instead; it explains the options."""
        self.name: str = check_step_name(name_of(function), options["owner"])
        self.function: Callable[..., Any] = function
        self.sources: tuple[str, ...] = _check_sources(options["source"], self.where)
        self.target: str = check_place(options["to"], self.where)
        self.waits: bool = not isinstance(options["wait"], UnsetType)
        self.payload: Any = options["wait"] if self.waits else None
        self.after: After | None = _check_after(options["after"], self.where, waits=self.waits)
        self.delay: float | None = _check_delay(
            options["delay"], self.where, is_free=not self.waits and self.after is None
        )
        self.guard: Guard | None = options["when"]
        self.priority: int = _check_priority(options["priority"], self.where)
        self.retry: Retry = check_retry(options["retry"], self.where) or _ONCE
        self.timeout: float | None = check_timeout(options["timeout"], self.where)
        self.error_place: str | None = options["error_place"]
        self.undo: Callable[..., Any] | None = None
        super().__init__(self.name, self.payload, self.where)
        self._check()

    @property
    def where(self) -> str:
        """Its name in messages."""
        return f"transition {self.name!r}"

    @property
    def kind(self) -> Literal["automatic", "delayed", "waiting", "following"]:
        """What makes it fire."""
        if self.waits:
            return "waiting"
        return "following" if self.after else "delayed" if self.delay else "automatic"

    def rollback(self, function: F) -> F:
        """Decorate the method that undoes it: `@prepare.rollback`, `async def unprepare(self, ctx)`. Without
        one nothing does.

        It runs when the flow is cancelled or times out, newest move first, with the state as it was recorded
        last; it is tried 3 times. Raises DefinitionError for a function that cannot be called so, and for a
        second one.
        """
        where = f"the rollback of {self.where}"
        check_function(function, where, *_KINDS["automatic"])
        if not is_async(function):
            raise DefinitionError(f"{where} is a plain function; make it `async def`")
        if self.undo is not None:
            raise DefinitionError(f"{self.where} has two rollbacks; remove one of them")
        self.undo = function
        return function

    def encode(self, payload: P) -> str:
        """Return a payload as JSON text. Raises DefinitionError if nobody triggers it, PayloadError if it
        does not fit.
        """
        if not self.waits:
            raise DefinitionError(f"{self.where} waits for no trigger: it fires by itself")
        return super().encode(payload)

    def __repr__(self) -> str:
        return f"Transition({self.name!r})"

    def _check(self) -> None:
        takes = _KINDS[self.kind]
        check_function(self.function, self.where, *takes)
        if not is_async(self.function):
            raise DefinitionError(f"{self.where} is a plain function; make it `async def`")
        if self.guard is not None:
            check_function(self.guard, f"the guard of {self.where}", *takes[1:])
        if self.error_place is not None:
            check_place(self.error_place, f"error_place of {self.where}")
            if self.error_place == END:
                raise DefinitionError(f"error_place of {self.where} is END; name a place of the machine")
            if self.error_place in self.sources:
                raise DefinitionError(
                    f"error_place of {self.where} is {self.error_place!r}, where it begins, "
                    "so it would fail there again; leave it out: then the machine stays and waits for a retry"
                )
        hint = taken_by(self.function, 2) if self.kind in ("waiting", "following") else Any
        given = self.payload if self.waits else Settled
        if not is_untyped(hint) and not accepts(hint, type(None) if given is None else given):
            raise DefinitionError(
                f"the third parameter of {self.where} is annotated as {told(hint)}, "
                f"but it gets {told(given)}; make them the same"
            )


class TransitionDecorator(Generic[P]):
    """The decorator that `transition(...)` returns; it returns the transition."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    def __call__(self, function: PayloadBody[P], /) -> Transition[P]:
        """Make the transition. Raises DefinitionError as `transition` says."""
        return Transition(function, self._options)


@overload
def transition(
    source: str | Sequence[str],
    *,
    to: str,
    wait: type[P],
    when: Callable[[MachineContext[Any], P], Answer] | None = ...,
    priority: int = ...,
    retry: Retry | None = ...,
    timeout: Duration | None = ...,
    error_place: str | None = ...,
) -> TransitionDecorator[P]: ...
@overload
def transition(
    source: str | Sequence[str],
    *,
    to: str,
    wait: None,
    when: Callable[[MachineContext[Any], None], Answer] | None = ...,
    priority: int = ...,
    retry: Retry | None = ...,
    timeout: Duration | None = ...,
    error_place: str | None = ...,
) -> TransitionDecorator[None]: ...
@overload
def transition(
    source: str | Sequence[str],
    *,
    to: str,
    after: After,
    when: Callable[[MachineContext[Any], Settled], Answer] | None = ...,
    priority: int = ...,
    retry: Retry | None = ...,
    timeout: Duration | None = ...,
    error_place: str | None = ...,
) -> Callable[[PayloadBody[Settled]], Transition[Never]]: ...
@overload
def transition(
    source: str | Sequence[str],
    *,
    to: str,
    delay: Duration | None = ...,
    when: Callable[[MachineContext[Any]], Answer] | None = ...,
    priority: int = ...,
    retry: Retry | None = ...,
    timeout: Duration | None = ...,
    error_place: str | None = ...,
) -> Callable[[Body], Transition[Never]]: ...
def transition(
    source: str | Sequence[str],
    *,
    to: str,
    wait: Any = UNSET,
    when: Guard | None = None,
    after: After | None = None,
    delay: Duration | None = None,
    priority: int = 0,
    retry: Retry | None = None,
    timeout: Duration | None = _TIMEOUT,
    error_place: str | None = None,
) -> Any:
    """Make an async method of a state machine a transition from `source`, a place or several, to the place
    `to`.

    Without `wait` and `after` it fires by itself: at once, or with `delay`, such as `"30 days"`, when the
    machine has stood at the place for so long. With `wait`, the type of a payload (None: there is none), it
    fires when it is triggered, and its method gets the payload too. With `after` it fires when all children
    have ended that the machine has started, and its method gets a `Settled`: `"all"` fails it without a call
    if one of them failed, and cancels the others then; `"all_settled"` calls it anyway.

    `when` is a guard, plain or async and without effects: it gets the arguments of the method without the
    machine. Of several transitions out of a place the first one fires whose guard is true, by `priority`, the
    highest first, and one without a guard last. `retry` says how often the method is tried (default: once),
    and `timeout` how long an attempt may take (default: 5 minutes; None or 0: no limit). After the last
    attempt the machine moves to `error_place`, or stays and waits for a retry.

    Raises DefinitionError for a value or a method that cannot be used.
    """
    options = {
        "source": source,
        "to": to,
        "wait": wait,
        "when": when,
        "after": after,
        "delay": delay,
        "priority": priority,
        "retry": retry,
        "timeout": timeout,
        "error_place": error_place,
        "owner": "",
    }
    return TransitionDecorator[Any](options)


def check_place(place: object, where: str) -> str:
    """Return `place` if it can name one. Raises DefinitionError."""
    if place == END:
        return END
    try:
        return check_step_name(place)
    except DefinitionError:
        raise DefinitionError(
            f"expected a place of {where} of 1 to 128 letters, digits, '_' and '-', "
            f"beginning with a letter or digit, or END, got: {shown(place)}"
        ) from None


def _check_sources(source: object, where: str) -> tuple[str, ...]:
    given = (source,) if isinstance(source, str) else source
    if not isinstance(given, Sequence) or not given:
        raise DefinitionError(
            f"expected the source of {where} to be a place or several, got: {shown(source)}"
        )
    sources = tuple(check_place(place, where) for place in cast("Sequence[object]", given))
    if END in sources:
        raise DefinitionError(
            f"{where} leads out of END, where a flow has completed; let it begin at a place"
        )
    if len(set(sources)) != len(sources):
        raise DefinitionError(f"{where} names a source twice: {shown(list(sources))}")
    return sources


def _check_after(after: Any, where: str, *, waits: bool) -> After | None:
    if after is None or after == "all" or after == "all_settled":  # noqa: PLR1714  (narrows the type)
        if after is not None and waits:
            raise DefinitionError(f"{where} has wait and after; give it one of them")
        return after
    raise DefinitionError(f"expected after of {where} to be 'all' or 'all_settled', got: {shown(after)}")


def _check_delay(delay: Any, where: str, *, is_free: bool) -> float | None:
    if delay is None:
        return None
    if not is_free:
        raise DefinitionError(f"{where} has a delay, and wait or after; give it one of them")
    return seconds(delay, setting=f"delay of {where}") or None


def _check_priority(priority: object, where: str) -> int:
    if isinstance(priority, int) and not isinstance(priority, bool):
        return priority
    raise DefinitionError(f"expected priority of {where} to be a whole number, got: {shown(priority)}")
