"""Servers that cannot be used: the library says why, and the command line says it in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
from harness.backends import Backend, free_port
from harness.programs import Program

from eventbus import EmitError, EventProvider, StoreRefused

Run = Callable[..., Program]
MakeServer = Callable[..., Backend]

PASSWORD = "fjord-17"


class Case(NamedTuple):
    """A server that refuses, and the error that is expected."""

    url: str
    code: str
    says: str


@pytest.fixture(params=["no password", "wrong password", "unknown user", "no rights", "evicts", "replica"])
def case(request: pytest.FixtureRequest, make_server: MakeServer) -> Case:
    """One way to be refused."""
    port = free_port()
    what = request.param
    if what == "evicts":
        server = make_server("--maxmemory-policy", "allkeys-lru", port=port)
        return Case(server.url, "EVICTION", "maxmemory-policy allkeys-lru")
    if what == "replica":
        return _replica(make_server, port)
    user = "user limited on >half ~eb:* +@all -@scripting"
    server = make_server(*f"--{user}".split(" "), port=port, password=PASSWORD)
    login, code, says = {
        "no password": ("", "NOAUTH", "put the password into the URL"),
        "wrong password": (":fjord-18@", "WRONGPASS", "does not take this user name and password"),
        "unknown user": (f"nobody:{PASSWORD}@", "WRONGPASS", "does not take this user name and password"),
        "no rights": ("limited:half@", "NOPERM", "lacks a right"),
    }[what]
    return Case(f"redis://{login}127.0.0.1:{server.port}", code, says)


def _replica(make_server: MakeServer, port: int) -> Case:
    primary = make_server(port=port)
    # It is one at once, and read-only, also before it has the data.
    replica = make_server("--replicaof", "127.0.0.1", str(port), port=free_port())
    return Case(replica.url, "READONLY", f"127.0.0.1:{primary.port}")


def check_no_password(text: str) -> None:
    for secret in (PASSWORD, "fjord-18", "half"):
        assert secret not in text


async def test_a_server_that_cannot_be_used_is_refused_at_the_start(case: Case) -> None:
    with pytest.raises((StoreRefused, EmitError)) as caught:
        await _use(case)
    refused = caught.value.__cause__ if isinstance(caught.value, EmitError) else caught.value
    assert isinstance(refused, StoreRefused)
    assert refused.code == case.code
    assert case.says in str(caught.value)
    check_no_password(str(caught.value))


async def _use(case: Case) -> None:
    async with EventProvider(case.url) as provider:
        assert case.code == "NOPERM", "of what was not asked for yet nobody knows at the start"
        await provider.emit("ping")


@pytest.mark.servers("one")
@pytest.mark.parametrize(
    "words", [("emit", "ping", "1"), ("worker", "apps.event_app:provider")], ids=["emit", "worker"]
)
def test_the_command_line_tells_in_one_line_and_ends(case: Case, run: Run, words: tuple[str, ...]) -> None:
    program = run(*words, url=case.url)
    assert program.wait_ended() == 1
    assert program.out == b""
    (line,) = program.err.splitlines()
    assert line.startswith("eventbus: ")
    assert case.says in line
    check_no_password(line)


async def test_a_server_that_may_evict_is_used_when_allowed(make_server: MakeServer) -> None:
    server = make_server("--maxmemory-policy", "allkeys-lru")
    async with EventProvider(server.url, allow_eviction=True) as provider:
        emission = provider.emit("ping")
        await emission.enqueued()


async def test_an_emission_to_a_server_that_is_not_there_fails_within_its_own_time() -> None:
    port = free_port()
    async with EventProvider(f"redis://127.0.0.1:{port}", reply_timeout="1 hour") as provider:
        emission = provider.emit("ping", reply_timeout="700ms")
        with pytest.raises(EmitError, match=f"127.0.0.1:{port}") as failed:
            await emission
        assert failed.value.enqueued is False
        assert failed.value.job_id == emission.job_id


def test_the_command_line_names_a_server_that_is_not_there(run: Run) -> None:
    port = free_port()
    program = run("emit", "ping", "1", url=f"redis://127.0.0.1:{port}")
    assert program.wait_ended() == 1
    (line,) = program.err.splitlines()
    assert f"127.0.0.1:{port}" in line
    assert "EVENTBUS_URL" in line


async def test_a_primary_that_becomes_a_replica_is_waited_for(
    make_server: MakeServer, start_worker: Run
) -> None:
    other = make_server(port=free_port())
    server = make_server(port=free_port())
    worker = start_worker(server)
    async with EventProvider(server.url) as provider:
        assert (await provider.emit("work", {"n": 1}))["n"] == 1
        server.command("REPLICAOF", "127.0.0.1", other.port)
        emission = provider.emit("work", {"n": 2})
        server.command("REPLICAOF", "NO", "ONE")
        assert (await emission)["n"] == 2
    assert worker.complaints() == []
