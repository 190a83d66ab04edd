"""The crash windows of the embedded server by their names, with real processes and real kills."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drivers.embedded_users import DIE, FORK, User, client, is_alive, runs, server_pid, user_pids, wait_until

from eventbus.store.embedded import process
from eventbus.store.embedded.server import EmbeddedServer


def test_killed_while_starting_no_second_server_is_started(
    folder: Path, make_user: Callable[..., User]
) -> None:
    make_user(before=f"process.wait_ready = lambda *a, **k: {DIE}").wait_dead()
    assert is_alive(folder)
    server = EmbeddedServer(folder)
    server.start()
    assert (folder / "server.log").read_text().count("is starting") == 1
    server.stop()
    assert not is_alive(folder)


def test_killed_before_the_server_was_there_the_next_start_starts_it(
    folder: Path, make_user: Callable[..., User]
) -> None:
    make_user(before=f"process.launch_kept = lambda *a, **k: {DIE}").wait_dead()
    server = EmbeddedServer(folder)
    with client(server.start()) as asked:
        assert asked.ping()
    server.stop()
    assert user_pids(folder) == []


def test_killed_while_using_it_does_not_count(folder: Path, make_user: Callable[..., User]) -> None:
    killed, last = make_user(), make_user()
    killed.wait_word("socket")
    last.wait_word("socket")
    killed.kill()
    last.stop()
    assert not is_alive(folder)
    assert user_pids(folder) == []


def test_killed_while_using_alone_the_server_stays_and_is_adopted(
    folder: Path, make_user: Callable[..., User]
) -> None:
    user = make_user()
    user.wait_word("socket")
    pid = server_pid(folder)
    user.kill()
    assert is_alive(folder)
    server = EmbeddedServer(folder)
    with client(server.start()) as asked:
        assert asked.info("server")["process_id"] == pid
    server.stop()
    assert not is_alive(folder)


def test_killed_before_the_decision_to_end_the_server_is_adopted(
    folder: Path, make_user: Callable[..., User]
) -> None:
    user = make_user(after=f"process.ask = lambda *a, **k: {DIE}")  # the first question: what is not saved
    user.wait_word("socket")
    pid = server_pid(folder)
    user.go_on()
    assert user.wait_dead() == -signal.SIGKILL
    assert not (folder / "server.ending").exists()
    server = EmbeddedServer(folder)
    with client(server.start()) as asked:
        assert asked.info("server")["process_id"] == pid
    server.stop()
    assert not is_alive(folder)


@pytest.mark.parametrize(
    "sent", [False, True], ids=["before the server was told", "after the server was told"]
)
def test_killed_while_ending_the_next_start_completes_it(
    folder: Path, make_user: Callable[..., User], sent: bool
) -> None:
    tell = "ask(*a, timeout=0.0001), " if sent else ""
    die = f"({tell}{DIE}) if a[1].startswith(b'SHUTDOWN') else ask(*a, **k)"
    user = make_user(after=f"ask = process.ask; process.ask = lambda *a, **k: {die}")
    with client(user.wait_word("socket")) as asked:
        asked.set("key", "value")
        pid = server_pid(folder)
    user.go_on()
    assert user.wait_dead() == -signal.SIGKILL
    server = EmbeddedServer(folder)
    with client(server.start()) as asked:
        assert asked.info("server")["process_id"] != pid
        assert asked.get("key") == "value"
    assert not (folder / "server.ending").exists()
    server.stop()


def test_server_killed_it_is_started_again_with_its_data(folder: Path) -> None:
    server, other = EmbeddedServer(folder), EmbeddedServer(folder)
    with client(server.start()) as asked:
        asked.config_set("appendfsync", "always")
        asked.set("key", "value")
    os.kill(server_pid(folder), signal.SIGKILL)
    wait_until(lambda: not is_alive(folder), "the server is gone")
    assert (folder / "server.sock").exists()
    with client(other.start()) as asked:
        assert asked.get("key") == "value"
    os.kill(server_pid(folder), signal.SIGKILL)
    wait_until(lambda: not is_alive(folder), "the server is gone")
    with client(server.start()) as asked:
        assert asked.get("key") == "value"
    server.stop()
    other.stop()
    assert not is_alive(folder)


def test_a_server_that_ends_while_it_is_adopted_is_replaced(
    folder: Path, monkeypatch: pytest.MonkeyPatch, make_user: Callable[..., User]
) -> None:
    user = make_user()
    user.wait_word("socket")
    user.kill()
    pid, wait_ready = server_pid(folder), process.wait_ready

    def wait_after_kill(*arguments: Any, **options: Any) -> bool:
        monkeypatch.setattr(process, "wait_ready", wait_ready)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(folder), "the server is gone")
        return wait_ready(*arguments, **options)

    monkeypatch.setattr(process, "wait_ready", wait_after_kill)
    server = EmbeddedServer(folder)
    with client(server.start()) as asked:
        assert asked.info("server")["process_id"] != pid
    server.stop()


def test_forked_a_child_is_no_user(folder: Path, make_user: Callable[..., User]) -> None:
    user = make_user(after=FORK.format(work=""))
    user.wait_word("socket")
    child = int(user.wait_word("child"))
    assert is_alive(folder)
    user.stop()
    assert not is_alive(folder)
    assert runs(child)


def test_forked_a_child_does_not_hold_its_killed_parents_place(
    folder: Path, make_user: Callable[..., User]
) -> None:
    user = make_user(after=FORK.format(work=""))
    user.wait_word("socket")
    child = int(user.wait_word("child"))
    os.kill(user.pid, signal.SIGKILL)
    user.wait_dead()
    server = EmbeddedServer(folder)
    server.start()
    server.stop()
    assert not is_alive(folder)
    assert runs(child)


def test_forked_a_child_that_starts_is_a_user_of_its_own(
    folder: Path, make_user: Callable[..., User]
) -> None:
    user = make_user(after=FORK.format(work='server.start(); print("joined", flush=True)'))
    user.wait_word("socket")
    child = int(user.wait_word("child"))
    user.wait_word("joined")
    assert user_pids(folder) == sorted([user.pid, child])
    user.kill()
    server = EmbeddedServer(folder)
    server.start()
    server.stop()
    assert is_alive(folder)
    assert runs(child)


def test_signals_of_the_terminal_do_not_reach_the_server(
    folder: Path, make_user: Callable[..., User]
) -> None:
    user = make_user()
    user.wait_word("socket")
    assert os.getsid(server_pid(folder)) not in (os.getsid(0), os.getsid(user.pid))
    os.killpg(user.pid, signal.SIGKILL)
    user.wait_dead()
    assert is_alive(folder)


@pytest.mark.parametrize("after", ["", FORK.format(work="")], ids=["alone", "with a forked child that lives"])
def test_owner_killed_its_throw_away_server_ends(make_user: Callable[..., User], after: str) -> None:
    user = make_user(None, after=after)
    address = Path(user.wait_word("socket"))
    if after:
        user.wait_word("child")
    pid = server_pid(address.parent)
    assert process.ask(address, b"PING\r\n", timeout=5) == b"+PONG\r\n"
    user.kill()
    wait_until(lambda: not address.parent.exists(), "the folder is removed")
    assert process.ask(address, b"PING\r\n", timeout=5) == b""
    wait_until(lambda: not runs(pid), "the server's process is gone")
