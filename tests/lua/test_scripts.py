"""The scripts as text: headers, key kinds, includes; and their loading into the server."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import pytest
from drivers.shards import Shard, add_queue, row
from models.overview_rows import OVERVIEW_SECTIONS

from eventbus.store.calls import history_store
from eventbus.store.calls.control_store import Edit, Orders
from eventbus.store.calls.lease_store import LeaseStore
from eventbus.store.calls.schedule_store import FireAnswer, SchedulePage
from eventbus.store.calls.tree_store import Chunk, TreePage, TreeVerdict
from eventbus.store.keys import KINDS
from eventbus.store.reply_stream import ReplyStream
from eventbus.store.scripting import script_rows
from eventbus.store.scripting.packing import AddRows, Append, TurnRequest
from eventbus.store.scripting.scripts import load_script
from eventbus.store.store import Store

_LUA = Path(str(files("eventbus.store").joinpath("lua")))
_SCRIPTS = sorted(path.stem for path in _LUA.glob("*.lua"))
_SOURCES = {path.name: path.read_text() for path in sorted(_LUA.rglob("*.lua"))}

_SECTIONS = {
    ("add", "queues"): script_rows.AddQueue,
    ("add", "timeouts"): script_rows.TimeoutRow,
    ("add", "plain"): script_rows.PlainRow,
    ("add", "rows"): script_rows.AddRow,
    ("cancel", "jobs"): script_rows.CancelRow,
    ("turn", "queues"): script_rows.TurnQueue,
    ("turn", "appends"): script_rows.AppendRow,
    ("turn", "live"): script_rows.LiveRow,
    ("turn", "taken"): script_rows.TakenRow,
    ("turn", "entries"): script_rows.EntryRow,
    ("turn", "settles"): script_rows.SettleRow,
    ("renew", "jobs"): script_rows.LeaseRow,
    ("note", "jobs"): script_rows.NoteRow,
    ("note", "lines"): script_rows.LineRow,
    ("announce", "queues"): script_rows.AnnounceQueue,
    ("announce", "left"): script_rows.QueueRow,
    ("leave", "queues"): script_rows.QueueRow,
    ("leave", "jobs"): script_rows.JobIdRow,
    **OVERVIEW_SECTIONS,
    ("sweep", "queues"): script_rows.SweepQueue,
    ("graph", "trees"): script_rows.TreeHead,
    ("graph", "rows"): script_rows.MemberRow,
    ("graph", "edges"): script_rows.EdgeRow,
    ("fire", "rows"): script_rows.FireRow,
    ("checkpoint", "saves"): script_rows.SaveRow,
    ("checkpoint", "rows"): script_rows.MemberRow,
    ("checkpoint", "edges"): script_rows.EdgeRow,
    ("checkpoint", "awaited"): script_rows.JobIdRow,
    ("tally", "queues"): history_store.TallyRow,
    ("tally", "counts"): history_store.CountRow,
}
_COUNTED = {"graph": {"rows", "edges"}, "turn": {"live", "taken", "entries"}, "tally": {"counts"}}
"""Sections whose rows are counted by those of another section."""


def _any(value: Any) -> Any:
    """A name in the place of a number."""
    return value


def _sample(kind: Any, count: int) -> list[Any]:
    """`count` rows whose values are their fields' names."""
    return [kind(*kind._fields)] * count


class _Recorder:
    """In the place of the store's caller: notes what a script would get."""

    def __init__(self) -> None:
        self.arguments: list[Any] = []

    async def script(
        self, name: str, arguments: list[Any], *, deadline: float | None = None, number: int = 0
    ) -> Any:
        self.arguments = arguments
        return {
            "turn": [0, 0, [], [], [], [], []],
            "rescue": [0],
            "attend": [0, 0],
            "look": ["state", "text"],
            "announce": [0, 0, 1],
            "ungroup": ["done", 0, 0],
            "graph": [0, "new", "id", "", ""],
            "fire": [1, 2, ["fired"], list(script_rows.DueRow._fields)],
            "schedule": ["new", "gen"],
            "schedules": [1, 2, list(script_rows.ScheduleRow._fields)],
            "limits": [[3, 2, ["name", "value"]]] * 2,
            "tree": [["name", "value"], ["name", "value"], 1, [*"abc", *[1] * 5, "text", "needs"]],
        }.get(name, [])

    async def look_by(self, name: str, arguments: list[Any], **given: Any) -> Any:
        return await self.script(name, arguments)

    async def command(self, *command: Any, deadline: float | None = None) -> None:
        """Nothing is there."""

    async def start(
        self, name: str, arguments: list[Any], *, deadline: float, read: Any, number: int = 0
    ) -> Any:
        return read(await self.script(name, arguments, deadline=deadline))


@pytest.fixture
def recorder(store: Store, monkeypatch: pytest.MonkeyPatch) -> _Recorder:
    recorder = _Recorder()
    for part in (store, store.presence, store.groups, store.journals, store.controls):
        monkeypatch.setattr(part, "_caller", recorder)
    monkeypatch.setattr(store.journals, "_adder", recorder)
    return recorder


@pytest.mark.parametrize(("script", "section"), _SECTIONS)
def test_a_row_has_the_fields_of_its_scripts_header_in_order(script: str, section: str) -> None:
    assert load_script(script).fields[section] == list(_SECTIONS[script, section]._fields)


@pytest.mark.parametrize("name", _SCRIPTS)
def test_a_header_names_every_section_and_every_section_has_a_row(name: str) -> None:
    fields = load_script(name).fields
    sections = {section for section in fields if section != "head"}
    known = {section for script, section in _SECTIONS if script == name}
    assert sections == known | {"look": {"jobs"}, "post": {"messages"}}.get(name, set())
    counted = _COUNTED.get(name, set())
    assert sections - counted <= set(fields["head"])  # the head says how many rows each has
    assert counted <= {field for section in sections for field in fields[section]}


def _expected(name: str, **counts: int) -> list[Any]:
    return [counts.get(field, field) for field in load_script(name).fields["head"]]


async def test_add_sends_what_its_header_says(store: Store, recorder: _Recorder) -> None:
    queues, adds = _sample(script_rows.AddQueue, 2), AddRows(_sample(script_rows.AddRow, 3))
    adds.timeouts = _sample(script_rows.TimeoutRow, 2)
    await store.add("emitter", queues, adds, deadline=0.0, attendance="attendance", now="now")
    fields = load_script("add").fields
    rows = fields["queues"] * 2 + fields["timeouts"] * 2 + fields["rows"] * 3
    assert recorder.arguments == _expected("add", queues=2, timeouts=2, plain=0, rows=3) + rows


async def test_rows_that_ask_for_nothing_are_sent_in_their_short_form(
    store: Store, recorder: _Recorder
) -> None:
    adds = [row("a"), row("b", reply=0)]
    await store.add("emitter", [add_queue()], AddRows(adds), deadline=0.0, now="now")
    plain = [value for each in adds for value in (each.id, each.queue, each.body, each.reply)]
    assert recorder.arguments == ["now", "emitter", "", 1, 0, 2, 0, *add_queue(), *plain]
    for other in (row("c", key="k"), row("c", due=1), row("c", priority=1), row("c", lifo=1)):
        await store.add("emitter", [add_queue()], AddRows([*adds, other, *adds]), deadline=0.0, now="now")
        assert recorder.arguments[5:7] == [0, 5]
        assert recorder.arguments[11:] == [value for each in [*adds, other, *adds] for value in each]


async def test_turn_sends_what_its_header_says(store: Store, recorder: _Recorder) -> None:
    given: dict[str, Any] = {
        "lane": "lane", "call": "call", "lease_ms": "lease", "pool": "pool", "idle": "offer", "want": "want",
        "suspects": "most", "watched": "watched", "is_alone": True, "max_bytes": "bytes",
        "queues": _sample(script_rows.TurnQueue, 2),
        "settles": _sample(script_rows.SettleRow, 3),
        "appends": [
            Append("id", "token", 7, ["a", "b"], {"name": "text"}, ["s"]),
            Append("id", "token", 0, ["c"], {}, []),
        ],
    }  # fmt: skip
    await store.turn(TurnRequest(**given), now="now")
    fields = load_script("turn").fields
    head = _expected("turn", queues=2, settles=3, alone=1, appends=2)
    appends = ["id", "token", 7, 1, 1, 2, "id", "token", 0, 0, 0, 1, "name", "text", "s", "a", "b", "c"]
    assert recorder.arguments == head + fields["queues"] * 2 + appends + fields["settles"] * 3


async def test_the_small_scripts_get_what_their_headers_say(store: Store, recorder: _Recorder) -> None:
    given = {"lease_ms": "lease", "limit": "limit", "max_stalls": "max_stalls", "key_ttl_ms": "key_ttl"}
    await store.rescue(**_any(given), now="now")
    assert recorder.arguments == _expected("rescue")
    await store.sweep(_sample(script_rows.SweepQueue, 2), limit=_any("limit"), now="now")
    assert recorder.arguments == _expected("sweep", queues=2) + load_script("sweep").fields["queues"] * 2
    await store.cancel(_sample(script_rows.CancelRow, 2), key_ttl_ms=_any("key_ttl"), now="now")
    assert recorder.arguments == _expected("cancel", jobs=2) + load_script("cancel").fields["jobs"] * 2
    await store.note(_sample(script_rows.NoteRow, 2), _sample(script_rows.LineRow, 3), now="now")
    note = load_script("note").fields
    assert recorder.arguments == [*_expected("note", jobs=2, lines=3), *note["jobs"] * 2, *note["lines"] * 3]
    given = {"pool": "pool", "worker": "worker", "former": "former", "unpark": True, "since": "since"}
    rows = _sample(script_rows.AnnounceQueue, 2)
    await store.announce(**_any(given), facts=_any("facts"), queues=rows, left=["queue"] * 3, now="now")
    announce = load_script("announce").fields
    assert recorder.arguments == [
        *_expected("announce", queues=2, left=3, unpark=1), *announce["queues"] * 2, *announce["left"] * 3,
    ]  # fmt: skip
    await store.presence.leave("worker", "pool", ["queue"] * 2, jobs=["id"] * 3, now="now")
    leave = load_script("leave").fields
    assert recorder.arguments == [
        *_expected("leave", queues=2, jobs=3), *leave["queues"] * 2, *leave["jobs"] * 3,
    ]  # fmt: skip
    await store.presence.survey(["queue"] * 2, asker="asker", now="now")
    assert recorder.arguments == [*_expected("survey", queues=2), *load_script("survey").fields["queues"] * 2]
    await store.groups.add("queue", "group")
    assert recorder.arguments == _expected("group")
    given = {name: name for name in ("age_completed", "age_failed", "call", "text", "limit")}
    await store.groups.remove(
        "queue", "group", force=True, key_ttl_ms=_any("key_ttl"), now="now", **_any(given)
    )
    assert recorder.arguments == _expected("ungroup", force=1)
    await store.journals.signal(
        "id", signal="signal", name="name", payload="payload", deadline=0.0, now="now"
    )
    assert recorder.arguments == _expected("signal")
    await store.journals.listen("id", "token")
    assert recorder.arguments == _expected("listen")
    await store.rearm("name", ["message"])
    assert recorder.arguments == ["wake", "name", 1, "message"]
    await store.poke("name", "message")
    assert recorder.arguments == ["control", "name", 1, "message"]
    assert load_script("post").fields == {"head": ["kind", "name", "messages"], "messages": ["message"]}
    stream = ReplyStream(store, "emitter")
    await stream.nudge(deadline=0.0)
    assert recorder.arguments == _expected("nudge")
    await stream.attend(**{name: _any(name) for name in ("attendance", "floor", "mark", "now")})
    assert recorder.arguments == _expected("attend", life=600, makes=1)
    await store.look("emitter", ["id"], join=True, attendance="attendance", now="now")
    head = ["now", "emitter", "attendance", "bytes", "jobs"]
    assert load_script("look").fields == {"head": head, "jobs": ["id", "join"]}
    assert [*recorder.arguments[:3], *recorder.arguments[4:]] == ["now", "emitter", "attendance", 1, "id", 1]


async def test_the_scripts_of_schedules_get_what_their_headers_say(
    store: Store, recorder: _Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.schedules, "_caller", recorder)
    rows = _sample(script_rows.FireRow, 2)
    answer = await store.schedules.fire(rows, key_ttl_ms=_any("key_ttl"), most=_any("most"), now="now")
    assert answer == FireAnswer(1, 2, ["fired"], [script_rows.DueRow(*script_rows.DueRow._fields)])
    fields = load_script("fire").fields
    assert recorder.arguments == _expected("fire", rows=2, bytes=1 << 20) + fields["rows"] * 2
    head = load_script("schedule").fields["head"]
    given = {name: _any(name) for name in head if name not in ("word", "id")}
    assert await store.schedules.change(_any("word"), "id", **given) == ("new", "gen")
    assert recorder.arguments == _expected("schedule")
    page = await store.schedules.look("id", first=_any("first"), limit=_any("limit"), now="now")
    assert page == SchedulePage(1, 2, [script_rows.ScheduleRow(*script_rows.ScheduleRow._fields)])
    assert recorder.arguments == _expected("schedules", bytes=1 << 20)


async def test_the_scripts_of_controls_get_what_their_headers_say(store: Store, recorder: _Recorder) -> None:
    await store.controls.pause("queue", by="by", reason="reason", now="now")
    assert recorder.arguments == ["now", "pause", *_expected("pause")[2:]]
    edit = Edit("id", "call", ("states",), "due", "priority", "print", "body", "limit")
    await store.controls.edit(
        edit._replace(states="states"),
        now="now",  # pyright: ignore[reportArgumentType]
    )
    assert recorder.arguments == _expected("edit")
    found = await store.controls.look(["queue"] * 2)
    assert recorder.arguments == [*_expected("limits", queues=2), *load_script("limits").fields["queues"] * 2]
    assert found == [Orders("queue", 3, 2, {"name": "value"})] * 2


async def test_the_scripts_of_trees_get_what_their_headers_say(
    store: Store, recorder: _Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_caller", "_adder"):
        monkeypatch.setattr(store.trees, name, recorder)
    members, edges = _sample(script_rows.MemberRow, 2), _sample(script_rows.EdgeRow, 3)
    fields = load_script("graph").fields
    verdicts = await store.trees.add(
        "emitter",
        [Chunk(_sample(script_rows.TreeHead, 1)[0], members, edges)],
        deadline=0.0,
        attendance="attendance",
        now="now",
    )
    assert verdicts == [TreeVerdict("new", "id", "", "")]
    assert recorder.arguments == [
        *_expected("graph", trees=1), *fields["trees"], *fields["rows"] * 2, *fields["edges"] * 3,
    ]  # fmt: skip
    await store.trees.checkpoint(
        "id",
        "token",
        saves=_sample(script_rows.SaveRow, 1),
        rows=members,
        edges=edges,
        wait=script_rows.Wait(*_any(script_rows.Wait._fields)),
        awaited=["id"] * 4,
        acknowledges=True,
        now="now",
    )
    fields = load_script("checkpoint").fields
    assert recorder.arguments == [
        *_expected("checkpoint", acknowledges=1, opens=0, waits=0, saves=1, rows=2, edges=3, awaited=4),
        *fields["saves"], *fields["rows"] * 2, *fields["edges"] * 3, *fields["awaited"] * 4,
    ]  # fmt: skip
    page = await store.trees.look(
        "id", listed="list", first=_any("first"), limit=_any("limit"), max_bytes=_any("bytes")
    )
    assert recorder.arguments == _expected("tree")
    member = script_rows.TreeMember("a", "b", "c", 1, 1, 1, 1, 1, "text", "needs")
    assert page == TreePage({"name": "value"}, {"name": "value"}, 1, [member])


async def test_renew_sends_what_its_header_says(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []

    def call(self: LeaseStore, *command: Any) -> Any:
        sent.extend(command)
        return [[], [], []]

    monkeypatch.setattr(LeaseStore, "_call", call)
    store.open_leases(timeout=1).renew(
        _sample(script_rows.LeaseRow, 2),
        worker="worker",
        calls=_any(("first", "second")),
        lease_ms=_any("lease"),
        lag_ms=_any("lag"),
    )
    head = ["", "worker", "lag", "lease", "first", "second", 2]  # the server's time, always
    assert msgspec.msgpack.decode(sent[-1]) == head + load_script("renew").fields["jobs"] * 2
    assert load_script("renew").fields["head"] == ["now", "worker", "lag", "lease", "first", "second", "jobs"]


@pytest.mark.parametrize("name", _SCRIPTS)
def test_a_script_takes_its_head_in_the_order_of_its_header(name: str) -> None:
    # The words of the header, in the order in which the text of the script takes them.
    body = _SOURCES[f"{name}.lua"]
    code = "\n".join(line for line in body.splitlines() if not line.startswith("--"))
    head, names = load_script(name).fields["head"], list[str]()
    for targets, values in re.findall(
        r"^local ([\w, ]+) = (.*args\.take(?:_now)?\(\).*)$", code, re.MULTILINE
    ):
        names.extend(targets.split(", ")[: len(re.findall(r"\bargs\.take(?:_now)?\(\)", values))])
    short = {
        "queues": {"queue_count", "count"},
        "rows": {"row_count"},
        "timeouts": {"timeout_count"},
        "plain": {"plain_count"},
        "settles": {"settle_count"},
        "appends": {"append_count"},
        "jobs": {"count"},
        "messages": {"count"},
        "trees": {"tree_count"},
        "saves": {"save_count"},
        "edges": {"edge_count"},
        "left": {"left_count"},
        "awaited": {"awaited_count"},
    }
    for field, taken_as in zip(head, names, strict=False):
        assert taken_as in {field, *short.get(field, ())}
    assert len(names) >= len(head)


_DYNAMIC = {
    *(
        "shard.key(kind, name)",
        "shard.key(kind, id)",
        "shard.key(state, queue)",
        "shard.key(record.state, record.queue)",
    ),
    *(
        "shard.key(list, id)",
        "shard.key(state, name)",
        "shard.key(PLACES[kind], queue)",
        "shard.key(kind, queue)",
    ),
    *("shard.key(part[1], queue)", "shard.key(part[1], line.place)"),
    *("shard.key(part[1], line.queue)", "shard.key(look[1], queue)"),
}
"""Kinds that a script computes: the helper itself, what retention forgets and what cannot be listed, finished
sets, where a job to cancel waits, where listed jobs stand, which members of a tree are looked at, a large
text beside its record, the finished sets of a group, the lists of a shelf."""


def test_a_script_builds_keys_of_documented_kinds_only() -> None:
    text = "\n".join(_SOURCES.values())
    literal = set(re.findall(r"shard\.key\('([\w+]+)'", text)) | set(
        re.findall(r"shard\.root \.\. ':(\w+):?'", text)
    )
    assert literal <= set(KINDS)
    assert set(re.findall(r"\bshard\.key\([^)']*\)", text)) == _DYNAMIC


def test_every_documented_kind_is_used() -> None:
    folder = Path(str(files("eventbus.store")))
    text = "\n".join(
        [*_SOURCES.values(), *(path.read_text() for path in folder.rglob("*.py") if path.name != "keys.py")]
    )
    named = set(re.findall(r"['\"]([\w+]+)['\"]", text)) | set(
        re.findall(r"shard\.root \.\. ':(\w+):?'", text)
    )
    python = Path(str(files("eventbus.store")), "keys.py").read_text()
    named |= set(re.findall(r'self\.(?:of|shard_key)\("(\w+)"', python))
    assert set(KINDS) - named == set()


def test_retention_forgets_every_kind_that_goes_with_the_record() -> None:
    with_record = {kind for kind, facts in KINDS.items() if facts[3] == "with the record"}
    keys, flags = (
        re.findall(rf"FLAG\.{name} = {{ ([^}}]+) }}", _SOURCES["flag.lua"]) for name in ("KEYS", "OF")
    )
    beside = set(re.findall(r"(\w+) = ", flags[0]))
    assert set(re.findall(r"'(\w+)'", keys[0])) == {"job"} | beside
    of_trees = with_record - beside
    assert of_trees == {"feeds", "members", "done"}
    assert of_trees <= set(re.findall(r"'(\w+)'", _SOURCES["retention.lua"]))


async def test_a_server_whose_script_cache_was_emptied_is_given_the_script_again(shard: Shard) -> None:
    await shard.add(row("a"))
    await shard.command("SCRIPT", "FLUSH")
    await shard.add(row("b"))
    answer = await shard.turn()
    await shard.command("SCRIPT", "FLUSH")
    assert await shard.add(row("b")) == []
    assert [claim.id for claim in answer.claims] == ["a", "b"]


async def test_the_lease_thread_gives_the_script_again_too(store: Store) -> None:
    leases = store.open_leases(timeout=5)
    leases._call("SCRIPT", "FLUSH")  # pyright: ignore[reportPrivateUsage]
    row = script_rows.LeaseRow("none", "w:1")
    assert leases.renew([row], worker="w", calls=(0, 0), lease_ms=1000, lag_ms=0) == (["none"], [], [])
    leases.close()
