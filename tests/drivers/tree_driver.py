"""Trees under test: described in short, added whole or in chunks, and run call by call.

A driver remembers the claims of its workers. If it `repeats`, it sends every call twice, as after a
lost answer, and checks that both answers are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from drivers.shards import LEASE, Shard, settle, turn_queue

from eventbus.emit.job_tree import Member, Tree, row_of, rows_of, spawn_calls
from eventbus.store.calls.tree_store import Chunk, TreePage, TreeVerdict
from eventbus.store.scripting.packing import AddRows
from eventbus.store.scripting.script_rows import AddQueue, AddVerdict, ClaimRow, TreeHead, TurnAnswer, Wait
from eventbus.store.store import Store

__all__ = ["ROOTS", "STEPS", "TIMEOUT", "TreeDriver", "add_roots", "make_tree", "pieces_of"]

ROOTS, STEPS = "flow", "flow.steps"
TIMEOUT = 3600.0
"""The timeout, in seconds, of trees that a test stops by their timeout."""
_QUEUES = (turn_queue(ROOTS), turn_queue(STEPS))
_FAR = 10.0**12


def make_tree(
    needs: Mapping[str, str],
    *,
    root: str = "f",
    awaited: Iterable[str] | None = None,
    ups: Mapping[str, Any] | None = None,
    ons: Mapping[str, Any] | None = None,
    delays: Mapping[str, float] | None = None,
    **given: Any,
) -> Tree:
    """Make a tree with members `root/name`, each with the names that it needs.

    The root needs the members that no other member needs, unless `awaited` names others.
    """
    needed = {each for names in needs.values() for each in names.split()}
    last = [name for name in needs if name not in needed] if awaited is None else awaited
    members = [
        Member(
            f"{root}/{name}",
            STEPS,
            needs=[f"{root}/{each}" for each in names.split()],
            up=(ups or {}).get(name, ""),
            on=(ons or {}).get(name, ""),
            delay=(delays or {}).get(name, 0.0),
        )
        for name, names in needs.items()
    ]
    body = given.pop("body", '{"d":1}')
    return Tree(root, ROOTS, body, members, [f"{root}/{each}" for each in last], **given)


def pieces_of(tree: Tree, size: int = 10_000, *, reply: bool = False) -> list[Chunk]:
    """Split the tree into chunks of at most `size` rows."""
    head = Member(
        tree.id, tree.queue, (), tree.body, tree.priority, tree.delay,
        on=tree.on, is_root=True, timeout=tree.timeout,
    )  # fmt: skip
    every = [head, *tree.members]
    parts = [every[i : i + size] for i in range(0, len(every), size)]
    chunks: list[Chunk] = []
    for place, part in enumerate(parts):
        rows, edges = rows_of(part, root=tree.id, parent=tree.id, awaited=tree.needs)
        facts = (tree.id, int(place == 0), int(place == len(parts) - 1), tree.key, tree.print, tree.meeting)
        chunks.append(Chunk(TreeHead(*facts, int(reply), len(rows), len(edges)), rows, edges))
    return chunks


async def add_roots(
    store: Store, trees: Sequence[Tree], *, reply: bool = False, emitter: str = "em", now: int | str
) -> list[AddVerdict]:
    """Add lone roots in one call, as emissions are added."""
    rows, queues = AddRows(), list(dict.fromkeys(tree.queue for tree in trees))
    for tree in trees:
        row = row_of(tree)._replace(queue=1 + queues.index(tree.queue), reply=int(reply))
        rows.put_root(row, tree.timeout_ms)
    places = [AddQueue(name, 1, "", 1) for name in queues]
    return (await store.add(emitter, places, rows, deadline=_FAR, now=now)).verdicts


class TreeDriver:
    """Adds the trees of one shard, and acts as the workers that run them."""

    queues = _QUEUES

    def __init__(self, shard: Shard, *, repeats: bool) -> None:
        self.shard = shard
        self.repeats = repeats
        self.held: dict[str, tuple[ClaimRow, str]] = {}
        """job -> its claim, and the token of its lease."""
        self._cancels = 0

    async def send(self, chunk: Chunk, *, emitter: str = "em") -> TreeVerdict:
        add = self.shard.store.trees.add
        (verdict,) = await add(emitter, [chunk], deadline=_FAR, now=self.shard.now)
        if self.repeats:
            assert await add(emitter, [chunk], deadline=_FAR, now=self.shard.now) == [verdict]
        return verdict

    async def add(self, tree: Tree, size: int = 10_000, *, reply: bool = False) -> TreeVerdict:
        """Add the tree in chunks; return the verdict on the last chunk."""
        return [await self.send(chunk) for chunk in pieces_of(tree, size, reply=reply)][-1]

    async def add_alone(self, *trees: Tree, reply: bool = False, emitter: str = "em") -> list[TreeVerdict]:
        """Add lone roots in one call, as emissions are added; return a verdict on each, like those of
        `add`.
        """
        answers = [
            await add_roots(self.shard.store, trees, reply=reply, emitter=emitter, now=self.shard.now)
            for _ in range(2 if self.repeats else 1)
        ]
        assert all(each == answers[0] for each in answers)
        found = {each.place: each for each in answers[0]}
        new = [TreeVerdict("new", tree.id, "", "") for tree in trees]
        return [TreeVerdict(*found[i][1:]) if i in found else each for i, each in enumerate(new)]

    async def turn(
        self, *settles: Any, worker: str = "w", want: int = 1000, queues: Any = _QUEUES
    ) -> TurnAnswer:
        """The worker's next turn; it has room for a suspect that must be alone."""
        shard = self.shard
        given: dict[str, Any] = {"worker": worker, "want": want, "queues": queues, "is_alone": True}
        answer = await shard.turn(*settles, **given)
        if self.repeats:
            again = await shard.turn(*settles, **given, call=shard.calls(worker))
            assert (again.claims, again.lost) == (answer.claims, answer.lost)
        for claim in answer.claims:
            self.held[claim.id] = (claim, answer.token)
        return answer

    async def claim(self, want: int = 1000, worker: str = "w") -> list[str]:
        return [each.id for each in (await self.turn(want=want, worker=worker)).claims]

    async def end(
        self,
        state: str,
        *jobs: str,
        text: str = "1",
        worker: str = "",
        want: int = 0,
        queues: Any = _QUEUES,
        **given: Any,
    ) -> TurnAnswer:
        """Settle jobs that one worker holds, in a turn of this worker."""
        rows = [settle(*self.held.pop(job), state, text, **given) for job in jobs]
        holders = {row.token.partition(":")[0] for row in rows} or {worker or "w"}
        (worker,) = {worker} if worker else holders
        return await self.turn(*rows, worker=worker, want=want, queues=queues)

    async def run(self, state: str = "completed", *, worker: str = "w") -> list[str]:
        """Claim all ready jobs and settle them."""
        jobs = await self.claim(worker=worker)
        await self.end(state, *jobs, worker=worker)
        return jobs

    async def do_chores(self) -> int:
        """Take turns until no work is left for the server; return how many it took."""
        for count in range(1, 100):
            answer = await self.turn(want=0)
            if not 0 <= answer.next_due <= self.shard.now:
                return count
        raise AssertionError("chores without end")

    async def run_all(self) -> list[str]:
        """Complete all jobs, call by call; return their order."""
        order: list[str] = []
        while jobs := await self.run():
            order += jobs
        return order

    async def undo(self, job: str = "f", *, cause: str = "failed") -> None:
        """Claim the stopped root, acknowledge the stop, and settle it."""
        assert await self.claim() == [job]
        assert self.held[job][0].stop == cause
        assert await self.checkpoint(job, acknowledges=True) == "ok"
        await self.end("failed" if cause == "failed" else "cancelled", job, text='{"message":"undone"}')

    async def checkpoint(self, job: str, **given: Any) -> str:
        """Save a checkpoint under the lease that a worker holds, unless a token is given."""
        token = given.pop("token", "") or self.held[job][1]
        save = self.shard.store.trees.checkpoint
        word = await save(job, token, **given, now=self.shard.now)
        if self.repeats:
            is_there = await self.shard.state(job) is not None
            assert await save(job, token, **given, now=self.shard.now) == (word if is_there else "lost")
        return word

    async def spawn(
        self, job: str, *children: Member, tree: str = "f", waits: bool = True, **given: Any
    ) -> str:
        """Add children to a tree; `job` then needs them."""
        rows, edges = rows_of(children, root=tree, parent=job, awaited=[each.id for each in children])
        return await self.checkpoint(job, rows=rows, edges=edges, opens=True, waits=waits, **given)

    async def wait(
        self,
        job: str,
        *awaited: str,
        adds: Iterable[Member] = (),
        tree: str = "f",
        delay: int | str = "",
        heard: int | str = "",
        first: bool = False,
        **given: Any,
    ) -> str:
        """Let a running job wait for members of its tree, named `tree/name`, a time and a signal."""
        wait = Wait(1, delay, heard, int(first))
        ids = [f"{tree}/{each}" for each in awaited]
        calls = spawn_calls(list(adds), root=tree, parent=job, awaited=ids, wait=wait)
        for call in calls[:-1]:
            assert await self.checkpoint(job, **call._asdict(), **given) == "ok"
        return await self.checkpoint(job, **calls[-1]._asdict(), opens=True, waits=True, **given)

    async def cancel(self, job: str = "f") -> str:
        self._cancels += 1
        call = f"c{self._cancels}"
        (word,) = await self.shard.cancel(job, call=call)
        if self.repeats:
            assert await self.shard.cancel(job, call=call) in ([word], ["ended"])
        return word

    async def stop(self, cause: str) -> None:
        """Stop the tree `f`: by failing its claimed member `f/bad`, by a cancel, or by its timeout."""
        if cause == "failed":
            await self.end("failed", "f/bad", text='{"message":"boom"}')
        elif cause == "cancelled":
            assert await self.cancel() == "asked"
            assert await self.cancel() == "over"  # by another call
        else:
            self.shard.now += round(TIMEOUT * 1000)
            await self.turn(want=0)

    async def end_bad(self, cause: str) -> None:
        """End `f/bad` as its handler was told to, unless `f/bad` itself caused the stop."""
        if cause != "failed":
            await self.end("cancelled", "f/bad", text="{}")

    async def lose(self, *, max_stalls: int = 3) -> list[str]:
        """Let every lease expire and rescue; return the verdict on each job."""
        self.shard.now += LEASE
        await self.shard.rescue(max_stalls=max_stalls)
        return [f"{each.id} {each.verdict}" for each in self.shard.stalls]

    # what the server has

    async def look(self, root: str = "f", **given: Any) -> TreePage:
        given.setdefault("max_bytes", 1 << 20)
        return await self.shard.store.trees.look(root, **given)

    async def states(self, root: str = "f") -> dict[str, str]:
        """Return the state of the root under its id, and of each member under its name."""
        page = await self.look(root)
        found = {each.id.removeprefix(f"{root}/"): each.state for each in page.members}
        return {root: page.root.get("state", "unknown"), **found}

    async def done(self, root: str = "f") -> list[str]:
        """Return the names of the completed members, in order."""
        page = await self.look(root, listed="done")
        return [each.id.removeprefix(f"{root}/") for each in page.members]

    async def outcome(self, job: str) -> tuple[str, str]:
        (found,) = await self.shard.store.look("asker", [job], join=False)
        return found.state, found.text or ""

    async def keys(self) -> list[str]:
        """Return the keys that the server has for jobs: kinds and names."""
        root = self.shard.store.keys.root
        names = await self.shard.command("KEYS", root.replace("{", "[{]").replace("}", "[}]") + ":*")
        kept = {
            "queues",
            "held",
            "order",
            "rooted",
            "wake",
            "pools",
            "clock",
            "worker",
            "workers",
            "control",
            "cuts",
            "fleet",
            "served",
        }
        return sorted(name for each in names if (name := each[len(root) + 1 :]).partition(":")[0] not in kept)
