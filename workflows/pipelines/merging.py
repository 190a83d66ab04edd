"""The merged result of a pipeline: the fields of its input, and over them those of each step's output, in their order.

What must always hold: steps that run side by side see the same result, and never write the same field: which one came
last would be chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from workflows.errors import ConflictError

__all__ = ["Outputs", "merge_outputs", "merge_progress"]

Outputs = Sequence[Sequence[tuple[str, Mapping[str, Any] | None]]]
"""The groups of steps, in their order: the name of each step with what it gave; None for one that gave nothing."""


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
    """Return the progress, JSON, that the next step begins with: what each step of a group changed, over what it was.

    Raises ConflictError if two steps of a group changed the same field, each to another value.
    """
    for group in outputs:
        changes: dict[str, tuple[str, Any]] = {}
        for name, progress in group:
            for key, value in _changed(start, progress).items():
                if key in changes and changes[key][1] != value:
                    raise ConflictError(key=f"progress.{key}", steps=(changes[key][0], name), workflow=owner)
                changes[key] = (name, value)
        start = _fields(start) | {key: value for key, (_, value) in changes.items()} if changes else start
    return start


def _changed(before: Any, after: Any) -> dict[str, Any]:
    known = _fields(before)
    return {key: value for key, value in _fields(after).items() if key not in known or known[key] != value}


def _fields(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
