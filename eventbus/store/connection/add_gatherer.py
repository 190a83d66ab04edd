"""The gatherer of adds: what several stores of one connection add in one tick of the event loop is one call.

    put -> waiting -> part of a call -- answer --> each part gets its share of it
                                     -- error ---> each part goes on alone
                   -> late or given up: never sent from here

The server takes about as long for a call of one emission as for fifteen more in it. Fifty emitters with a few
emissions each would make fifty calls. Parts leave in the next step of the loop. While four calls are under
way they wait for an answer, so that the next call fills, as in a send buffer. With a single store nothing is
gathered: its calls go out at once.

Only the first try is shared. A part that has to be repeated, because the call was refused or its answer was
lost, goes on in a call of its own, with its own deadline, by its own caller (`started_call`). Thus a slow or
impatient part changes nothing for the others, and each error says what may have happened to that part.

What must always hold:
- each part ends once, with its own rows' verdicts and its own queues' widths, or with an error;
- a part that ended before its call is sent is not sent: it was given up, or is late and says that
  it was not sent;
- parts wait only while a call is under way, and the end of each call sends what waits;
- the rows of one store keep their order, and its calls leave in the order in which they came, behind those
  that are repeated (`repeat_line`);
- a call keeps the bounds of the send buffer, in rows and in bytes;
- parts are added to one call only if they ask for the same: the same emitter, rows of the same
  kind, and nothing different of the same queue.

Crash windows are those of a single call (`send_buffer`): the rows of a part are added with the call or not at
all. Repeats have the same ids, so a part that goes on alone changes nothing if the call was carried out.

Rejected: one send buffer for all, because its bounds, its stop and its deadlines belong to one provider; the
earliest deadline of all parts for the call, because an emission that has time would share the end of one that
has not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from eventbus.errors import StoreError, StoreRefused
from eventbus.runtime.own_context import own_context
from eventbus.store.bounds import CALL_BYTES, CALL_ROWS
from eventbus.store.connection.channel import Channel
from eventbus.store.connection.functions import Functions
from eventbus.store.connection.invocation import Command, Invocation
from eventbus.store.connection.started_call import StartedCall
from eventbus.store.connection.wire import ReplySink
from eventbus.store.keys import Keys
from eventbus.store.scripting.packing import AddRows
from eventbus.store.scripting.script_rows import AddQueue, TimeoutRow
from eventbus.store.scripting.scripts import pack

_IN_FLIGHT = 4  # calls under way at most
_VERDICT = 5  # values of a verdict in the answer
_QUEUE = 1  # place among the values of a row


class AddPart:
    """What one store adds in one call."""

    __slots__ = ("attendance", "call", "count", "emitter", "queues", "rows", "sink", "size", "store")

    def __init__(
        self,
        store: object,
        emitter: str,
        queues: Sequence[AddQueue],
        rows: AddRows,
        *,
        call: StartedCall,
        sink: ReplySink,
    ) -> None:
        """`sink` gets the answer to this part."""
        self.store: object = store
        self.emitter: str = emitter
        self.attendance: str = ""
        """Under which the emitter awaits what it adds, `''` if the call need not say it."""
        self.queues: Sequence[AddQueue] = queues
        self.rows: AddRows = rows
        self.count: int = len(rows)
        self.call: StartedCall = call
        self.sink: ReplySink = sink
        self.size: int = sum(map(len, rows.bodies()))


class AddGatherer:
    """The adds of the stores of one connection."""

    def __init__(self, channel: Channel, keys: Keys, *, functions: Functions, prelude: str) -> None:
        self.stores: int = 0
        """How many stores add here now."""
        self._channel = channel
        self._keys = keys
        self._functions = functions
        self._prelude = prelude
        self._parts: list[AddPart] = []
        self._in_flight = 0
        self._is_due = False
        self._context = own_context()

    @property
    def is_needed(self) -> bool:
        """Whether there may be other parts for the same call."""
        return self.stores > 1 or bool(self._parts)

    def put(self, part: AddPart) -> None:
        """Take one part; it leaves in the next step of the loop, or when fewer calls are under way."""
        self._parts.append(part)
        part.call.watch(is_sent=False)
        self._send_soon()

    def _send_soon(self) -> None:
        if self._parts and not self._is_due and self._in_flight < _IN_FLIGHT:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._send_all, context=self._context)

    def _send_all(self) -> None:
        self._is_due = False
        waiting, self._parts = [part for part in self._parts if not part.sink.done()], []
        parts = [part for part in waiting if not part.call.must_wait]
        for part in waiting:
            if part.call.must_wait:
                part.call.go_alone()
        calls = _gather(parts)
        for place, gathered in enumerate(calls):
            if self._in_flight >= _IN_FLIGHT:
                self._parts = [part for later in calls[place:] for part in later.parts]
                return
            self._send(gathered)

    def _send(self, gathered: _GatheredCall) -> None:
        try:
            command = self._make_command(gathered)
        except Exception:  # noqa: BLE001  (one part cannot be packed: it alone fails, and the others go on)
            gathered.split()
            return
        self._in_flight += 1
        gathered.on_end = self._on_end
        for part in gathered.parts:
            part.call.is_sent = True
        if not self._channel.send(command, gathered):
            self._on_end()
            for part in gathered.parts:
                part.call.is_sent = False
            gathered.split()  # they must connect first, each with its own patience

    def _make_command(self, gathered: _GatheredCall) -> Command:
        packed, form = pack(gathered.make_arguments()), self._functions.form
        return Invocation("add", self._keys.declared, packed, form=form, prelude=self._prelude).command

    def _on_end(self) -> None:
        self._in_flight -= 1
        self._send_soon()


class _GatheredCall:
    """Parts that travel together, and the receiver of their answer."""

    def __init__(self, first: AddPart) -> None:
        self.parts: list[AddPart] = []
        self.on_end: Callable[[], None] = _ignore
        """Called once, with the answer or the error."""
        self._emitter = first.emitter
        self._is_plain = first.rows.is_plain
        self._queues: dict[tuple[str, int], tuple[int, AddQueue]] = {}
        """Name, and whether its rows are roots -> its place in the call, and the queue."""
        self._rows = 0
        self._size = 0

    def take(self, part: AddPart) -> bool:
        """Add a part to the call. Return False if it does not fit."""
        if self.parts and not self._fits(part):
            return False
        self.parts.append(part)
        self._rows += part.count
        self._size += part.size
        for queue in part.queues:
            self._queues.setdefault(_name(queue), (len(self._queues) + 1, queue))
        return True

    def _fits(self, part: AddPart) -> bool:
        return (
            self._rows + part.count <= CALL_ROWS
            and self._size + part.size <= CALL_BYTES
            and part.rows.is_plain == self._is_plain
            and part.emitter == self._emitter
            and all(self._queues.get(_name(queue), (0, queue))[1] == queue for queue in part.queues)
        )

    def make_arguments(self) -> list[Any]:
        """Return the arguments of the call: as those of one store, with the places of the queues in this
        call.
        """
        queues = [queue for _, queue in self._queues.values()]
        counts = (self._rows, 0) if self._is_plain else (0, self._rows)
        said = max(part.attendance for part in self.parts)  # the emitter's; one is enough for the call
        timeouts = self._list_timeouts()
        head = ("", self._emitter, said, len(queues), len(timeouts), *counts)
        arguments: list[Any] = [*head, *chain.from_iterable(queues), *chain.from_iterable(timeouts)]
        for part in self.parts:
            fields = part.rows.fields.copy()  # the part keeps its own, in case it has to go on alone
            places = self._places(part)
            fields[_QUEUE :: part.rows.width] = [places[place - 1] for place in part.rows.queues()]
            arguments += fields
        return arguments

    def _list_timeouts(self) -> list[TimeoutRow]:
        timeouts: list[TimeoutRow] = []
        first = 0
        for part in self.parts:
            timeouts += [TimeoutRow(first + row, timeout) for row, timeout in part.rows.timeouts]
            first += part.count
        return timeouts

    def _places(self, part: AddPart) -> list[int]:
        return [self._queues[_name(queue)][0] for queue in part.queues]

    # What a receiver of an answer offers.

    def done(self) -> bool:
        """Return False: the end of the call is wanted even if no part wants its answer."""
        return False

    def set_result(self, result: Any, /) -> None:
        """Give each part its share of the answer."""
        self.on_end()
        first = 0
        for part in self.parts:
            if not part.sink.done():
                part.sink.set_result(self._read_share(result, part, first))
            first += part.count

    def set_exception(self, exception: StoreError, /) -> None:
        """Let each part go on alone: the call was refused, or its answer was lost.

        A refusal may be due to one part, or to the form of the call. So each asks again by itself.
        """
        self.on_end()
        if isinstance(exception, StoreRefused):
            self.split()
            return
        for part in self.parts:
            if not part.sink.done():
                part.sink.set_exception(exception)

    def split(self) -> None:
        """Send each part in a call of its own; nothing of this call was carried out."""
        for part in self.parts:
            if not part.sink.done():
                part.call.go_alone()

    def _read_share(self, flat: list[Any], part: AddPart, first: int) -> list[Any]:
        """Return the answer that the rows of `part`, the first of which is number `first`, would get
        alone.
        """
        share: list[Any] = [flat[0], *(flat[place] for place in self._places(part))]
        for at in range(1 + len(self._queues), len(flat), _VERDICT):
            if first <= flat[at] < first + part.count:
                share += (flat[at] - first, *flat[at + 1 : at + _VERDICT])
        return share


def _ignore() -> None: ...


def _name(queue: AddQueue) -> tuple[str, int]:
    return queue.queue, queue.traits


def _gather(parts: Iterable[AddPart]) -> list[_GatheredCall]:
    """Put parts into few calls. Those of one store stay in their order."""
    calls: list[_GatheredCall] = []
    newest: dict[bool, int] = {}  # kind of rows -> the newest call of that kind
    earliest: dict[object, int] = {}  # store -> the call before which nothing of it may go
    for part in parts:
        place = newest.get(part.rows.is_plain, -1)
        if place < earliest.get(part.store, 0) or not calls[place].take(part):
            place = newest[part.rows.is_plain] = len(calls)
            calls.append(_GatheredCall(part))
            calls[place].take(part)
        earliest[part.store] = place
    return calls
