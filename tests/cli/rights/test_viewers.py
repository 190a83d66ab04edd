"""A user of the server who may only look: every reading command works, and no other one changes anything.

The rule of the user is the one that docs/operations.md states.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from drivers.program import Program
from typer.main import get_command
from typer.testing import Result

from eventbus import EventProvider
from eventbus.cli.app import app
from eventbus.store.diagnostics import VIEWING
from eventbus.store.keys import Keys
from eventbus.store.store import SHARD

Invoke = Callable[..., Result]
Start = Callable[..., Program]
Viewed = Any
"""The server of `conftest.py`."""

READS: dict[str, list[str]] = {
    "queues": ["", "--json"],
    "queues list": ["", "order", "--json"],
    "queues controls": ["", "--json"],
    "queues history": ["order", "order --last 7d --json"],
    "jobs count": ["order", "workflow.asking --json"],
    "jobs list": [
        "wait --state active",
        *(
            f"order --state {state}"
            for state in ("waiting", "delayed", "active", "failed", "cancelled", "completed")
        ),
        *(f"{queue} --state {state}" for queue in ("limited", "urgent") for state in ("waiting", "parked")),
        "workflow.asking --state waiting-children",
        "keyed --json",
        "order --state failed --since 1h --json",
    ],
    "jobs show": ["{failed}", "{waiting} --json", "{delayed} --full", "{done} --reveal", "{running}"],
    "jobs why": ["{failed}", "{waiting}", "{delayed}", "{limited}", "{keyed}", "{sleeping}", "{running}"],
    "jobs failures": ["", "order --json"],
    "jobs find": ["order --key k", "--correlation-id {failed}", "order --field n:1 --state completed"],
    "workers": ["", "--json"],
    "top": ["--once", "--once --json"],
    "groups": ["", "order --json"],
    "schedules": ["", "--json"],
    "schedules list": [""],
    "schedules show": ["nightly"],
    "schedules preview": ["@daily"],
    "operations list": ["", "--json"],
    "operations show": ["{operation}"],
    "audit": ["", "--json"],
    "check": ["", "--json"],
    "flows list": ["", "--workflow checkout --json"],
    "flows show": ["{flow}", "{spread} --json", "{sleeping}"],
    "flows waiting": ["", "--json"],
    "flows graph": ["--id {flow}", "--id {spread} --json"],
    "flows follow": ["{flow}"],
    "flows export": ["{folder}"],
    "flows check": ["workflows.cli.demo_app:provider"],
}  # fmt: skip
"""Each command that only reads, with the rest of some command lines."""

COUNTS = {
    "jobs retry-all": ["order --dry-run"],
    "jobs purge": ["order --dry-run", "order --state delayed --dry-run"],
    "flows retry-all": ["torn --dry-run"],
    "flows cancel-all": ["paper --dry-run"],
}
"""Commands that read when they are asked only to count."""

WRITES: dict[str, list[str]] = {
    "emit": ["order 1", "order --lines -"],
    "jobs cancel": ["{waiting}"],
    "jobs promote": ["{delayed}"],
    "jobs delay": ["{waiting} 1h"],
    "jobs prioritize": ["{waiting} 5"],
    "jobs edit": ["{waiting} --payload 1"],
    "jobs retry": ["{failed}"],
    "jobs remove": ["{failed}"],
    "jobs retry-all": ["order --yes", "order --yes --background"],
    "jobs purge": ["order --yes", "order --yes --background"],
    "queues pause": ["order"],
    "queues resume": ["urgent"],
    "queues limit": ["order --at-once 1", "limited --remove"],
    "groups": ["order --remove audit"],
    "schedules pause": ["nightly"],
    "schedules resume": ["nightly"],
    "schedules run": ["nightly"],
    "schedules backfill": ["nightly 2026-11-20 2026-11-22"],
    "schedules remove": ["nightly"],
    "operations stop": ["{operation}"],
    "flows cancel": ["{sleeping}"],
    "flows cancel-all": ["paper --yes"],
    "flows retry": ["{flow}"],
    "flows retry-all": ["torn --yes"],
    "flows remove": ["{flow}"],
    "flows signal": ["{sleeping} approval 1"],
    "flows trigger": ["{sleeping} approval"],
    "worker": ["shop:provider"],
    "watch": ["order --count 1"],
}  # fmt: skip
"""Each command that changes something, and `watch`, for which the server must note that somebody watches."""

APART = {"dashboard", "demo", "server stop"}
"""The dashboard has a test of its own; the others are about the embedded server."""


def _commands() -> set[str]:
    group: Any = get_command(app)
    found: set[str] = set()
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        # An old name is hidden, and does what the new one does.
        inner = [each for each, own in getattr(command, "commands", {}).items() if not own.hidden]
        found |= {f"{name} {each}" for each in inner} or {name}
    return found


def test_each_command_reads_or_writes() -> None:
    assert _commands() == (set(READS) - {"queues", "schedules"}) | set(WRITES) | APART


def _turn_pages(viewed: Viewed, invoke: Invoke) -> None:
    """Read pages of lists that change between two pages, which takes other commands than the first page."""

    def cursor(state: str) -> str:
        told = invoke("jobs", "list", "paged", "--state", state, "--limit", "1", "--json").stderr
        return re.findall(r"--cursor (\S+)", told)[0]

    async def emit(**options: Any) -> None:
        async with EventProvider(viewed.whole_url, prefix=viewed.prefix) as provider:
            for n in range(3):
                await provider.emit("paged", n, reply=False, **options)

    asyncio.run(emit())
    asyncio.run(emit(delay="1 day"))
    cursors = {state: cursor(state) for state in ("waiting", "delayed")}
    asyncio.run(emit(lifo=True))  # these stand before what was seen
    for state, told in cursors.items():
        assert invoke("jobs", "list", "paged", "--state", state, "--cursor", told).exit_code == 0
    told = cursor("waiting")
    for name in viewed.ask("KEYS", "*:ready*:event.paged"):
        viewed.ask("DEL", name)
    assert invoke("jobs", "list", "paged", "--cursor", told).exit_code == 0


def _ask_why_a_key_is_held_back(viewed: Viewed, invoke: Invoke) -> None:
    """Ask it while a worker serves the queue: without one, that is why the job waits."""
    pools = Keys(viewed.prefix, SHARD).of("pools", "event.keyed")
    viewed.ask("ZADD", pools, viewed.ask("TIME")[0] * 1000, "elsewhere")
    result = invoke("jobs", "why", viewed.ids["keyed"])
    assert (result.exit_code, "ann" in result.stdout) == (0, True), result.stdout


def test_the_rule_of_viewers_is_what_the_check_tells_them_by(viewed: Viewed) -> None:
    by_connecting = {"info", "client|setname", "acl|whoami"}
    assert {word[1:] for word in viewed.rule if word.startswith("+")} == VIEWING | by_connecting


@pytest.mark.slow
def test_a_viewer_reads_everything_with_no_right_too_many(viewed: Viewed, invoke: Invoke) -> None:
    before = viewed.content()
    viewed.ask("CONFIG", "RESETSTAT")
    for words in [*viewed.lines(READS.items()), *viewed.lines(COUNTS.items())]:
        if words[0] == "check":
            continue  # it tries every command
        result = invoke(*words)
        told = [line for line in result.stderr.splitlines() if not line.startswith("asked redis://")]
        assert (result.exit_code, told) == (0, []), (words, result.stderr)
        assert result.stdout or words[:2] == ["flows", "check"], words
    assert viewed.content() == before, "no reading command writes anything"
    used = viewed.used()
    assert VIEWING - {"scan"} - used == {"lindex", "lpos", "zrank", "smismember"}
    viewed.ask("CONFIG", "RESETSTAT")
    _ask_why_a_key_is_held_back(viewed, invoke)
    assert "smismember" in viewed.used()
    _turn_pages(viewed, invoke)
    assert viewed.used() >= {"lindex", "lpos", "zrank"}


@pytest.mark.slow
def test_nothing_that_changes_anything_succeeds_for_a_viewer(viewed: Viewed, invoke: Invoke) -> None:
    before = viewed.content()
    for words in viewed.lines(WRITES.items()):
        result = invoke(*words)
        assert (result.exit_code, result.stdout) == (1, ""), words
        assert "eventbus: the server at 127.0.0.1" in result.stderr, words
        assert re.search(r"refused: .*'(hdel|expire)'.*docs/operations\.md lists", result.stderr), (
            words,
            result.stderr,
        )
    assert viewed.content() == before


@pytest.mark.slow
def test_the_check_says_who_the_user_is_and_what_it_may_not_do(viewed: Viewed, invoke: Invoke) -> None:
    before = viewed.content()
    (rights,) = [
        each
        for each in json.loads(invoke("check", "--json").stdout)["findings"]
        if each["subject"] == "rights"
    ]
    assert rights["level"] == "warning"
    assert rights["said"].startswith(
        "user viewer may only look: it may neither emit nor work, nor change anything"
    )
    assert " hset, " in rights["said"]
    assert "xadd" in rights["said"]
    assert " hget" not in rights["said"]
    serving = invoke("check", "shop:provider", "--json")
    (rights,) = [each for each in json.loads(serving.stdout)["findings"] if each["subject"] == "rights"]
    assert (rights["level"], serving.exit_code) == ("error", 1), "a program is to work with it"
    assert viewed.content() == before


@pytest.mark.slow
def test_a_viewer_sees_a_read_only_dashboard_and_changes_nothing(viewed: Viewed, start: Start) -> None:
    before = viewed.content()
    program = start("dashboard", "--port", "0", "--read-only")
    url = re.findall(r"http\S+", program.wait_for("/sign-in?code="))[0]
    ids = viewed.ids
    with httpx2.Client(base_url=url.partition("/sign-in")[0], timeout=60) as client:
        assert client.get(url).status_code == 303
        for path in (
            *(
                "/",
                "/queues/event.order",
                "/queues/event.order?state=failed",
                "/queues/event.order/bulk",
                "/workers",
            ),
            *(f"/jobs/{ids['failed']}", f"/jobs/{ids['running']}", "/failures", "/operations", "/audit"),
            *("/schedules", "/schedules/nightly", "/server", "/events", f"/find?q={ids['failed']}"),
            *(
                "/flows",
                f"/flows/{ids['flow']}",
                f"/flows/{ids['spread']}",
                f"/operations/{ids['operation']}",
            ),
        ):
            assert client.get(path, follow_redirects=True).status_code == 200, path
        assert client.get("/api/v1/stream").status_code == 503, "the server must note that somebody watches"
        mine = {"sec-fetch-site": "same-origin"}
        for path in ("/queues/event.order/pause", f"/jobs/{ids['failed']}/retry", "/schedules/nightly/run"):
            assert client.post(f"/api/v1{path}", json={}, headers=mine).status_code == 403, path
    assert viewed.content() == before
