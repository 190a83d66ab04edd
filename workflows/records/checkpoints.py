"""The names of the checkpoints that the root of a flow keeps, and how they are read back.

graph                  the version of the workflow whose steps were added
undo:<number>:<path>   a rollback that ended; the text is the record of its error, empty if it succeeded
undo-try:<path>        how many attempts of a rollback that has not ended have failed
hook:failed            the `failed` hook ran
"""

from __future__ import annotations

from collections.abc import Mapping

GRAPH = "graph"
FAILED_HOOK = "hook:failed"
_UNDONE = "undo:"
_TRY = "undo-try:"


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


def try_name(path: str) -> str:
    """Return the checkpoint's name for the failed attempts of the rollback of `path`."""
    return f"{_TRY}{path}"


def read_tries(saved: Mapping[str, str]) -> dict[str, int]:
    """Return the saved numbers of failed attempts of rollbacks, by path."""
    return {
        name.removeprefix(_TRY): int(count)
        for name, count in saved.items()
        if name.startswith(_TRY) and count.isdecimal()
    }
