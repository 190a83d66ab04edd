"""How a run of a durable function ends, as values."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from eventbus.lowlevel import describe
from workflows.errors import FUNCTION, NonDeterminismError
from workflows.functions.definition import Durable, DurableCodecs
from workflows.functions.origin import origin_of, sources_of


class Completed(msgspec.Struct, frozen=True):
    """The function returned; `output` is its value as JSON text."""

    output: str


class Failed(msgspec.Struct, frozen=True):
    """The function raised. `step` names the call whose error that is; `failure` is the record of the error.

    `sources` tell the calls whose errors led to it, each with the first positions behind its error
    (`functions.origin`).
    """

    step: str
    failure: str
    sources: tuple[str, ...] = ()


class Asleep(msgspec.Struct, frozen=True):
    """Nothing can go on here before the time `until_ms` (None: no time ends it), or with `listens` before a
    signal.

    The end of one of `children`, which are ids, lets it go on, too.
    """

    until_ms: int | None
    listens: bool
    children: tuple[str, ...] = ()


class Again(msgspec.Struct, frozen=True):
    """The function starts again from its top, with the input in `text`."""

    text: bytes


class Diverged(msgspec.Struct, frozen=True):
    """The function does not do what the flow has recorded."""

    error: NonDeterminismError


Ending: TypeAlias = Completed | Failed | Asleep | Again | Diverged


def end_of(
    value: Any, error: BaseException | None, durable: Durable[Any, Any], codecs: DurableCodecs
) -> Completed | Failed:
    """Return how a function ended that returned `value` or raised `error`."""
    if error is None:
        try:
            return Completed(codecs.output.encode(value).decode())
        except Exception as unfit:  # noqa: BLE001  (a value that cannot be sent)
            error = unfit
    origin = origin_of(error)
    step, failure = (FUNCTION, "") if origin is None else (origin.label, origin.failure)
    return Failed(
        step,
        failure or describe(error, attempts=1, declared=durable.errors, event=durable.name),
        sources_of(error),
    )
