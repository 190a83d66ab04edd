"""What the two busiest calls send and are answered, `add` and `turn`: flat lists, made and read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from eventbus.store.script_rows import AddAnswer, AddQueue, AddRow, AddVerdict, ClaimRow, TurnAnswer, WatchRow

__all__ = ["join_arguments", "plain_fields", "read_added", "read_turn"]


def join_arguments(head: tuple[Any, ...], queues: Sequence[AddQueue], fields: list[Any]) -> list[Any]:
    """Return the arguments of an add."""
    return [*head, *chain.from_iterable(queues), *fields]


def read_added(queues: int, flat: list[Any]) -> AddAnswer:
    """Read the answer of `add.lua`: the server's time, the widths of the queues, then five values for each verdict."""
    first = 1 + queues
    return AddAnswer(flat[1:first], [AddVerdict(*flat[i : i + 5]) for i in range(first, len(flat), 5)])


def plain_fields(rows: Sequence[AddRow]) -> list[Any] | None:
    """Return the fields of all rows in short form, or None if a row asks for more than a reply."""
    fields: list[Any] = []
    for row in rows:
        if row.key or row.delay != "" or row.due != "" or row.priority or row.lifo:
            return None
        fields += (row.id, row.queue, row.body, row.reply)  # a `PlainRow`, but without its object, for speed
    return fields


def read_turn(answer: list[Any], *, token: str) -> TurnAnswer:
    """Read the answer of `turn.lua`; `token` is that of its claims."""
    flat = answer[5]
    claims = [ClaimRow(*flat[i : i + 8]) for i in range(0, len(flat), 8)]
    met = answer[7:]  # it met suspects: those that it claims, and queues
    rows = met[0] if met else ()
    watches = [WatchRow(*rows[i : i + 3]) for i in range(0, len(rows), 3)]
    lonely = met[1] if met else ()
    return TurnAnswer(
        *answer[:5], token=token, claims=claims, foreign=answer[6], watches=watches, lonely=lonely
    )
