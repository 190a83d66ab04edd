"""The names of the checkpoints that the root of a flow keeps, and how they are read back.

graph                  the version of the workflow whose steps were added
undo:<number>:<path>   a rollback that ended; the text is the record of its error, empty if it succeeded
hook:failed            the `failed` hook ran
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["FAILED_HOOK", "GRAPH", "read_undone", "undone_name"]

GRAPH = "graph"
FAILED_HOOK = "hook:failed"
_UNDONE = "undo:"


def undone_name(number: int, path: str) -> str:
    """Return the checkpoint's name for the rollback of `path`, the one with this `number` in its saga."""
    return f"{_UNDONE}{number}:{path}"


def read_undone(saved: Mapping[str, str]) -> dict[str, str]:
    """Return the saved outcomes of rollbacks: path -> record of the error, in the order in which they ran.

    Checkpoints are not ordered, so the order comes from their names.
    """
    found: list[tuple[int, str, str]] = []
    for name, failure in saved.items():
        if name.startswith(_UNDONE):
            number, _, path = name.removeprefix(_UNDONE).partition(":")
            if number.isdecimal():  # otherwise it is not a checkpoint of a saga
                found.append((int(number), path, failure))
    return {path: failure for _, path, failure in sorted(found)}
