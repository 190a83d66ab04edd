"""Fewer jobs from many emissions: the options `throttle`, `debounce` with `longest`, and `keep_last`,
checked.

Not here: what becomes of an emission that meets a job of its key (`lua/lib/merging.lua`).
What must always hold: options that contradict each other are refused here, with the values that do.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from eventbus.errors import DefinitionError
from eventbus.model.durations import Duration, milliseconds
from eventbus.model.names import shown
from eventbus.settings.keywords import EmitOptions


class Merging(msgspec.Struct, frozen=True):
    """How an emission meets the jobs of its key. Times are in ms."""

    option: Literal["throttle", "debounce", "keep_last"]
    delay: int = 0
    """How long a debounced job waits after the last emission."""
    span: int = 0
    """Of a throttle its window; of a debounce how long the job waits after the first emission, 0 for no
    limit.
    """


def read_merging(options: EmitOptions) -> Merging | None:
    """Return what the options ask for, None if for nothing of this. Raises DefinitionError for
    contradictions.
    """
    if options.throttle is None and options.debounce is None and not options.keep_last:
        if options.longest is not None:
            raise DefinitionError(
                f"longest belongs to debounce, got: {_named(options, 'longest')} without it"
            )
        return None
    given = [name for name in ("throttle", "debounce") if getattr(options, name) is not None]
    given += ["keep_last"] if options.keep_last else []
    option, *others = given
    forbidden = ["supersede", "reuse_failure"] if option == "throttle" else _FORBIDDEN
    others += [name for name in forbidden if not _is_absent(getattr(options, name))]
    others += ["longest"] if options.longest is not None and option != "debounce" else []
    if others:
        raise DefinitionError(
            f"expected either {option} or {others[0]}, got both: {_named(options, option)}, "
            f"{_named(options, others[0])}"
        )
    if option == "throttle":
        return Merging("throttle", span=_positive(options.throttle, "throttle"))
    if option == "keep_last":
        return Merging("keep_last")
    delay = _positive(options.debounce, "debounce")
    span = 0 if options.longest is None else _positive(options.longest, "longest")
    if 0 < span < delay:
        raise DefinitionError(
            f"expected longest to be at least debounce, got: {_named(options, 'longest')}, "
            f"{_named(options, 'debounce')}"
        )
    return Merging("debounce", delay=delay, span=span)


def option_of_key(options: EmitOptions) -> str:
    """Return the option that decides about other jobs of the key, so that it needs one; `""` without one.

    Raises DefinitionError for contradictions.
    """
    return option_beside(read_merging(options), options)


def option_beside(merging: Merging | None, options: EmitOptions) -> str:
    """Return the same as `option_of_key` to a caller who has read the merging of the options already."""
    if merging is not None or not options.supersede:
        return "" if merging is None else merging.option
    if options.reuse_failure:
        raise DefinitionError("expected either supersede or reuse_failure, got both")
    return "supersede"


#: What says by itself when the job is due, or what becomes of the key's job.
_FORBIDDEN = ["delay", "at", "supersede", "reuse_failure"]


def _is_absent(value: object) -> bool:
    return value is None or value is False  # a 0 was given


def _positive(value: Duration | None, name: str) -> int:
    """Return a duration in ms. Raises DefinitionError for 0, too."""
    length = milliseconds(0 if value is None else value, setting=name)
    if length == 0:
        raise DefinitionError(f"expected {name} to be more than 0 s, got: {shown(value)}")
    return length


def _named(options: EmitOptions, name: str) -> str:
    return f"{name}={shown(getattr(options, name))}"
