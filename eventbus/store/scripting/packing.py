"""What the two busiest calls send and are answered, `add` and `turn`: flat lists, made and read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from eventbus.store.scripting.script_rows import (
    JOIN,
    AddAnswer,
    AddQueue,
    AddRow,
    AddVerdict,
    AppendRefusal,
    ClaimRow,
    Idle,
    JournalRow,
    PlainRow,
    SettleRow,
    TimeoutRow,
    TurnAnswer,
    TurnQueue,
    WatchRow,
)


class AddRows:
    """The rows of one add, as one flat list of their values: so no row needs an object, and the call no copy.

    A call has rows of one kind only (see `add.lua`). They are of the short kind, `PlainRow`, until one asks
    for more.
    """

    __slots__ = ("fields", "is_plain", "timeouts", "width")

    def __init__(self, rows: Iterable[AddRow] = ()) -> None:
        self.fields: list[Any] = []
        """The values of all rows, one row after the other."""
        self.is_plain: bool = True
        self.width: int = len(PlainRow._fields)
        """How many values a row has."""
        self.timeouts: list[TimeoutRow] = []
        """Of those roots that have one."""
        for row in rows:
            self.put(row)

    def __len__(self) -> int:
        return len(self.fields) // self.width

    def put_plain(self, job: str, queue: int, body: str, reply: int) -> None:
        """Take the values of a `PlainRow`."""
        if self.is_plain:
            self.fields += (job, queue, body, reply)
        else:
            self.fields += _in_full(job, queue, body, reply)

    def put(self, row: AddRow) -> None:
        """Take a row."""
        if not (
            row.key or row.delay != "" or row.due != "" or row.priority or row.lifo or row.limit or row.keep
        ):
            self.put_plain(row.id, row.queue, row.body, row.reply)
            return
        if self.is_plain:
            values = iter(self.fields)
            rows = zip(values, values, values, values, strict=True)
            self.fields = [value for plain in rows for value in _in_full(*plain)]
            self.is_plain, self.width = False, len(AddRow._fields)
        self.fields += row

    def put_root(self, row: AddRow, timeout: int | str) -> None:
        """Take the row of a root, and the timeout of its tree in ms, `''` if it has none."""
        if timeout != "":
            self.timeouts.append(TimeoutRow(len(self), int(timeout)))
        self.put(row)

    def pick(self, places: Iterable[int]) -> AddRows:
        """Return the rows at these places, counted from 0."""
        picked, timeouts = AddRows(), dict(self.timeouts)
        picked.is_plain, picked.width = self.is_plain, self.width
        for number, place in enumerate(places):
            first = place * self.width
            picked.fields += self.fields[first : first + self.width]
            if place in timeouts:
                picked.timeouts.append(TimeoutRow(number, timeouts[place]))
        return picked

    def queue(self, place: int) -> int:
        """Return the place of the queue of one row in the call, counted from 1."""
        return self.fields[place * self.width + 1]

    def queues(self) -> list[int]:
        """Return for each row the place of its queue in the call, counted from 1."""
        return self.fields[1 :: self.width]

    def bodies(self) -> list[str]:
        """Return the body of each row."""
        return self.fields[2 :: self.width]


def _in_full(job: str, queue: int, body: str, reply: int) -> tuple[Any, ...]:
    """Return the values of a `PlainRow` as those of an `AddRow`."""
    return (job, queue, body, "", "", "", "", 0, 0, reply, JOIN, "", "", "")


def join_arguments(head: tuple[Any, ...], queues: Sequence[AddQueue], rows: AddRows) -> list[Any]:
    """Return the arguments of an add."""
    return [*head, *chain.from_iterable(queues), *chain.from_iterable(rows.timeouts), *rows.fields]


def read_added(queues: int, flat: list[Any]) -> AddAnswer:
    """Read the answer of `add.lua`: the server's time, the widths of the queues, then five values for each
    verdict.
    """
    first = 1 + queues
    return AddAnswer(flat[1:first], [AddVerdict(*flat[i : i + 5]) for i in range(first, len(flat), 5)])


def read_turn(answer: list[Any], *, token: str) -> TurnAnswer:
    """Read the answer of `turn.lua`; `token` is that of its claims."""
    flat = answer[5]
    claims = [ClaimRow(*flat[i : i + 8]) for i in range(0, len(flat), 8)]
    plain = TurnAnswer(*answer[:5], token=token, claims=claims, foreign=answer[6])
    if len(answer) == 7:
        return plain
    watches, lonely, refused, journals, duty, aparts = answer[7:]
    return plain._replace(
        watches=[WatchRow(*watches[i : i + 3]) for i in range(0, len(watches), 3)],
        lonely=lonely,
        refusals=[AppendRefusal(*refused[i : i + 3]) for i in range(0, len(refused), 3)],
        journals=[JournalRow(*each) for each in journals],
        has_duty=duty == 1,
        aparts=aparts,
    )


class Append(NamedTuple):
    """What one job appends: entries, live texts by name, and the signals that the entries take over."""

    id: str
    token: str
    place: int
    entries: Sequence[str]
    live: Mapping[str, str]
    taken: Sequence[str]


def flatten_appends(appends: Sequence[Append]) -> list[Any]:
    """Return the arguments of appends: an `AppendRow` for each, then of all of them the live texts, the
    signals, the entries.
    """
    flat: list[Any] = []
    for each in appends:
        flat += (each.id, each.token, each.place, len(each.live), len(each.taken), len(each.entries))
    for each in appends:
        for text in each.live.items():
            flat += text
    for each in appends:
        flat += each.taken
    for each in appends:
        flat += each.entries
    return flat


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a lane. Not a named tuple, which takes longer to make and to read.

    `lane` is the worker's id, with a `+` for its second lane; `call` rises by one from turn to turn of the
    lane. `idle` says whether the worker may be handed a lone job from now on. At most `want` jobs are
    claimed, and claiming stops once bodies reach `max_bytes`.
    """

    lane: str
    call: int
    lease_ms: int
    pool: str
    idle: Idle = 0
    want: int
    suspects: int = 0
    """How many of the claimed jobs may be suspects."""
    watched: int = 0
    """How many suspects the worker has already."""
    is_alone: bool = False
    """Whether the worker made room for a suspect that must be alone."""
    max_bytes: int
    queues: Sequence[TurnQueue]
    settles: Sequence[SettleRow]
    appends: Sequence[Append] = ()
    """They go first."""

    def flatten(self, now: int | str) -> list[Any]:
        """Return the arguments of the call, in the order of the header of `turn.lua`."""
        arguments: list[Any] = [
            now, self.lane, self.call, self.lease_ms, self.pool, self.idle, self.want,
            self.suspects, self.watched, int(self.is_alone), self.max_bytes,
            len(self.queues), len(self.appends), len(self.settles),
        ]  # fmt: skip
        arguments += chain.from_iterable(self.queues)
        if self.appends:
            arguments += flatten_appends(self.appends)
        arguments += chain.from_iterable(self.settles)
        return arguments
