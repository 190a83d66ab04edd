"""A user with the rights that docs/operations.md states: they suffice, and an error names a missing one."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable
from typing import Literal

import pytest
from harness.backends import Backend, free_port
from harness.conditions import until, wait_until
from harness.journal import Journal
from harness.load import Load
from harness.programs import HERE, Program

from eventbus import EmitError, EventProvider, JobCancelled, StoreRefused

Run = Callable[..., Program]
MakeServer = Callable[..., Backend]


def stated_rule() -> list[str]:
    """Return the words of the first rule on the page, without `user`; the other one is that of viewers."""
    page = (HERE.parent / "docs" / "operations.md").read_text()
    rule, _ = re.findall(r"^```acl\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return rule.replace("\\\n", " ").split()[1:]


def limited(server: Backend, *, without: str = "") -> str:
    """Make the user, maybe without one right, and return its URL."""
    rule = stated_rule()
    if without:
        rule.remove(without)
    server.command("ACL", "SETUSER", *rule)
    return f"redis://eventbus:secret@127.0.0.1:{server.port}"


@pytest.fixture
def server(make_server: MakeServer) -> Backend:
    """A server on a port, since a URL with a user name has a host; with a replica to wait for."""
    server = make_server("--repl-diskless-sync-delay", "0", port=free_port())
    make_server("--replicaof", "127.0.0.1", str(server.port), port=free_port())
    wait_until("the replica follows", lambda: "slave0" in server.command("INFO", "replication"))
    return server


@pytest.mark.servers("each")
async def test_the_stated_rights_are_enough_for_processes_that_die_and_stop(
    server: Backend, run: Run, journal: Journal, gates: Callable[[str], None]
) -> None:
    url = limited(server)

    def start() -> Program:
        return run("worker", "apps.event_app:provider", url=url, lease="1s", durability="replicated")

    killed, worker = start(), start()
    for each in (killed, worker):
        await asyncio.to_thread(each.wait_logged, "worker ready")
    async with EventProvider(url, durability="replicated") as provider:
        held = provider.emit_many("hold", [{"gate": "open"}] * 20)
        await until("all run", lambda: len(journal.read("began")) == 20, story=worker.story)
        load = Load(provider)
        await load.wait_answered(300, story=worker.story)
        killed.kill()  # the other one renews its own leases, and rescues these
        flaky = provider.emit("flaky", {"good": 2})
        keyed = [provider.emit("keyed", {"key": "k"}) for _ in range(3)]
        large = provider.emit("work", {"n": "x" * 100_000})
        late = provider.emit("work", {"n": 1}, delay="300ms")
        for unwanted in (provider.emit("nobody"), provider.emit("hold", {"gate": "never"})):
            await unwanted.enqueued()
            assert await unwanted.cancel("no longer wanted")
            with pytest.raises(JobCancelled):
                await unwanted
        await load.end()
        gates("open")
        await asyncio.gather(*held, flaky, *keyed, large, late)
    assert load.errors() == []
    worker.send(signal.SIGTERM)
    assert await asyncio.to_thread(worker.wait_ended) == 0
    assert worker.complaints() == []
    # The client library tries CLIENT SETINFO, which Redis 6 does not know at all.
    denied = {entry["object"] for entry in server.command("ACL", "LOG")}
    assert denied <= {"client", "client|setinfo", "fcall"}  # the rule is without the optional rights


LISTED = r"ACL LOG in the server names it\); docs/operations\.md lists the rights needed"

NEEDED_AT_THE_START: dict[str, Literal["default", "replicated"]] = {
    "+info": "default",
    "+expire": "default",
    "+set": "replicated",
    "+wait": "replicated",
}


@pytest.mark.parametrize("right", NEEDED_AT_THE_START)
async def test_a_right_that_is_missing_at_the_start_is_named(server: Backend, right: str) -> None:
    url = limited(server, without=right)
    with pytest.raises(StoreRefused, match=LISTED) as refused:
        async with EventProvider(url, durability=NEEDED_AT_THE_START[right]):
            pass
    assert refused.value.code == "NOPERM"
    assert f"'{right[1:]}'" in str(refused.value)


@pytest.mark.parametrize("right", ["+evalsha", "+smismember", "+xadd", "~eb:*"])
async def test_a_right_that_an_emission_misses_is_refused_as_such(server: Backend, right: str) -> None:
    """Not always by name: Redis 7 does not say which command a script was refused."""
    url = limited(server, without=right)
    with pytest.raises((EmitError, StoreRefused), match=LISTED) as failed:
        async with EventProvider(url) as provider:
            await provider.emit("work", reply=False).enqueued()
    refused = failed.value.__cause__ if isinstance(failed.value, EmitError) else failed.value
    assert isinstance(refused, StoreRefused)
    assert refused.code == "NOPERM"
    assert getattr(failed.value, "enqueued", False) is False


@pytest.mark.servers("one")
@pytest.mark.parametrize(
    ("right", "event"),
    [
        ("+zpopmin", "turn refused, trying again in 1 s"),
        ("+bzpopmin", "wakes refused, looking at the queues each second"),
    ],
)
def test_a_right_that_a_worker_misses_is_in_its_log(
    server: Backend, run: Run, right: str, event: str
) -> None:
    worker = run("worker", "apps.event_app:provider", url=limited(server, without=right))
    worker.wait_logged(event)
    assert re.search(LISTED, worker.logged(event)[0]["error"])
