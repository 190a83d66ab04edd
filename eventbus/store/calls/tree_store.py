"""Trees of jobs in the store: they are added, looked at and run again, and their jobs save checkpoints.

`Store.trees` is one of these. As in `store`, each method makes one call, which may be repeated, on the
keys of one shard. What must always hold: a checkpoint is saved only under the job's lease.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

from eventbus.store.bounds import CALL_ROWS
from eventbus.store.connection.retrying import RetryingCaller
from eventbus.store.keys import TIME_DIGITS, Keys
from eventbus.store.readable import readable
from eventbus.store.scripting.script_rows import EdgeRow, MemberRow, SaveRow, TreeHead, TreeMember, Wait

_PLAIN = Wait()


class Chunk(NamedTuple):
    """A part of a tree that one call adds."""

    head: TreeHead
    rows: Sequence[MemberRow]
    edges: Sequence[EdgeRow]


class TreeVerdict(NamedTuple):
    """What became of a chunk.

    `word` is `new`, `joined`, `other` (joined, but with another payload), `gone` (there is no root left to
    add the chunk to) or `pending` (another tree has the key, which is not whole yet: ask again). After a
    join, `job` is the root that the key stands for, `state` is `open` or that root's final state, and `text`
    is its outcome.
    """

    word: str
    job: str
    state: str
    text: str


class TreePage(NamedTuple):
    """A root's fields by their names (empty: the root is unknown), its checkpoints, and some of its members.

    `total` is how many members the whole list has.
    """

    root: dict[str, str]
    saved: dict[str, str]
    total: int
    members: list[TreeMember]


class RootPlace(NamedTuple):
    """The place of a root in the row of all: when it was added or ended, or when it goes (ms), and its id."""

    at_ms: int
    id: str


class RootRow(NamedTuple):
    """A root in a page of them. `is_there` is 0 where its record does not confirm the place."""

    id: str
    at_ms: int
    kind: str
    is_there: int


class TreeStore:
    """The trees of one shard."""

    def __init__(self, caller: RetryingCaller, adder: RetryingCaller, keys: Keys) -> None:
        """Send adds through `adder`, because they may have to wait for a replica."""
        self._caller = caller
        self._adder = adder
        self._keys = keys

    async def add(
        self,
        emitter: str,
        chunks: Sequence[Chunk],
        *,
        deadline: float,
        attendance: str = "",
        number: int = 0,
        now: int | str = "",
    ) -> list[TreeVerdict]:
        """Add trees or chunks of them, and return a verdict for each chunk, in order.

        `attendance` and `number`: see `Store.add`.
        """
        arguments: list[Any] = [now, emitter, attendance, len(chunks)]
        for chunk in chunks:
            arguments.extend(chunk.head)
            arguments.extend(chain.from_iterable(chunk.rows))
            arguments.extend(chain.from_iterable(chunk.edges))
        flat = await self._adder.script("graph", arguments, deadline=deadline, number=number)
        return [TreeVerdict(*flat[i : i + 4]) for i in range(1, len(flat), 4)]

    async def checkpoint(
        self,
        job: str,
        token: str,
        *,
        saves: Sequence[SaveRow] = (),
        rows: Sequence[MemberRow] = (),
        edges: Sequence[EdgeRow] = (),
        acknowledges: bool = False,
        opens: bool = False,
        waits: bool = False,
        wait: Wait = _PLAIN,
        awaited: Sequence[str] = (),
        deadline: float | None = None,
        now: int | str = "",
    ) -> str:
        """Save checkpoints, add children and let the job wait for them: in one call, under its lease.

        With `opens` the children may run; until then they are only recorded. With `waits` the job gives its
        lease up until its children have ended, or as `wait` says: then `awaited` are the children, new ones
        or others. `acknowledges` says that the job knows of the stop of its tree, so that what it settles
        from here on is final.

        Return `ok`, `waiting`, `stopping` (the tree stops, so nothing was added) or `lost` (the lease).
        """
        head = (now, job, token, int(acknowledges), int(opens), int(waits))
        arguments: list[Any] = [*head, *wait, len(saves), len(rows), len(edges), len(awaited)]
        for section in (saves, rows, edges):
            arguments.extend(chain.from_iterable(section))
        arguments.extend(awaited)
        return await self._caller.script("checkpoint", arguments, deadline=deadline)

    async def fail(self, job: str, token: str, text: str, *, deadline: float | None = None) -> str:
        """Stop the tree of a root that runs, because it has failed; `text` is the record of its error.

        Return `ok`, `stopping` (the tree was stopped before) or `lost` (the lease).
        """
        return await self._caller.script("fail", ["", job, token, text], deadline=deadline)

    async def look(
        self,
        tree: str,
        *,
        listed: str = "members",
        first: int = 0,
        limit: int = CALL_ROWS,
        max_bytes: int = 0,
        deadline: float | None = None,
    ) -> TreePage:
        """Look at a tree and at a page of its members, `limit` of them from the place `first` on.

        `listed` is `members` (as they were added) or `done` (as they completed). Outcomes are read only if
        `max_bytes` is above 0; the page then ends with the outcome that reaches this many bytes.
        """
        arguments: list[Any] = [tree, listed, first, limit, max_bytes]
        fields, saved, count, flat = await self._caller.script("tree", arguments, deadline=deadline)
        flat = readable(flat)
        members = [TreeMember(*flat[i : i + 10]) for i in range(0, len(flat), 10)]
        return TreePage(_pairs(readable(fields)), _pairs(saved), count, members)

    async def restart(
        self,
        root: str,
        *,
        call: str,
        run: int,
        body: str,
        timeout_ms: int | str = "",
        keeps: Collection[Literal["journal", "inbox", "live", "texts"]] = (),
        forgets: Collection[str] = (),
        deadline: float | None = None,
        now: int | str = "",
    ) -> str:
        """Begin the next run of a tree that has ended. `run` is the number of its last run.

        `call` is fresh for each request, so that a repeat of the request is recognized. `timeout_ms` is that
        of the new run, which begins with what `keeps` names of the last one, and may be sent the signals
        `forgets` once more. Return `restarted`, `open` (the tree has not ended), `other` (`run` is not its
        last run), `member` (it belongs to another tree) or `unknown`.
        """
        arguments: list[Any] = [now, root, call, run, body, timeout_ms, list(keeps), list(forgets)]
        return await self._adder.script("restart", arguments, deadline=deadline)

    async def root_queues(self, *, deadline: float | None = None) -> list[str]:
        """Return the queues that have had roots, sorted."""
        return sorted(
            await self._caller.look("SMEMBERS", self._keys.shard_key("rooted"), missing=[], deadline=deadline)
        )

    async def root_page(
        self,
        queues: Sequence[str],
        kinds: Sequence[str],
        *,
        after: RootPlace | None,
        limit: int,
        deadline: float | None = None,
    ) -> list[RootRow]:
        """Return the roots of queues behind a place, those of all queues in one row: the highest time first,
        then the highest id.
        """
        time, root = ("", "") if after is None else after
        found: list[RootRow] = []
        for first in range(0, len(queues), CALL_ROWS):
            batch = queues[first : first + CALL_ROWS]
            arguments = [time, root, limit, " ".join(kinds), len(batch), *batch]
            flat: list[Any] = await self._caller.look_by("roots", arguments, missing=[], deadline=deadline)
            found += [RootRow(*flat[i : i + 4]) for i in range(0, len(flat), 4)]
        return sorted(found, key=lambda row: (row.at_ms, row.id.encode()), reverse=True)[:limit]

    async def roots(
        self, queue: str, state: str, *, first: int, limit: int, deadline: float | None = None
    ) -> list[str]:
        """Return roots of a queue, newest first: open ones, or those that ended in the state `state`."""
        name = self._keys.of("roots" if state == "open" else state, queue)
        last = first + limit - 1
        if state != "completed":
            return await self._caller.look("ZREVRANGE", name, first, last, missing=[], deadline=deadline)
        entries = await self._caller.look(
            "LRANGE", name, -1 - last, -1 - first, missing=[], deadline=deadline
        )
        return [entry[TIME_DIGITS:] for entry in reversed(entries)]


def _pairs(flat: list[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
