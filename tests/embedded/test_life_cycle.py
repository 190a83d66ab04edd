"""The embedded server's life cycle, with real servers and real processes."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from drivers.embedded_users import User, client, is_alive, lock, server_pid, user_pids, wait_until

from eventbus.errors import ConfigError, StoreUnavailable, UsageError
from eventbus.store.embedded import server as embedded
from eventbus.store.embedded.server import EmbeddedServer, end_server


def test_it_answers_on_a_socket_each_time_it_is_started(folder: Path) -> None:
    for _ in range(3):
        server = EmbeddedServer(folder)
        with client(server.start()) as asked:
            assert asked.ping()
        server.stop()


def test_it_listens_on_no_port_and_keeps_what_is_written(folder: Path) -> None:
    server = EmbeddedServer(folder)
    with client(server.start()) as asked:
        names = ("port", "appendonly", "appendfsync", "maxmemory-policy", "save", "loglevel")
        found = {name: asked.config_get(name)[name] for name in names}
    server.stop()
    assert found == {
        "port": "0",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "save": "",
        "loglevel": "notice",
    }


def test_the_folder_and_all_in_it_are_for_its_user_alone(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    server = EmbeddedServer(folder)
    address = server.start()
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in [folder, *folder.rglob("*")]}
    server.stop()
    assert modes[folder] == 0o700
    assert modes[address] == 0o700
    assert {path: mode for path, mode in modes.items() if mode & 0o077} == {}


def test_what_was_written_is_there_at_the_next_start(folder: Path) -> None:
    server = EmbeddedServer(folder)
    with client(server.start()) as asked:
        asked.set("key", "value")
    server.stop()
    assert not is_alive(folder)
    with client(server.start()) as asked:
        assert asked.get("key") == "value"
    server.stop()


def test_starting_and_stopping_twice_is_like_once(folder: Path) -> None:
    server = EmbeddedServer(folder)
    assert server.start() == server.start()
    server.stop()
    assert not is_alive(folder)
    server.stop()
    EmbeddedServer(folder).stop()


def test_a_process_leaves_when_its_last_use_stops(folder: Path) -> None:
    first, second = EmbeddedServer(folder), EmbeddedServer(folder.parent / "." / folder.name)
    assert first.start() == second.start()
    assert user_pids(folder) == [os.getpid()]
    first.stop()
    first.stop()
    assert is_alive(folder)
    second.stop()
    assert not is_alive(folder)
    assert user_pids(folder) == []


def test_threads_may_start_and_stop_at_once(folder: Path) -> None:
    def use() -> None:
        server = EmbeddedServer(folder)
        for _ in range(5):
            with client(server.start()) as asked:
                assert asked.ping()
            server.stop()
        ended.append(True)

    ended: list[bool] = []
    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ended) == 6
    assert not is_alive(folder)


def test_the_last_process_to_leave_ends_the_server(folder: Path, make_user: Callable[..., User]) -> None:
    first, second = make_user(), make_user()
    assert first.wait_word("socket") == second.wait_word("socket")
    first.stop()
    assert is_alive(folder)
    second.stop()
    assert not is_alive(folder)


def test_processes_that_start_at_once_share_one_server(folder: Path, make_user: Callable[..., User]) -> None:
    users = [make_user() for _ in range(5)]
    addresses = {user.wait_word("socket") for user in users}
    assert len(addresses) == 1
    assert (folder / "server.log").read_text().count("Ready to accept connections") == 1
    assert user_pids(folder) == sorted(user.pid for user in users)
    for user in users:
        user.go_on()
    for user in users:
        user.wait_word("stopped")
    assert not is_alive(folder)


def test_a_program_that_ends_without_stop_leaves(folder: Path, make_user: Callable[..., User]) -> None:
    user = make_user(after="sys.exit(3)")
    assert user.wait_dead() == 3
    assert not is_alive(folder)
    assert user_pids(folder) == []


def test_the_data_path_is_logged_once(folder: Path) -> None:
    first, second = EmbeddedServer(folder), EmbeddedServer(folder)
    with structlog.testing.capture_logs() as logs:
        first.start()
        second.start()
        first.start()
    first.stop()
    second.stop()
    assert logs == [{"event": "embedded server", "path": str(folder), "log_level": "info"}]


def test_one_that_hangs_while_starting_is_named_not_waited_for_without_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EmbeddedServer(folder)
    server.start()
    start_lock = lock(folder / "start.lock")
    assert start_lock.take()
    monkeypatch.setattr(embedded, "_START_LOCK_WITHIN", 0.01)
    with pytest.raises(StoreUnavailable, match="look for one that hangs"):
        EmbeddedServer(folder).start()
    with structlog.testing.capture_logs() as logs:
        server.stop()
    assert [entry["event"] for entry in logs] == ["embedded server not ended"]
    start_lock.close()
    assert end_server(folder)


def test_a_folder_that_cannot_be_used_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "file").touch()
    with pytest.raises(ConfigError, match="cannot be used"):
        EmbeddedServer(root / "file" / "data").start()
    root.chmod(0o755)
    with pytest.raises(ConfigError, match="holds other things; name a folder for the server alone"):
        EmbeddedServer(root).start()
    assert stat.S_IMODE(root.stat().st_mode) == 0o755
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ConfigError, match="belongs to user"):
        EmbeddedServer(root).start()


def test_a_folder_that_was_removed_is_made_again(folder: Path) -> None:
    first, second = EmbeddedServer(folder), EmbeddedServer(folder)
    first.start()
    lost = server_pid(folder)
    shutil.rmtree(folder)
    with client(second.start()) as asked:
        assert asked.info("server")["process_id"] != lost
    assert user_pids(folder) == [os.getpid()]
    first.stop()
    assert is_alive(folder)
    second.stop()
    assert not is_alive(folder)
    os.kill(lost, signal.SIGKILL)


def test_stop_in_a_folder_that_was_removed_is_quiet(folder: Path) -> None:
    server = EmbeddedServer(folder)
    server.start()
    pid = server_pid(folder)
    shutil.rmtree(folder)
    with structlog.testing.capture_logs() as logs:
        server.stop()
    assert [entry["log_level"] for entry in logs] == ["warning"]
    os.kill(pid, signal.SIGKILL)


def test_a_lost_address_file_is_made_up_for(folder: Path) -> None:
    server = EmbeddedServer(folder)
    address = server.start()
    (folder / "server.socket").unlink()
    other = EmbeddedServer(folder)
    assert other.start() == address
    server.stop()
    other.stop()
    assert not is_alive(folder)


def test_end_server_ends_what_nobody_uses(folder: Path, make_user: Callable[..., User]) -> None:
    assert not end_server(folder)
    assert not folder.exists()
    user = make_user()
    user.wait_word("socket")
    with pytest.raises(UsageError, match=f"in use by process {user.pid};"):
        end_server(folder)
    assert is_alive(folder)
    user.kill()
    assert end_server(folder)
    assert not is_alive(folder)
    assert not end_server(folder)


def test_there_is_nothing_to_end_where_a_user_lives_and_the_server_does_not(
    folder: Path, make_user: Callable[..., User]
) -> None:
    user = make_user()
    user.wait_word("socket")
    os.kill(server_pid(folder), signal.SIGKILL)
    wait_until(lambda: not is_alive(folder), "the server is gone")
    assert not end_server(folder)
    assert user_pids(folder) == [user.pid]


def test_end_server_by_force_asks_nobody(folder: Path) -> None:
    server = EmbeddedServer(folder)
    server.start()
    assert end_server(folder, force=True)
    assert not is_alive(folder)
    server.stop()


def test_throw_away_servers_are_apart_and_leave_nothing() -> None:
    first, second = EmbeddedServer(None), EmbeddedServer(None)
    address = first.start()
    assert first.start() == address
    other = second.start()
    with client(address) as asked, client(other) as asked_too:
        asked.set("key", "value")
        assert asked_too.get("key") is None
        assert asked.config_get("appendonly") == {"appendonly": "no"}
    first.stop()
    first.stop()
    second.stop()
    wait_until(lambda: not address.parent.exists() and not other.parent.exists(), "the folders are removed")


def test_a_throw_away_server_may_be_started_again_empty() -> None:
    server = EmbeddedServer(None)
    for _ in range(2):
        with client(server.start()) as asked:
            assert asked.incr("key") == 1
        server.stop()
