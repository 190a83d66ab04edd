"""The next run of an ended tree: it starts once, and only the members and the log of the last run are
left.
"""

from __future__ import annotations

from typing import Any

import pytest
from drivers.shards import START, Shard, settle, turn_queue

from eventbus.emit.job_tree import Member, Tree, chunks_of, rows_of
from eventbus.store.calls.journal_store import read_signals
from eventbus.store.calls.queries import Cursor, QueryStore
from eventbus.store.calls.tree_store import TreeStore, TreeVerdict
from eventbus.store.keys import Keys
from eventbus.store.scripting.script_rows import REUSE, SaveRow
from eventbus.store.scripting.scripts import load_script

_ROOTS, _LEAVES = "tree", "tree.leaves"
_QUEUES = (turn_queue(_ROOTS), turn_queue(_LEAVES))
_FAR = 10.0**12
_LARGE = '"' + "x" * 500 + '"'


def _tree(root: str = "r", *leaves: str, **given: Any) -> Tree:
    members = [Member(f"{root}/{each}", _LEAVES) for each in leaves]
    return Tree(root, _ROOTS, "{}", members, [each.id for each in members], **given)


async def _add(shard: Shard, tree: Tree, *, reply: bool = True) -> TreeVerdict:
    (verdict,) = await shard.store.trees.add("em", chunks_of(tree, reply=reply), deadline=_FAR, now=shard.now)
    return verdict


async def _settle_all(shard: Shard, state: str = "completed", text: str = "1") -> list[str]:
    """Claim what is ready in both queues and settle it; returns the ids."""
    answer = await shard.turn(queues=_QUEUES)
    rows = [settle(each, answer.token, state, text) for each in answer.claims]
    await shard.turn(*rows, queues=_QUEUES, want=0)
    return [each.id for each in answer.claims]


async def _end(shard: Shard, tree: Tree, *, stop: bool = True, text: str = '{"type":"E"}') -> None:
    """Run a tree to its end: its leaves fail, the root undoes, and fails too; or all complete."""
    await _add(shard, tree)
    if not stop:
        while await _settle_all(shard):
            pass
        return
    await _settle_all(shard, "failed", text)
    answer = await shard.turn(queues=_QUEUES)
    (root,) = answer.claims
    await shard.store.trees.checkpoint(
        root.id, answer.token, saves=[SaveRow("undo", "done")], acknowledges=True, now=shard.now
    )
    await shard.turn(settle(root, answer.token, "failed", text), queues=_QUEUES, want=0)


async def _restart(
    shard: Shard,
    run: int = 1,
    *,
    call: str = "c",
    body: str = "{}",
    timeout_ms: int | str = "",
    root: str = "r",
) -> str:
    return await shard.store.trees.restart(
        root, call=call, run=run, body=body, timeout_ms=timeout_ms, deadline=_FAR, now=shard.now
    )


class _Recorder:
    """In the place of the store's caller: notes what a script would get."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.arguments: list[Any] = []

    async def script(self, name: str, arguments: list[Any], *, deadline: float | None = None) -> Any:
        self.arguments = arguments
        return self._answer

    async def look_by(self, name: str, arguments: list[Any], **given: Any) -> Any:
        return await self.script(name, arguments)


async def test_restarts_and_looks_send_what_their_headers_say() -> None:
    keys, names = Keys("t", "0"), {"now": "now", "run": "run", "body": "body", "timeout_ms": "timeout"}
    given: dict[str, Any] = {**names, "call": "call"}
    recorder: Any = _Recorder("restarted")
    await TreeStore(recorder, recorder, keys).restart("id", **given)
    assert [*recorder.arguments[:-2], "keeps", "forgets"] == load_script("restart").fields["head"]
    assert recorder.arguments[-2:] == [[], []]
    recorder = _Recorder([[], "", "", "", [], "", []])
    await QueryStore(recorder, keys).job("id")
    assert recorder.arguments == load_script("job").fields["head"]
    recorder = _Recorder(["", "", 0, [], 0])
    limit: Any = "limit"
    await QueryStore(recorder, keys).jobs("queue", "state", cursor=Cursor("after", "score"), limit=limit)
    rest = ["has_rows", "text_bytes", "sought", "first_id"]
    assert [*recorder.arguments[:-4], *rest] == load_script("list").fields["head"]
    assert recorder.arguments[-4:] == [1, 0, "", ""]


async def test_a_tree_that_failed_runs_again_from_its_root(shard: Shard) -> None:
    await _end(shard, _tree("r", "a", "b"))
    assert await shard.members("failed", _ROOTS) == ["r"]
    shard.now += 5000
    assert await _restart(shard, body='{"run":2}') == "restarted"
    assert await shard.members("failed", _ROOTS) == []
    assert await shard.score("roots", _ROOTS, "r") == shard.now
    answer = await shard.turn(queues=_QUEUES)
    (claim,) = answer.claims
    assert (claim.id, claim.body, claim.attempts, claim.stalls, claim.stop) == ("r", '{"run":2}', 0, 0, "")
    await shard.turn(settle(claim, answer.token, "completed", "2"), queues=_QUEUES, want=0)
    assert await shard.state("r") == "completed"
    assert await shard.members("roots", _ROOTS) == []


async def test_nothing_of_the_last_run_is_left_in_the_root_but_its_error_in_the_log(shard: Shard) -> None:
    await _end(shard, _tree("r", "a"), text=_LARGE)
    await _restart(shard)
    record = await shard.record("r")
    assert set(record) == {
        *("queue", "state", "attempts", "created", "due", "body", "run", "restarter", "on", "tree"),
        "entry",
    }
    assert (record["state"], record["run"], record["created"]) == ("waiting", "2", str(START))
    for kind in ("checkpoints", "result", "needs", "waiters"):
        assert await shard.command("EXISTS", shard.key(kind, "r")) == 0, kind
    assert await shard.command("LRANGE", shard.key("log", "r"), 0, -1) == [_LARGE]
    assert await shard.command("LRANGE", shard.key("members", "r"), 0, -1) == ["r/a"]
    assert await shard.state("r/a") == "failed"


async def test_a_completed_tree_runs_again_too_and_leaves_no_error(shard: Shard) -> None:
    await _end(shard, _tree("r", "a"), stop=False)
    assert await _restart(shard) == "restarted"
    assert await shard.command("EXISTS", shard.key("log", "r")) == 0
    assert await shard.members("completed", _ROOTS) == []
    assert await _settle_all(shard) == ["r"]


@pytest.mark.parametrize(("first", "second"), [("{}", _LARGE), (_LARGE, "{}"), (_LARGE, _LARGE)])
async def test_the_new_body_takes_the_place_of_the_old_one_whatever_their_sizes(
    shard: Shard, first: str, second: str
) -> None:
    tree = Tree("r", _ROOTS, first, [Member("r/a", _LEAVES)], ["r/a"])
    await _end(shard, tree, stop=False)
    await _restart(shard, body=second)
    (claim,) = (await shard.turn(queues=_QUEUES)).claims
    assert claim.body == second


async def test_a_repeat_of_the_call_is_answered_the_same_and_changes_nothing(shard: Shard) -> None:
    await _end(shard, _tree("r", "a"))
    await _restart(shard, call="one")
    before = await shard.record("r")
    assert await _restart(shard, call="one") == "restarted"
    assert await shard.record("r") == before
    await _settle_all(shard)
    assert await _restart(shard, call="one") == "restarted"  # also when that run has ended meanwhile
    assert await shard.state("r") == "completed"


async def test_of_two_who_ask_for_the_same_run_one_begins_it(shard: Shard) -> None:
    await _end(shard, _tree("r", "a"))
    assert [await _restart(shard, call=call) for call in ("one", "two")] == ["restarted", "other"]
    assert await shard.members("ready", _ROOTS) == ["r"]
    await _settle_all(shard)
    assert await _restart(shard, run=1, call="two") == "other"
    assert await _restart(shard, run=2, call="three") == "restarted"
    assert (await shard.record("r"))["run"] == "3"


async def test_what_has_not_ended_or_is_no_whole_tree_is_refused(shard: Shard) -> None:
    nested = Member("r/n", _ROOTS, body="{}", is_root=True)
    await _add(shard, Tree("r", _ROOTS, "{}", [nested], ["r/n"]))
    assert await _restart(shard) == "open"
    await _settle_all(shard)
    assert await _restart(shard) == "open"
    assert await _restart(shard, root="r/n") == "member"
    assert await _restart(shard, root="none") == "unknown"
    await shard.command("SET", shard.key("job", "foreign"), "x")
    assert await _restart(shard, root="foreign") == "unknown"
    await _settle_all(shard)
    assert await _restart(shard) == "restarted"


async def test_its_key_is_open_again_as_long_as_it_is_its_own(shard: Shard) -> None:
    tree = _tree("r", "a", key="k", print="p")
    await _end(shard, tree)
    await _restart(shard)
    assert await shard.ttl("key", f"{_ROOTS}:k") == -1
    other = _tree("r2", "a", key="k", print="p")
    assert await _add(shard, other) == TreeVerdict("joined", "r", "open", "")
    await _settle_all(shard)
    assert await _add(shard, _tree("r3", "a", key="k", print="p")) == TreeVerdict(
        "joined", "r", "completed", "1"
    )


async def test_a_key_that_stands_for_a_later_tree_is_left_alone(shard: Shard) -> None:
    await _end(shard, _tree("r", "a", key="k", print="p"))
    assert (await _add(shard, _tree("r2", "a", key="k", print="p"))).word == "new"
    await _restart(shard)
    verdict = await _add(shard, _tree("r3", "a", key="k", print="p", meeting=REUSE))
    assert verdict.job == "r2"


async def test_who_heard_the_last_outcome_is_not_told_the_next_and_who_asks_later_is(shard: Shard) -> None:
    await shard.open_replies("em")
    await shard.open_replies("late")
    await _end(shard, _tree("r", "a"))
    await _restart(shard)
    (outcome,) = await shard.store.look("late", ["r"], join=True)
    assert outcome.state == "waiting"
    await _settle_all(shard, text="2")
    assert [row[1] for entry in await shard.replies("em") for row in entry] == ["failed"]
    assert await shard.replies("late") == [[("r", "completed", 1, "2")]]


async def test_the_new_run_has_a_deadline_of_its_own(shard: Shard) -> None:
    await _end(shard, _tree("r", "a", timeout=10.0))
    assert await shard.members("due", "") == []
    shard.now += 60_000
    await _restart(shard, timeout_ms=5000)
    assert await shard.score("due", "", "timeout:r") == shard.now + 5000
    shard.now += 5001
    await shard.turn(queues=_QUEUES, want=0)
    assert (await shard.record("r"))["stop"] == "timeout"


async def test_a_restart_wakes_a_worker(shard: Shard) -> None:
    await _end(shard, _tree("r", "a"))
    await shard.announce(queue=_ROOTS)
    await _restart(shard)
    assert await shard.members("wake", "pool") == [_ROOTS]


async def test_members_of_the_last_run_that_are_told_late_do_not_touch_the_next(shard: Shard) -> None:
    # A member that many need tells the rest of them by a chore, which may come when the root runs again.
    await _end(shard, _tree("r", "a"))
    await _restart(shard)
    answer = await shard.turn(queues=_QUEUES)
    (root,) = answer.claims
    rows, edges = rows_of([Member("r/b", _LEAVES)], root="r", parent=root.id, awaited=["r/b"])
    word = await shard.store.trees.checkpoint(
        root.id, answer.token, rows=rows, edges=edges, opens=True, waits=True, now=shard.now
    )
    assert word == "waiting"
    await shard.command("RPUSH", shard.key("feeds", "r/a"), "r")
    await shard.command("ZADD", shard.shard_key("due"), shard.now, "tell:r/a")
    await shard.turn(queues=_QUEUES, want=0)
    assert "stop" not in await shard.record("r")
    assert await _settle_all(shard) == ["r/b"]
    assert await _settle_all(shard) == ["r"]
    assert await shard.state("r") == "completed"


@pytest.mark.parametrize("keeps", [[], ["journal"], ["journal", "inbox"]])
async def test_the_next_run_begins_with_the_journal_and_the_inbox_if_that_is_asked_for(
    shard: Shard, keeps: list[Any]
) -> None:
    await _add(shard, _tree("r"))
    answer = await shard.turn(queues=_QUEUES)
    assert await shard.append("r", answer.token, 0, "one", "two") == ("ok", 0)
    for signal in ("taken", "left"):
        assert await shard.signal("r", signal=signal) == "sent"
    assert await shard.append("r", answer.token, 2, "three", taken=["taken"]) == ("ok", 0)
    await shard.turn(settle(answer.claims[0], answer.token), queues=_QUEUES, want=0)
    for _ in range(2):  # the same call again changes nothing
        word = await shard.store.trees.restart(
            "r", call="c", run=1, body="{}", keeps=keeps, deadline=_FAR, now=shard.now
        )
        assert word == "restarted"
    answer = await shard.turn(queues=_QUEUES)
    assert [each.id for each in answer.claims] == ["r"]
    assert [each.entries for each in answer.journals] == ([["one", "two", "three"]] if keeps else [])
    signals = [signal.id for each in answer.journals for signal in read_signals(each.signals)]
    assert signals == (["left"] if "inbox" in keeps else [])
    assert [each.heard for each in answer.journals] == ([2 if "inbox" in keeps else 0] if keeps else [])
    assert await shard.append("r", answer.token, 3 if keeps else 0, "four") == ("ok", 0)
    page = await shard.store.trees.look("r", limit=0)
    assert page.root["journal"] == "1"


async def _end_root(shard: Shard, state: str) -> None:
    """Let the root end so: it fails first, unless its tree stops already, and then undoes."""
    if state == "failed":
        assert await _settle_all(shard, state, "{}") == ["r"]
    answer = await shard.turn(queues=_QUEUES)
    (root,) = answer.claims
    await shard.store.trees.checkpoint("r", answer.token, acknowledges=True, now=shard.now)
    await shard.turn(settle(root, answer.token, state, "{}"), queues=_QUEUES, want=0)
    assert await shard.state("r") == state


async def test_a_cancel_that_is_sent_again_does_not_reach_the_next_run(shard: Shard) -> None:
    await _add(shard, _tree("r"))
    assert await shard.cancel("r", call="c1") == ["asked"]
    await _end_root(shard, "cancelled")
    for run in (1, 2):
        assert await _restart(shard, run, call=f"r{run}") == "restarted"
        assert await shard.cancel("r", call="c1") == ["asked"]
        assert (await shard.record("r"))["state"] == "waiting"
        await _end_root(shard, "failed")
    assert await _restart(shard, 3, call="r3") == "restarted"
    assert await shard.cancel("r", call="c2") == ["asked"]
    await _end_root(shard, "cancelled")


@pytest.mark.parametrize(
    "keeps", [(), ("journal",), ("journal", "inbox", "live"), ("journal", "inbox", "live", "texts")]
)
async def test_a_signal_that_is_sent_again_does_not_reach_the_next_run(shard: Shard, keeps: Any) -> None:
    await _add(shard, _tree("r"))
    answer = await shard.turn(queues=_QUEUES)
    for signal in ("~made", "chosen"):
        assert await shard.signal("r", signal=signal) == "sent"
    await shard.append("r", answer.token, 0, "took both", taken=["~made", "chosen"])
    await shard.turn(settle(answer.claims[0], answer.token, "waiting", ""), queues=_QUEUES, want=0)
    await _end_root(shard, "failed")
    restarted = await shard.store.trees.restart(
        "r", call="c", run=1, body="{}", timeout_ms="", keeps=keeps, deadline=_FAR, now=shard.now
    )
    assert restarted == "restarted"
    for signal in ("~made", "chosen"):
        assert await shard.signal("r", signal=signal) == "sent"
    _, inbox = await shard.store.journals.inbox("r")
    is_kept = "inbox" in keeps
    assert [each.id for each in inbox] == ([] if is_kept else ["chosen"]), (
        "a run from the start may be sent it"
    )


async def test_the_next_run_may_be_sent_again_what_it_forgets(shard: Shard) -> None:
    long = "an id with spaces, or of more than forty bytes"
    await _add(shard, _tree("r"))
    answer = await shard.turn(queues=_QUEUES)
    for signal in ("kept", "lost", long, "there"):
        assert await shard.signal("r", signal=signal) == "sent"
    await shard.append("r", answer.token, 0, "took three", taken=["kept", "lost", long])
    await shard.turn(settle(answer.claims[0], answer.token, "waiting", ""), queues=_QUEUES, want=0)
    await _end_root(shard, "failed")
    restarted = await shard.store.trees.restart(
        "r",
        call="c",
        run=1,
        body="{}",
        keeps=("journal", "inbox", "live"),
        forgets=["lost", long, "there", "never came"],
        deadline=_FAR,
        now=shard.now,
    )
    assert restarted == "restarted"
    for _ in range(2):
        for signal in ("kept", "lost", long, "there"):
            assert await shard.signal("r", signal=signal) == "sent"
        _, inbox = await shard.store.journals.inbox("r")
        assert [each.id for each in inbox] == ["there", "lost", long]
    answer = await shard.turn(queues=_QUEUES)
    assert await shard.append("r", answer.token, 1, "took", taken=["there"]) == ("ok", 0)
    assert await shard.signal("r", signal="there") == "sent"
    _, inbox = await shard.store.journals.inbox("r")
    assert [each.id for each in inbox] == ["lost", long], "its id is not forgotten: no step had taken it"
