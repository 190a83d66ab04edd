"""`eventbus check`: what it finds, what it says to do, and its exit codes."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from drivers.program import Program
from drivers.servers import Server, free_port
from typer.testing import Result

from eventbus import EventProvider
from eventbus.store import diagnostics
from eventbus.store.calls import backlog
from eventbus.store.diagnostics import TRIED, Finding

Invoke = Callable[..., Result]

_RULE = re.search(
    r"```acl\n(.*?)```", (Path(__file__).parents[2] / "docs" / "operations.md").read_text(), re.DOTALL
)


def _stated() -> list[str]:
    assert _RULE is not None
    return _RULE[1].replace("\\\n", " ").split()[1:]


def _found(result: Result) -> dict[str, list[dict[str, Any]]]:
    """Return the findings of a run with --json by subject; those that are not ok come first."""
    said = json.loads(result.stdout)
    assert said["exit_code"] == result.exit_code
    found: dict[str, list[dict[str, Any]]] = {}
    for each in sorted(said["findings"], key=lambda each: each["level"] == "ok"):
        found.setdefault(each["subject"], []).append(each)
    return found


@pytest.fixture
def make_own() -> Iterator[Callable[..., Server]]:
    """Start a server with options of its command line."""
    made: list[Server] = []

    def make(*options: str) -> Server:
        made.append(Server(*options, port=free_port()))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        each.stop()


def _make_user(server: Server, *rule: str) -> str:
    """Make the user; returns its URL."""
    server.wait(lambda client: client.execute_command("ACL", "SETUSER", *rule))
    return f"redis://eventbus:secret@{server.place}"


def test_the_commands_it_tries_are_those_whose_rights_are_stated() -> None:
    stated = {word[1:] for word in _stated() if word.startswith("+")}
    by_connecting = {"info", "client|setname", "acl|whoami"}
    assert set(TRIED) == stated - by_connecting - {"wait"}


def test_with_the_stated_rights_and_a_durable_server_nothing_is_wrong(
    invoke: Invoke, make_own: Callable[..., Server]
) -> None:
    server = make_own("--appendonly", "yes")
    rule = [word.replace("~eb:", "~t") for word in _stated()]
    result = invoke("check", "--url", _make_user(server, *rule))
    assert result.exit_code == 0, result.stdout
    assert {line.split()[0] for line in result.stdout.splitlines()} == {"ok"}
    assert "secret" not in result.stdout
    server.wait(lambda client: not client.keys("*"))  # it leaves nothing


def test_each_right_that_is_missing_is_named(invoke: Invoke, make_own: Callable[..., Server]) -> None:
    server = make_own()
    rule = [word.replace("~eb:", "~t") for word in _stated()]
    url = _make_user(server, *rule, "-xtrim", "-bzpopmin", "-evalsha", "-time")
    result = invoke("check", "--json", "--url", url)
    (rights,) = _found(result)["rights"]
    assert rights["level"] == "error"
    assert "may not use evalsha, time, bzpopmin, xtrim on keys of t" in rights["said"]
    assert "docs/operations.md" in rights["remedy"]
    assert result.exit_code == 1


def test_a_user_of_other_keys_lacks_all_rights_on_ours(
    invoke: Invoke, make_own: Callable[..., Server]
) -> None:
    url = _make_user(make_own(), *(word.replace("~eb:", "~other:") for word in _stated()))
    (rights,) = _found(invoke("check", "--json", "--url", url))["rights"]
    assert "hset, hget" in rights["said"]


def test_a_server_that_is_not_there_is_exit_code_1(invoke: Invoke) -> None:
    port = free_port()
    result = invoke("check", "--url", f"redis://:secret@127.0.0.1:{port}")
    assert f"no server at 127.0.0.1:{port}" in result.stdout
    assert "-> start a server there, or name another one with --url" in result.stdout
    assert (result.exit_code, "secret" in result.stdout) == (1, False)


def test_a_password_that_is_wrong_is_told(invoke: Invoke, make_own: Callable[..., Server]) -> None:
    place = make_own().place
    result = invoke("check", "--url", f"redis://eventbus:wrong@{place}")
    assert "does not take this user name and password" in result.stdout
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--url", "ftp://host"], "expected a URL of redis://"),
        (["nowhere:provider"], "no module 'nowhere'"),
        (["shop:item_sold"], "is no EventProvider"),
    ],
)
def test_settings_and_programs_that_are_wrong_are_exit_code_2(
    invoke: Invoke, words: list[str], told: str
) -> None:
    result = invoke("check", *words)
    assert result.stdout.startswith("error ")
    assert told in result.stdout
    assert result.exit_code == 2


def test_a_server_that_may_evict_is_an_error_unless_that_is_allowed(
    invoke: Invoke, make_own: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_own("--maxmemory-policy", "allkeys-lru").url
    refused = invoke("check", "--json", "--url", url)
    assert (_found(refused)["maxmemory-policy"][0]["level"], refused.exit_code) == ("error", 1)
    monkeypatch.setenv("EVENTBUS_ALLOW_EVICTION", "true")
    allowed = invoke("check", "--json", "--url", url)
    assert (_found(allowed)["maxmemory-policy"][0]["level"], allowed.exit_code) == ("warning", 0)
    assert _found(allowed)["persistence"][0]["level"] == "warning"


@pytest.mark.slow
def test_workers_that_serve_the_programs_queues_are_seen(
    invoke: Invoke, start: Callable[..., Program]
) -> None:
    (workers,) = _found(invoke("check", "shop:provider", "--json"))["workers"]
    assert workers["level"] == "warning"
    assert "event.double, " in workers["said"]
    start("worker", "shop:provider", "--queues", "*@audit,double,wait").wait_for("worker ready")
    result = invoke("check", "shop:provider", "--json")
    (workers,) = _found(result)["workers"]
    assert "event.double" not in workers["said"]
    assert "event.chain" in workers["said"]
    start("worker", "shop:provider").wait_for("worker ready")
    result = invoke("check", "shop:provider")
    assert "ok       workers           each queue is served: event.double by 2, " in result.stdout
    assert result.exit_code == 0


@pytest.mark.slow
def test_a_worker_that_has_left_is_known_at_once(invoke: Invoke, start: Callable[..., Program]) -> None:
    first, second = (start("worker", "shop:provider", "--queues", "double,item.sold") for _ in range(2))
    for each in (first, second):
        each.wait_for("worker ready")
    start(
        "worker", "shop:provider", "--queues", "double,chain,wait,block,frozen,freeze,double@audit"
    ).wait_for("worker ready")
    (workers,) = _found(invoke("check", "shop:provider", "--json"))["workers"]
    assert (workers["level"], workers["said"].count("event.double by 3")) == ("ok", 1)
    assert "event.item.sold by 2, " in workers["said"]
    for each in (first, second):
        each.send(signal.SIGTERM)
        assert each.wait() == 0
    (workers,) = _found(invoke("check", "shop:provider", "--json"))["workers"]
    assert (workers["level"], workers["said"]) == ("warning", "none serves event.item.sold")


@pytest.fixture
def emit(environment: dict[str, str]) -> Callable[..., None]:
    """Emit without waiting for an outcome; without a worker the jobs stay."""

    async def emit(event: str, count: int, options: dict[str, Any]) -> None:
        provider = EventProvider(environment["EVENTBUS_URL"], prefix=environment["EVENTBUS_PREFIX"])
        async with provider:
            for each in provider.emit_many(event, range(count), reply=False, **options):
                await each

    return lambda event, count=1, **options: asyncio.run(emit(event, count, options))


@pytest.mark.slow
def test_jobs_that_wait_where_nobody_serves_are_found_whatever_their_name(
    invoke: Invoke, start: Callable[..., Program], emit: Callable[..., None]
) -> None:
    (queues,) = _found(invoke("check", "--json"))["queues"]
    assert (queues["level"], queues["said"]) == ("ok", "no jobs wait that nobody serves")
    start("worker", "shop:provider").wait_for("worker ready")
    emit("duoble", 3)
    emit("late", 2, delay="1 hour")
    emit("duoble", delay="1 hour")
    emit("chain", delay="1 hour")  # this one is served
    result = invoke("check", "--json")
    (queues,) = _found(result)["queues"]
    assert queues["level"] == "warning"
    assert queues["said"] == "nobody serves event.duoble (3 waiting, 1 delayed), event.late (2 delayed)"
    assert "mend the name where it is emitted" in queues["remedy"]
    assert result.exit_code == 0


def test_a_look_at_too_many_keys_is_cut_and_says_so(
    invoke: Invoke, emit: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    emit("plenty", 200)
    monkeypatch.setattr(backlog, "_SCANS", 1)
    monkeypatch.setattr(backlog, "_COUNT", 1)
    (queues,) = _found(invoke("check", "--json"))["queues"]
    assert queues["said"].endswith("; the server has too many keys to look at, there may be others")


def test_many_neglected_queues_are_counted_and_some_are_named(
    invoke: Invoke, emit: Callable[..., None]
) -> None:
    for n in range(11):
        emit(f"stray{n}")
    (queues,) = _found(invoke("check", "--json"))["queues"]
    assert queues["said"].endswith(" and 3 more")
    assert queues["said"].count("1 waiting") == 8


def test_without_the_right_to_scan_nothing_but_that_look_is_left_out(
    invoke: Invoke, make_own: Callable[..., Server]
) -> None:
    rule = [word.replace("~eb:", "~t") for word in _stated()]
    result = invoke("check", "--json", "--url", _make_user(make_own(), *rule, "-scan"))
    found = _found(result)
    (queues,), (rights,) = found["queues"], found["rights"]
    assert queues["level"] == "warning"
    assert "may not use scan" in queues["said"]
    assert rights["level"] == "ok"
    assert "all commands but scan, which only this look needs" in rights["said"]
    assert result.exit_code == 0


def _levels(found: Any) -> list[tuple[str, str]]:
    return [(each.level, each.said) for each in found]


def test_a_replica_an_old_server_and_a_cluster_are_errors() -> None:
    facts = {"role": "slave", "master_host": "h", "master_port": "1"}
    (replica,) = diagnostics._role(facts, replicated=False, names_addresses=True)
    assert (replica.level, replica.remedy) == ("error", "use the URL of its primary, h:1")
    old = diagnostics._version({"redis_version": "6.0.16", "cluster_enabled": "1"})
    assert _levels(old) == [
        ("error", "Redis 6.0.16 is too old"),
        ("error", "the server is a node of a cluster"),
    ]


def test_replicated_durability_needs_a_replica() -> None:
    def look(count: str, *, replicated: bool) -> str:
        (found,) = diagnostics._role(
            {"role": "master", "connected_slaves": count}, replicated=replicated, names_addresses=True
        )
        return found.level

    assert [look("0", replicated=True), look("1", replicated=True), look("0", replicated=False)] == [
        "error",
        "ok",
        "ok",
    ]


def test_what_the_server_failed_to_write_is_an_error() -> None:
    facts = {"aof_enabled": "1", "aof_last_write_status": "err", "rdb_last_bgsave_status": "err"}
    found: list[Finding] = list(diagnostics._persistence(facts, "no"))
    assert [each.level for each in found] == ["warning", "error", "error"]
    assert "appendfsync no" in found[0].said
    assert diagnostics._reached({"loading": "1"}, "a", 0.001).level == "error"


def test_a_variable_that_is_close_to_a_setting_is_named(
    invoke: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENTBUS_LEESE", "3s")
    monkeypatch.setenv("EVENTBUS_TEAM", "billing")
    told = invoke("check").stdout
    assert "EVENTBUS_LEESE is no setting" in told
    assert "did you mean EVENTBUS_LEASE?" in told
    assert "EVENTBUS_TEAM" not in told
