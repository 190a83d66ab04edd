"""Signals: typed messages to a flow, from any process.

What must always hold: a payload that does not fit its type is refused to its sender, and is never sent; so is
a name that the flow's definition does not have, where that is known.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any, TypeVar, overload

from eventbus import DefinitionError
from eventbus.lowlevel import shown
from workflows.definition.message_type import MessageType

T = TypeVar("T")
ST = TypeVar("ST")

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}")


class Signal(MessageType[T]):
    """A kind of message to a flow: its name, and the type of its payload.

    A durable function waits for it with `ctx.wait_for(signal)`, a step graph with `workflow.wait(signal)`,
    and `FlowHandle.signal(signal, payload)` sends it. Do not change the attributes.
    """

    @overload
    def __init__(self: Signal[None], name: str, type: None) -> None: ...
    @overload
    def __init__(self: Signal[ST], name: str, type: type[ST]) -> None: ...
    @overload
    def __init__(self: Signal[Any], name: str, type: Any = ...) -> None: ...

    def __init__(self, name: str, type: Any = Any) -> None:  # noqa: A002  (the word of the field)
        """Define a signal; `type` is a type that msgspec converts, or a pydantic model. None: it has no
        payload.

        Raises DefinitionError for a name or a type that cannot be used.
        """
        if (
            not isinstance(name, str)  # pyright: ignore[reportUnnecessaryIsInstance]
            or not _NAME.fullmatch(name)
        ):
            raise DefinitionError(
                "expected the name of a signal of 1 to 128 letters, digits, '_', '.' and '-', "
                f"beginning with a letter or digit, got: {shown(name)}"
            )
        super().__init__(name, type, f"signal {name!r}")
        self.type: Any = type

    def __repr__(self) -> str:
        return f"Signal({self.name!r})"


def signal_by(given: Signal[Any] | str, known: Mapping[str, Signal[Any]] | None = None) -> Signal[Any]:
    """Return the signal that is given by itself or by its name; a name stands for the `known` one, else for
    one of any payload.

    Raises DefinitionError for other values, and for a name that no signal can have.
    """
    if isinstance(given, Signal):
        return given
    found = (known or {}).get(given) if type(given) is str else None  # else `Signal` refuses it
    return found or Signal[Any](given)


def check_known(name: str, known: Collection[str], where: str) -> None:
    """Raise DefinitionError, with the names that are close, if the definition `where` has no signal of this
    name.
    """
    if name not in known:
        near = difflib.get_close_matches(name, sorted(known))
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        names = ", ".join(map(repr, known)) or "none"
        raise DefinitionError(f"{where} declares no signal {shown(name)}; its signals: {names}{hint}")


def signal_late(name: str) -> TimeoutError:
    """Return the error of a wait whose time came before its signal."""
    return TimeoutError(f"signal {name!r} did not come in time")
