"""The store's part for trees of jobs: adding them, checkpoints under a lease, and looking at them.

As `store`, which carries it: one script call each, on the keys of one shard, that may be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from eventbus.store.caller import Caller
from eventbus.store.keys import Keys
from eventbus.store.rows import EdgeRow, MemberRow, SaveRow, TreeHead, TreeMember

__all__ = ["Chunk", "TreePage", "TreeStore", "TreeVerdict"]


class Chunk(NamedTuple):
    """A part of a tree that goes in one call."""

    head: TreeHead
    rows: Sequence[MemberRow]
    edges: Sequence[EdgeRow]


class TreeVerdict(NamedTuple):
    """What became of a chunk: `word` is `new`, `joined`, `other` (joined, with another payload) or `gone`.

    Joined: `job` is the root that the key stands for, `state` is `open` or its final state, `text` its outcome.
    """

    word: str
    job: str
    state: str
    text: str


class TreePage(NamedTuple):
    """A root's fields by their names (none: unknown), its checkpoints, and some of its members."""

    root: dict[str, str]
    saved: dict[str, str]
    total: int
    members: list[TreeMember]


class TreeStore:
    """Trees of one shard."""

    def __init__(self, caller: Caller, adder: Caller, keys: Keys) -> None:
        """`adder` carries adds, which may have to wait for a replica."""
        self._caller = caller
        self._adder = adder
        self._keys = keys

    async def add(
        self, emitter: str, chunks: Sequence[Chunk], *, deadline: float, now: int | str = ""
    ) -> list[TreeVerdict]:
        """Add trees or chunks of them; a verdict for each in order."""
        arguments: list[Any] = [now, emitter, len(chunks)]
        for chunk in chunks:
            arguments.extend(chunk.head)
            arguments.extend(chain.from_iterable(chunk.rows))
            arguments.extend(chain.from_iterable(chunk.edges))
        flat = await self._adder.script("graph", arguments, deadline=deadline)
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
        deadline: float | None = None,
        now: int | str = "",
    ) -> str:
        """Save, add children and wait for them under a lease: `ok`, `waiting`, `stopping` or `lost`."""
        head = (now, job, token, int(acknowledges), int(opens), int(waits), len(saves), len(rows), len(edges))
        arguments: list[Any] = [*head]
        for each in (saves, rows, edges):
            arguments.extend(chain.from_iterable(each))
        return await self._caller.script("checkpoint", arguments, deadline=deadline)

    async def look(
        self,
        tree: str,
        *,
        listed: str = "members",
        first: int = 0,
        limit: int = 200,
        max_bytes: int = 0,
        deadline: float | None = None,
    ) -> TreePage:
        """Look at a tree. `listed` is `members` or `done`; outcomes come where `max_bytes` is above 0."""
        arguments: list[Any] = [tree, listed, first, limit, max_bytes]
        fields, saved, count, flat = await self._caller.script("tree", arguments, deadline=deadline)
        members = [_member(flat[i : i + 10]) for i in range(0, len(flat), 10)]
        return TreePage(_pairs(fields), _pairs(saved), count, members)

    async def restart(
        self,
        root: str,
        *,
        call: str,
        run: int,
        body: str,
        timeout_ms: int | str = "",
        deadline: float | None = None,
        now: int | str = "",
    ) -> str:
        """Begin the run after `run` of a tree that has ended: `restarted`, `open`, `other` (that was not its last
        run), `member` (of another tree) or `unknown`. `call` is fresh for each request.
        """
        arguments: list[Any] = [now, root, call, run, body, timeout_ms]
        return await self._adder.script("restart", arguments, deadline=deadline)

    async def root_queues(self, *, deadline: float | None = None) -> list[str]:
        """The queues that have had roots."""
        return sorted(
            await self._caller.command("SMEMBERS", self._keys.shard_key("rooted"), deadline=deadline)
        )

    async def roots(
        self, queue: str, state: str, *, first: int, limit: int, deadline: float | None = None
    ) -> list[str]:
        """Roots of a queue, newest first: those that are `open`, or ended in `state`."""
        name = self._keys.of("roots" if state == "open" else state, queue)
        return await self._caller.command("ZREVRANGE", name, first, first + limit - 1, deadline=deadline)


def _member(flat: list[Any]) -> TreeMember:
    job, state, queue, attempts, stalls, created, claimed, ended, text, needs = flat
    return TreeMember(
        job, state, queue, int(attempts), int(stalls), int(created), int(claimed), int(ended), text, needs
    )


def _pairs(flat: list[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
