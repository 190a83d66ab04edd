"""Where an error in the code of a durable function comes from: from which call, and what was called behind
it.

A retry by hand runs that call again, and forgets what the code did because of the error
(`functions.calls.kept`).

What must always hold: an error has its origin from the moment in which it is read from the history; each
scope whose code gets it adds the position of its next call, once: what it calls from there on is behind the
error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from eventbus.lowlevel import mark_of

_NAME = "__workflows_call__"


class Scoped(Protocol):
    """The scope of some code; see `code_run.Scope`."""

    name: str
    count: int

    def position(self, number: int) -> str:
        """Return the position of a call by its number."""
        ...


class Origin:
    """The call that an error comes from: its label, and the record of the error."""

    __slots__ = ("_behind", "beside", "failure", "label")

    def __init__(self, label: str, failure: str) -> None:
        self.label: str = label
        self.failure: str = failure
        self.beside: list[Origin] = []
        """Those of the errors that a group had besides, and did not raise."""
        self._behind: dict[str, str] = {}

    def got_by(self, scope: Scoped) -> None:
        """Note that the code of a scope gets the error now."""
        self._behind.setdefault(scope.name, scope.position(scope.count))

    def told(self) -> str:
        """Return the position of the call, and the first ones behind its error, as in `raised` entries."""
        return " ".join([self.label.rpartition("@")[2], *self._behind.values()])


def set_origin(error: BaseException, origin: Origin) -> None:
    """Let an error have this origin."""
    setattr(error, _NAME, origin)


def origin_of(error: BaseException) -> Origin | None:
    """Return the origin of an error that a call raised; None for one that the code made."""
    return mark_of(error, _NAME)


def note_got(error: BaseException, scope: Scoped) -> None:
    """Note that the code of a scope gets an error now."""
    if (origin := _source(error)) is not None:
        origin.got_by(scope)


def note_beside(error: BaseException, others: Iterable[BaseException | None]) -> None:
    """Note which errors a group had besides the one that it raises."""
    if (origin := _source(error)) is None:
        return
    for other in others:
        if other is None or other is error or (source := _source(other)) is None:
            continue
        if source is not origin and source not in origin.beside:
            origin.beside.append(source)


def sources_of(error: BaseException) -> tuple[str, ...]:
    """Return the origins of an error, told: its own or that of the error behind it, and those beside."""
    origin = _source(error)
    return () if origin is None else tuple(dict.fromkeys(one.told() for one in _all(origin, set())))


def _all(origin: Origin, seen: set[int]) -> Iterator[Origin]:
    if id(origin) not in seen:
        seen.add(id(origin))
        yield origin
        for other in origin.beside:
            yield from _all(other, seen)


def _source(error: BaseException | None) -> Origin | None:
    """Return the origin of an error, or of the nearest one because of which it was raised."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if (origin := origin_of(error)) is not None:
            return origin
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None
