"""Trees as those who add them describe them: a root, members, and who needs whom. Values, no I/O.

A tree is added in one call or, when it is larger than a call may be, in chunks: the root with the
first, opened by the last. What must hold: an edge travels with the one of its two ends that comes
later, so that no job is ever known without what it needs (see `plant.lua`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from eventbus.store.rows import JOIN, EdgeRow, MemberRow, TreeHead
from eventbus.store.trees import Chunk

__all__ = ["Member", "Policy", "Tree", "chunks_of", "rows_of"]

Policy: TypeAlias = Literal["", "fail", "ignore", "remove", "wake"]
"""What becomes of a job when one that it needs does not complete; empty for `fail`."""

_ROWS = 100
_BYTES = 1 << 20


class Member(msgspec.Struct, frozen=True):
    """One job of a tree; `needs` names members that must complete before it starts.

    Without a `body` of its own it is given its root's. `delay` in seconds. `on` says what becomes of it
    when one that it needs does not complete, `up` overrides that of those who need it. With `is_root` it
    is a nested tree of its own, to which it may add members when it runs; `timeout` is that tree's, seconds.
    """

    id: str
    queue: str
    needs: Sequence[str] = ()
    body: str = ""
    priority: int = 0
    delay: float = 0.0
    on: Policy = ""
    up: Policy = ""
    is_root: bool = False
    timeout: float = 0.0


class Tree(msgspec.Struct, frozen=True):
    """A root and its members; the root starts when those that it `needs` have ended.

    `on` is `wake` for a root that deals with the failures and the stop of its tree itself. `timeout` in
    seconds from when it is due, kept in the server; 0 for none. `key` is an idempotency key's digest,
    `print` that of the payload; `meeting` as for emissions.
    """

    id: str
    queue: str
    body: str
    members: Sequence[Member] = ()
    needs: Sequence[str] = ()
    on: Policy = "wake"
    priority: int = 0
    delay: float = 0.0
    timeout: float = 0.0
    key: str = ""
    print: str = ""
    meeting: int = JOIN


def chunks_of(tree: Tree, *, reply: bool) -> list[Chunk]:
    """The calls that add the tree, in order."""
    head = Member(
        tree.id,
        tree.queue,
        (),
        tree.body,
        tree.priority,
        tree.delay,
        on=tree.on,
        is_root=True,
        timeout=tree.timeout,
    )
    parts = list(_parts([head, *tree.members]))
    chunks: list[Chunk] = []
    for place, part in enumerate(parts):
        rows, edges = rows_of(part, root=tree.id, parent=tree.id, awaited=tree.needs)
        first, last = int(place == 0), int(place == len(parts) - 1)
        chunks.append(
            Chunk(
                TreeHead(
                    tree.id,
                    first,
                    last,
                    tree.key,
                    tree.print,
                    tree.meeting,
                    int(reply),
                    len(rows),
                    len(edges),
                ),
                rows,
                edges,
            )
        )
    return chunks


def rows_of(
    members: Sequence[Member], *, root: str, parent: str, awaited: Sequence[str]
) -> tuple[list[MemberRow], list[EdgeRow]]:
    """The rows of members of one tree, with their edges; `parent` waits for those in `awaited`."""
    rows: list[MemberRow] = []
    edges: list[EdgeRow] = []
    waited = set(awaited)
    for place, each in enumerate(members, start=1):
        rows.append(
            MemberRow(
                each.id,
                "" if each.id == root else root,
                each.queue,
                each.body,
                each.priority,
                round(each.delay * 1000) or "",
                each.on,
                each.up,
                1 if each.is_root else "",
                round(each.timeout * 1000) or "",
            )
        )
        edges.extend(EdgeRow(place, each.id, needed) for needed in each.needs)
        if each.id in waited:
            edges.append(EdgeRow(place, parent, each.id))
    return rows, edges


def parts_of(members: Sequence[Member]) -> list[list[Member]]:
    """Members in parts that fit a call each; at least one part."""
    return list(_parts(members)) or [[]]


def _parts(members: Sequence[Member]) -> Iterator[list[Member]]:
    part: list[Member] = []
    count = size = 0
    for each in members:
        count += 1 + len(each.needs)
        size += len(each.body)
        if part and (count > _ROWS or size > _BYTES):
            yield part
            part, count, size = [], 1 + len(each.needs), len(each.body)
        part.append(each)
    if part:
        yield part
