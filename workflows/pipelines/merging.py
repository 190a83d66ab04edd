"""The merged result of a pipeline: the fields of its input, and over them those of each step's output, in
their order.

What must always hold: steps that run side by side see the same result, and never write the same field: which
one came last would be chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from workflows.errors import ConflictError

Outputs = Sequence[Sequence[tuple[str, Mapping[str, Any] | None]]]
"""The groups of steps, in their order: the name of each step with what it gave; None for one that gave
nothing.
"""


def merge_outputs(given: Mapping[str, Any], outputs: Outputs, *, owner: str) -> dict[str, Any]:
    """Return the input with the outputs laid over it, as JSON values. Raises ConflictError."""
    merged = dict(given)
    for group in outputs:
        writers: dict[str, str] = {}
        for name, output in group:
            for key in output or ():
                if key in writers:
                    raise ConflictError(key=key, steps=(writers[key], name), workflow=owner)
                writers[key] = name
            merged |= output or {}
    return merged


def merge_progress(start: Any, outputs: Outputs, *, owner: str) -> Any:
    """Return the progress, JSON, that the next step begins with: what each step of a group changed, over what
    it was.

    Raises ConflictError if two steps of a group changed the same field.
    """
    for group in outputs:
        writers: dict[str, str] = {}
        before = start
        for name, progress in group:
            if progress is None:
                continue
            for key in changed_fields(before, progress):
                if key in writers:
                    raise ConflictError(key=f"progress.{key}", steps=(writers[key], name), workflow=owner)
                writers[key] = name
            start = lay_changes(before, progress, start)
    return start


def changed_fields(before: Any, after: Any) -> set[str]:
    """Return the fields that are other ones in `after`, or are there in one of both alone."""
    known, new = _fields(before), _fields(after)
    return {
        key
        for key in known.keys() | new.keys()
        if (key in known, known.get(key)) != (key in new, new.get(key))
    }


def lay_changes(before: Any, after: Any, onto: Any) -> dict[str, Any]:
    """Return `onto` with what changed from `before` to `after`."""
    new, changed = _fields(after), changed_fields(before, after)
    kept = {key: value for key, value in _fields(onto).items() if key not in changed or key in new}
    return kept | {key: value for key, value in new.items() if key in changed}


def _fields(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
