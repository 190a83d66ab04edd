"""The base class of state machines: a class is a definition, and an instance runs the transitions of one
activation.
"""

from __future__ import annotations

import inspect
import typing
from typing import Any, ClassVar, TypeVar, Unpack

from eventbus import DefinitionError
from workflows.definition.checks.signature import told
from workflows.definition.flow_definition import MachineClass
from workflows.definition.keywords import MachineKeywords
from workflows.machines.definition import MachineDefinition
from workflows.machines.transition import Transition

S = TypeVar("S")


class StateMachine(MachineClass[S]):
    """A flow that stands at named places, and moves from one to the next by transitions.

        class Review(StateMachine[Draft], name="review", start="draft"):
            @transition("draft", to="waiting")
            async def prepare(self, ctx: MachineContext[Draft]) -> None: ...

    The parameter is the type of its state, one that msgspec converts or a pydantic model; the input of a flow
    is its first state. `name` is by default the name of the class; `start` is the first place. `timeout`
    bounds a whole flow, which then is cancelled (None or 0: no limit). `concurrency` is how many flows of it
    a worker runs at a time; a flow that waits is not counted. `keep_completed` and `keep_failed` say how long
    ended flows are kept.

    Without a `version` any worker that has the place of a flow runs it, so that transitions and places may be
    added at any time. With one, only workers that have the same version do.

    `max_rollbacks` is how many moves of one flow may have a rollback; the next such transition fails without
    a call.

    An instance is made for each activation, without arguments; what it keeps in attributes is lost with it.

    A class that is wrong raises DefinitionError where it is defined.
    """

    definition: ClassVar[MachineDefinition]

    def __init_subclass__(
        cls, *, start: str | None = None, name: str | None = None, **options: Unpack[MachineKeywords]
    ) -> None:
        super().__init_subclass__()
        if start is None:
            if name is not None or _transitions(cls):
                raise DefinitionError(
                    f"class {cls.__name__} has no start; name its first place: "
                    f'class {cls.__name__}(StateMachine[...], start="...")'
                )
            return  # a base class of machines, without transitions
        _check_init(cls)
        cls.definition = MachineDefinition(
            cls,
            _transitions(cls),
            name=cls.__name__ if name is None else name,
            start=start,
            state=_state_of(cls),
            **options,
        )


def _parameter_of(cls: type[Any]) -> Any:
    """Return the parameter that `StateMachine` has as a base of a class; None without one, a TypeVar if the
    class leaves it open.
    """
    for base in cls.__dict__.get("__orig_bases__", cls.__bases__):
        kind: type[Any] = typing.get_origin(base) or base
        if kind is StateMachine:
            return next(iter(typing.get_args(base)), None)
        if StateMachine in kind.__mro__:
            state, open_ones = _parameter_of(kind), getattr(kind, "__parameters__", ())
            given: dict[Any, Any] = dict(zip(open_ones, typing.get_args(base), strict=False))
            if isinstance(state, TypeVar):
                return given.get(state, state)
            inner = _open_in(state)
            return state[tuple(given.get(each, each) for each in inner)] if inner and given else state
    return None


def _open_in(state: Any) -> tuple[Any, ...]:
    return getattr(state, "__parameters__", ()) if typing.get_origin(state) else ()


def _transitions(cls: type[Any]) -> dict[str, Transition[Any]]:
    """Return the transitions of a class and its bases by name, those of the bases first."""
    found: dict[str, Transition[Any]] = {}
    for base in reversed(cls.__mro__):
        for attribute, value in vars(base).items():
            found.pop(attribute, None)
            if isinstance(value, Transition):
                found[attribute] = typing.cast("Transition[Any]", value)
    for attribute, each in found.items():
        if attribute == "definition":
            raise DefinitionError(
                f"{each.where} of class {cls.__name__} stands where the definition of the class does; "
                "give it another name"
            )
        if each.name != attribute:
            raise DefinitionError(
                f"{each.where} of class {cls.__name__} stands under the name {attribute!r}; "
                "give both one name"
            )
    return found


def _check_init(cls: type[Any]) -> None:
    try:
        inspect.signature(cls).bind()
    except ValueError:  # it cannot be looked at
        return
    except TypeError as error:
        raise DefinitionError(
            f"the __init__ of class {cls.__name__} needs arguments ({error}), "
            "but an instance is made without any; give them defaults"
        ) from None


def _state_of(cls: type[Any]) -> Any:
    state = _parameter_of(cls)
    if state is not None and not isinstance(state, TypeVar) and not _open_in(state):
        return state
    raise DefinitionError(
        f"class {cls.__name__} does not say what its state is; name the type: "
        f"class {cls.__name__}(StateMachine[{told(dict)}], ...)"
    )
