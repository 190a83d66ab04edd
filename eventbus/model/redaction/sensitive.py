"""The mark on a field whose value people must not see."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Sensitive:
    """Marks a field, as in `card: Annotated[str, Sensitive()]`: its value is hidden wherever people look.

    The inspector, the commands and the dashboard show `•••` and eight hex digits instead, which say where the
    value stands and nothing of the value. Handlers and emitters get the value itself, and the server has it.
    A recorded error has `•••` where it would quote the value, unless that has less than three characters. It
    works in Structs, dataclasses, TypedDicts, NamedTuples, attrs classes and pydantic models, at any depth.
    """
