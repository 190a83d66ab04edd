"""Trees of jobs, as the code that adds them describes them: a root, its members, and which job needs which.

These are values only; `tree_sender` sends them. A tree is added in one call, or in chunks if it is too large
for one call: the first chunk brings the root, and the last chunk opens the tree.

What must always hold: an edge travels with the later of its two jobs, so that the server never knows a job
without the jobs that it needs (see `lib/planting.lua`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from eventbus.errors import DefinitionError
from eventbus.model import chance
from eventbus.model.durations import Duration
from eventbus.model.names import shown
from eventbus.settings.terms import keep_text
from eventbus.store.bounds import CALL_BYTES, HEAVY_ROWS
from eventbus.store.calls.tree_store import Chunk
from eventbus.store.scripting.script_rows import JOIN, AddRow, EdgeRow, MemberRow, TreeHead, Wait

Policy: TypeAlias = Literal["", "fail", "ignore", "remove", "wake"]
"""What becomes of a job if a job that it needs does not complete; empty for `fail`."""


class Member(msgspec.Struct, frozen=True):
    """One job of a tree. `needs` are the ids of the members that must complete before it starts.

    A job without a `body` is given the body of its root. `delay` is in seconds from the call that adds the
    job: it starts when that time has passed and the members that it needs have completed. `on` says what
    becomes of the job if a job that it needs does not complete. `up` says what its own failure does to the
    jobs that need it, and overrides their `on`. With `is_root`, the job is the root of a nested tree, to
    which it may add members while it runs; `timeout` is the timeout of that tree, in seconds.
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

    def __post_init__(self) -> None:
        _check(self.id, self.queue)


class Tree(msgspec.Struct, frozen=True):
    """A root and its members. It starts when the members that it `needs` have ended and its `delay` has
    passed.

    `on` is `wake` for a root that deals with the failures and the stop of its tree itself. `delay` is in
    seconds from the add; a root that is to deal with the stop of its tree does not wait for it. `timeout` is
    in seconds from when the root is due, 0 for none; the server keeps it. `key` is the digest of an
    idempotency key, and `print` the digest of the payload. `meeting` has the same meaning as for emissions
    (`AddRow`). With `require_worker` a lone root (`is_lone`) is refused while no worker serves its queue.
    `keep_completed` and `keep_failed`, for a lone root, too, say how long the tree is kept once it has ended:
    an age or 0, None as its queue says.
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
    require_worker: bool = False
    keep_completed: Duration | None = None
    keep_failed: Duration | None = None

    def __post_init__(self) -> None:
        _check(self.id, self.queue)
        option = (
            "keep_completed or keep_failed" if self.keep else "require_worker" if self.require_worker else ""
        )
        if option and not self.is_lone:
            raise DefinitionError(
                f"{option} is for a root that adds its members itself, got a tree with members, needs or a "
                "policy"
            )

    @property
    def is_lone(self) -> bool:
        """Whether the root can be added as an emission is: it has no members yet, and deals with its stop
        itself.
        """
        return not self.members and not self.needs and self.on == "wake"

    @property
    def timeout_ms(self) -> int | str:
        """The timeout in ms, `''` for none."""
        return round(self.timeout * 1000) or ""

    @property
    def keep(self) -> str:
        """How long the tree is kept, as the record of its root has it. Raises DefinitionError for what is no
        age.
        """
        return keep_text(self.keep_completed, self.keep_failed)


_LIKE_AN_ENTRY = re.compile(r"![0-9]+\Z")


def _check(job_id: str, queue: str) -> None:
    """Refuse what the server could not keep.

    That is an id that the hash of a worker's jobs could not tell from its own fields (`holds.lua`), or a list
    from an entry of another job (`entry.lua`); a queue that the book could not tell from the shard
    (`book.lua`); and a name of a queue or an id that a record has no room for (`plain.lua`).
    """
    if (
        job_id.startswith("#")
        or _LIKE_AN_ENTRY.search(job_id)
        or len(job_id.encode("utf-8", "surrogatepass")) >= 1 << 16
    ):
        raise DefinitionError(
            "expected an id of a job of less than 65,536 bytes that does not begin with # and does not end "
            f"in ! and a number, got: {shown(job_id)}"
        )
    if queue == "*" or not 0 < len(queue.encode("utf-8", "surrogatepass")) < 256:
        raise DefinitionError(
            f"expected a queue with a name of 1 to 255 bytes other than *, got: {shown(queue)}"
        )


def chunks_of(tree: Tree, *, reply: bool) -> list[Chunk]:
    """Return the chunks of a tree in the order in which they must be sent."""
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


def row_of(tree: Tree) -> AddRow:
    """Return the row of a lone root, as if its queue were the only one of the call."""
    return AddRow(
        id=tree.id,
        queue=1,
        body=tree.body,
        key=tree.key,
        print=tree.print,
        delay=round(tree.delay * 1000) or "",
        due="",
        priority=tree.priority,
        lifo=0,
        reply=1,
        meeting=tree.meeting,
        keep=tree.keep,
    )


def rows_of(
    members: Sequence[Member], *, root: str, parent: str, awaited: Sequence[str]
) -> tuple[list[MemberRow], list[EdgeRow]]:
    """Return the rows and the edges of members of one tree. The job `parent` waits for those in `awaited`."""
    rows: list[MemberRow] = []
    edges: list[EdgeRow] = []
    waited = set(awaited)
    for place, member in enumerate(members, start=1):
        rows.append(
            MemberRow(
                member.id,
                "" if member.id == root else root,
                member.queue,
                member.body,
                member.priority,
                round(member.delay * 1000) or "",
                member.on,
                member.up,
                1 if member.is_root else "",
                round(member.timeout * 1000) or "",
            )
        )
        edges.extend(EdgeRow(place, member.id, needed) for needed in member.needs)
        if member.id in waited:
            edges.append(EdgeRow(place, parent, member.id))
    return rows, edges


class SpawnCall(NamedTuple):
    """One of the calls by which a running job adds members and begins to wait for children.

    `rows`, `edges`, `wait` and `awaited` are those of `TreeStore.checkpoint`.
    """

    rows: Sequence[MemberRow]
    edges: Sequence[EdgeRow]
    wait: Wait
    awaited: Sequence[str]


def spawn_calls(
    members: Sequence[Member], *, root: str, parent: str, awaited: Sequence[str], wait: Wait
) -> list[SpawnCall]:
    """Return the calls by which the job `parent` adds `members` to the tree `root`; at least one.

    If it awaits nothing but some of these, and until all have ended, edges say so. Any other wait names its
    children.
    """
    parts = list(_parts(members)) or [[]]
    is_plain = not wait.mixed and {each.id for each in members}.issuperset(awaited)
    if is_plain:
        return [
            SpawnCall(*rows_of(part, root=root, parent=parent, awaited=awaited), wait, ()) for part in parts
        ]
    children = list(dict.fromkeys(awaited))
    lists = [children[i : i + HEAVY_ROWS] for i in range(0, len(children), HEAVY_ROWS)] or [[]]
    is_one = len(parts) == len(lists) == 1
    wait = wait._replace(mixed=1, call="" if is_one else chance.token(8), total=len(children))
    calls = [SpawnCall(*rows_of(part, root=root, parent=parent, awaited=()), Wait(), ()) for part in parts]
    first = calls.pop()  # the rows of all children are there by then
    return [
        *calls,
        first._replace(wait=wait, awaited=lists[0]),
        *(SpawnCall((), (), wait, each) for each in lists[1:]),
    ]


def _parts(members: Sequence[Member]) -> Iterator[list[Member]]:
    """Yield parts of members, each within `HEAVY_ROWS` and `CALL_BYTES` unless it is a single member."""
    part: list[Member] = []
    count = size = 0
    for member in members:
        count += 1 + len(member.needs)  # its row and its edges
        size += len(member.body)
        if part and (count > HEAVY_ROWS or size > CALL_BYTES):
            yield part
            part, count, size = [], 1 + len(member.needs), len(member.body)
        part.append(member)
    if part:
        yield part
