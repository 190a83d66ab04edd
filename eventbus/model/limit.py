"""Limits over the fleet: how many jobs of a queue may run at once, and how many may start within a time; as a
value.

Not here: how the server keeps them (`store/lua/lib/slots.lua`). What must always hold: a `Limit` that exists
is valid, and each of its rates can hold something back beside the others.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from eventbus.errors import DefinitionError
from eventbus.model.durations import milliseconds, text_of_ms
from eventbus.model.names import shown

_MOST = 2**31 - 1
_SHORTEST, _LONGEST = 100, 366 * 86_400_000
"""The length of a window, ms."""
_WINDOWS = 8


class Rate(NamedTuple):
    """At most `starts` within any span of `window_ms`."""

    starts: int
    window_ms: int


class _Wire(msgspec.Struct, omit_defaults=True):
    """A limit as it is sent and kept (`orders.lua`)."""

    at_once: int = 0
    rates: list[Rate] = []
    each: int = 0
    each_rates: list[Rate] = []


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs of an event may run at once, and how many may start within a time, in the whole fleet.

        Limit(at_once=20, rate=["100/1s", "5000/1m"], by=lambda order: order.tenant, each=5)

    Each group of the event has the limit for itself. `rate` is one text or several, each a number and a
    duration; they hold together. No span of that length ever has more starts, and at least 15/16 of a rate
    can be used. A start is a claim: each attempt counts, and a handler may begin a moment after it.

    `by(payload)` returns the limit key of an emission, text or an integer. Keys have turns, so that a long
    backlog of one delays no other; at most `each` jobs of a key run at once, and `each_rate` bounds the
    starts of each key. `by` alone gives turns and bounds nothing.

    Raises DefinitionError for a limit of 0 or less, a rate that cannot be read, two rates of one length, a
    rate that could never hold anything back beside a shorter one, and a limit of each key that could never be
    reached beside that of all.
    """

    at_once: int | None = None
    rate: str | Sequence[str] = ()
    by: Callable[[Any], str | int] | None = None
    each: int | None = None
    each_rate: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("at_once", "each"):
            count: Any = getattr(self, name)
            if count is not None and (type(count) is not int or not 0 < count <= _MOST):
                raise DefinitionError(f"expected {name} to be a positive integer, got: {shown(count)}")
        for name in ("rate", "each_rate"):
            rate: Any = getattr(self, name)
            read_rates(rate, name)
            if not isinstance(rate, str):
                msgspec.structs.force_setattr(self, name, tuple(rate))
        if self.by is not None and (not callable(self.by) or inspect.iscoroutinefunction(self.by)):
            raise DefinitionError(f"expected by to be a plain function of the payload, got: {shown(self.by)}")
        _check_each(self)
        if not (self.at_once or self.rate or self.by or self.each or self.each_rate):
            raise DefinitionError(
                "expected a Limit to have at_once, rate, by, each or each_rate; for no limit leave it out"
            )

    def to_wire(self) -> str:
        """Return the limit as JSON, without `by`: equal limits have equal texts, however they were written.

        A limit that has `by` alone bounds nothing: `""`.
        """
        if not (self.at_once or self.rate or self.each or self.each_rate):
            return ""
        wire = _Wire(
            at_once=self.at_once or 0,
            rates=read_rates(self.rate, "rate"),
            each=self.each or 0,
            each_rates=read_rates(self.each_rate, "each_rate"),
        )
        return msgspec.json.encode(wire).decode()

    @classmethod
    def from_wire(cls, text: str) -> Limit:
        """Return the limit that `to_wire` described. Raises DefinitionError for any other text."""
        try:
            wire = msgspec.json.decode(text, type=_Wire)
        except msgspec.MsgspecError as error:
            raise DefinitionError(f"expected a limit, got: {shown(text)}") from error
        rates, each_rates = ([show_rate(rate) for rate in given] for given in (wire.rates, wire.each_rates))
        return cls(at_once=wire.at_once or None, rate=rates, each=wire.each or None, each_rate=each_rates)


def _check_each(limit: Limit) -> None:
    """Raise DefinitionError if what bounds each key could never hold anything back beside what bounds all of
    them.
    """
    if limit.each and limit.at_once and limit.each > limit.at_once:
        raise DefinitionError(
            f"each={limit.each} can never be reached, because at_once={limit.at_once} bounds all keys "
            "together; lower each, or leave it out"
        )
    for rate in read_rates(limit.rate, "rate"):
        for own in read_rates(limit.each_rate, "each_rate"):
            if own.starts > rate.starts * math.ceil(own.window_ms / rate.window_ms):
                raise DefinitionError(
                    f"each_rate {show_rate(own)} can never be reached, "
                    f"because the rate {show_rate(rate)} bounds all keys together; lower it, or leave it out"
                )


def read_rates(given: Any, name: str) -> list[Rate]:
    """Return the rates that a text or a list of texts describes, the shortest window first. Raises
    DefinitionError.
    """
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, Sequence) or isinstance(texts, (bytes, bytearray)):
        raise DefinitionError(
            f'expected {name} to be text such as "100/1s", or a list of it, got: {shown(given)}'
        )
    rates = sorted(
        (_read_rate(text, name) for text in cast("Sequence[Any]", texts)), key=lambda rate: rate.window_ms
    )
    if len(rates) > _WINDOWS:
        raise DefinitionError(f"expected at most {_WINDOWS} rates in {name}, got: {len(rates)}")
    for i, longer in enumerate(rates):
        for shorter in rates[:i]:
            _check_pair(shorter, longer, name)
    return rates


def _read_rate(text: Any, name: str) -> Rate:
    wrong = DefinitionError(
        f'expected {name} to be a number and a duration such as "100/1s", got: {shown(text)}'
    )
    if not isinstance(text, str):
        raise wrong
    count, slash, duration = (part.strip() for part in text.partition("/"))
    if not slash or not (count.isascii() and count.isdecimal() and len(count) < 12) or not duration:
        raise wrong
    try:
        window = milliseconds(duration if duration[0].isdigit() else f"1{duration}", setting=name)
    except DefinitionError:
        raise wrong from None
    if not 0 < int(count) <= _MOST:
        raise DefinitionError(f"expected {name} to allow a positive number, got: {shown(text)}")
    if not _SHORTEST <= window <= _LONGEST:
        raise DefinitionError(f"expected {name} to have a window from 0.1 s to 366 days, got: {shown(text)}")
    return Rate(int(count), window)


def _check_pair(shorter: Rate, longer: Rate, name: str) -> None:
    pair = f"{show_rate(shorter)} and {show_rate(longer)}"
    if shorter.window_ms == longer.window_ms:
        raise DefinitionError(
            f"expected the rates of {name} to have windows of different lengths, got: {pair}"
        )
    if longer.starts >= shorter.starts * math.ceil(longer.window_ms / shorter.window_ms):
        raise DefinitionError(
            f"the longer rate of {pair} can never hold anything back, because the shorter one allows no more "
            f"within its window; leave it out of {name}, or lower it"
        )


def show_rate(rate: Rate) -> str:
    """Return the rate as text that a `Limit` takes, such as `"100/1s"`."""
    return f"{rate.starts}/{text_of_ms(rate.window_ms)}"
