"""Limits as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from eventbus.model.limit import Limit, read_rates, show_rate

__all__ = ["show_limit"]


def show_limit(order: Limit | None) -> str:
    """Return a limit as text, `-` for none."""
    if order is None:
        return "-"
    at_once = [] if order.at_once is None else [f"{order.at_once} at once"]
    each = [] if order.each is None else [f"{order.each} of each key"]
    own = [f"{rate} of each key" for rate in _list_rates(order.each_rate, "each_rate")]
    return ", ".join([*at_once, *_list_rates(order.rate, "rate"), *each, *own])


def _list_rates(given: str | Sequence[str], name: str) -> list[str]:
    return [show_rate(rate) for rate in read_rates(given, name)]
