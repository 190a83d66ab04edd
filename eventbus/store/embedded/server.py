"""The embedded Valkey server: `embedded:PATH` is kept and shared, `memory:` is thrown away.

Here is its life cycle: who starts, uses and ends the server. `process` runs one server process.

A folder has at most one server. The folder contains

    start.lock          held by the process that starts or ends the server, for as long as that takes
    server.lock         held by the server, which inherits the open file: it is locked exactly as
                        long as the server lives, whichever process started it
    users/PID-….lock    one for each process that uses the server, held while that process lives
    server.socket       the path of the socket, which is elsewhere if it would be too long here
    server.ending       exists from the decision to end the server until the next server starts
    server.pid, server.log, appendonlydir/      written by the server

What must always hold: two servers never share a folder; a server in use is not ended; written data is there
at the next start. This depends on `flock`: the kernel frees a lock when the last copy of its open file
closes. Nothing is decided by a process id, because ids are reused; they only serve messages.
Rejected: one shared lock, made exclusive to learn who is last (it is lost in between); a count in a
file (it still counts killed processes).

Crash windows, each with its test:
    killed while starting   the server may live and not answer yet. server.lock is held: the next
                            start waits for this server and does not start a second one
    killed while using      the user's lock is free: its file is swept and does not count. If no user
                            is left, the server stays, and the next start adopts it
    killed while ending     server.ending exists: the next start ends the server first, and does not
                            adopt a server that is about to end
    disk full               the server answers a write that it then cannot keep, and refuses those that
                            follow. What it answered so is lost with the process; its end is logged so
    server killed           server.lock is free: the next start replaces the socket and the server
    forked                  the child would hold all locks of its parent: it closes them, and becomes
                            a user only when it starts the server itself

A throw-away server has a temporary folder and one owner. A shell waits on a pipe whose other end only
the owner holds. When this end closes, by `stop` or by any death of the owner, the shell kills the
server and removes the folder.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Literal

from eventbus.errors import ConfigError, StoreUnavailable, UsageError
from eventbus.model import clock
from eventbus.store.embedded import process
from eventbus.store.server_info import failed_saves, parse_info
from eventbus.telemetry.logging import get_logger

_log = get_logger("eventbus.store")

_START_LOCK_WITHIN = 30.0
"""Seconds to wait for another process that starts or ends the server."""
_END_WITHIN = 10.0  # seconds


Expected = Literal["nothing", "folder", "server"]
"""What must be there before a use: what lacks is made; the folder of an earlier server; or a server that
runs.
"""


class EmbeddedServer:
    """One use of the server in `folder`, or of a throw-away server if `folder` is None.

    All calls block. Several uses of one folder in one process count as one user process.
    """

    def __init__(self, folder: Path | None) -> None:
        self._use = _Temporary() if folder is None else _Persistent(folder)

    def start(self, *, expects: Expected = "nothing") -> Path:
        """Start the server, or join the one that runs, and return its socket.

        May be repeated: it then starts a kept server again if that has died. Raises ConfigError without
        the `embedded` extra or for a folder that cannot be used, StoreUnavailable if the start fails, or
        if what it `expects` is not there; then nothing was made or changed.
        """
        with _held.start_lock:
            return self._use.start(expects)

    def stop(self) -> None:
        """Leave the server; the last user process of the folder ends it. Idempotent."""
        with _held.start_lock:
            self._use.stop()


def end_server(folder: Path, *, force: bool = False) -> bool:
    """End the server of `folder`. Return False if none runs.

    Raises UsageError if processes use it, unless `force`; StoreUnavailable if it does not end.
    """
    home = _Folder(folder)
    if not home.start_lock.exists():
        return False
    with _held.start_lock, home.hold_start_lock():
        users = home.users()
        if users and not force and home.has_server():
            pids = ", ".join(user.name.partition("-")[0] for user in users)
            raise UsageError(
                f"the server in {home.path} is in use by process {pids}; stop it first, or force the end"
            )
        return home.end_server()


class _Descriptor:
    """An open file that a forked child must not keep."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        _held.open.add(self)

    def close(self) -> None:
        """Close the file. Idempotent; does nothing in a forked child, where the file is closed already."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            _held.open.discard(self)
            os.close(fd)


class _Lock(_Descriptor):
    """An open lock file. Closing it frees the lock, unless a server has inherited it."""

    def __init__(self, path: Path, *, flags: int = os.O_CREAT) -> None:
        with _held.opening:
            super().__init__(os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600))

    def take(self) -> bool:
        """Take the lock at once; return False if it is not free."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def take_within(self, seconds: float) -> bool:
        """Take the lock as soon as it is free; return False if that takes longer."""
        end = clock.monotonic() + seconds
        while not self.take():
            if clock.monotonic() > end:
                return False
            time.sleep(process.POLL)
        return True


class _Held:
    """The open files and locks of this process, which a forked child must not keep."""

    def __init__(self) -> None:
        self.open: set[_Descriptor] = set()
        self.user_locks: dict[Path, _UserLock] = {}
        self.start_lock = threading.RLock()  # one start or stop at a time
        self.opening = threading.Lock()  # no fork between opening a file and noting it

    def drop_in_child(self) -> None:
        # Closed, not unlocked: the lock belongs to the open file, and the parent still has that.
        for descriptor in list(self.open):
            descriptor.close()
        self.user_locks.clear()
        # A thread of the parent may have held these locks, and the child has no such thread to free them.
        self.start_lock, self.opening = threading.RLock(), threading.Lock()

    def leave_all(self) -> None:
        """Stop the uses that a program has not stopped when it ends."""
        with self.start_lock:
            for use in [use for user_lock in self.user_locks.values() for use in user_lock.uses]:
                use.stop()


class _UserLock(_Lock):
    """The lock file by which this process counts as a user of a folder."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "users" / f"{os.getpid()}-{secrets.token_hex(4)}.lock"
        self.uses: set[_Persistent] = set()
        super().__init__(self.file, flags=os.O_CREAT | os.O_EXCL)
        self.take()

    def leave(self) -> None:
        """Stop counting as a user. Idempotent."""
        self.file.unlink(missing_ok=True)
        self.close()


_held = _Held()
os.register_at_fork(
    before=lambda: _held.opening.acquire(),  # noqa: PLW0108  (looked up anew: a child has another lock)
    after_in_parent=lambda: _held.opening.release(),  # noqa: PLW0108
    after_in_child=_held.drop_in_child,
)
atexit.register(_held.leave_all)


class _Folder:
    """The data folder of a kept server. All methods but `prepare` need `hold_start_lock`."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.realpath(path))
        self._lock_file = self.path / "server.lock"
        self._address_file = self.path / "server.socket"
        self._ending = self.path / "server.ending"
        self.start_lock: Path = self.path / "start.lock"
        """Is there once the folder was used."""

    def prepare(self) -> None:
        """Make the folder private. Raises ConfigError for a folder of another user or with other contents."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.path.stat()
            if found.st_uid != os.geteuid():
                raise _unusable(self.path, f"belongs to user {found.st_uid}; name a folder of your own")
            if found.st_mode & 0o077:
                if any(self.path.iterdir()) and not self.start_lock.exists():
                    raise _unusable(self.path, "holds other things; name a folder for the server alone")
                self.path.chmod(0o700)
            (self.path / "users").mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise _unusable(self.path, f"cannot be used ({error.strerror}); name another folder") from error

    @contextlib.contextmanager
    def hold_start_lock(self) -> Generator[None]:
        """Hold start.lock inside. Raises StoreUnavailable if another process holds it for too long."""
        with contextlib.closing(_Lock(self.start_lock)) as lock:
            if not lock.take_within(_START_LOCK_WITHIN):
                raise StoreUnavailable(
                    f"another process has been starting or ending the server in {self.path} "
                    f"for {_START_LOCK_WITHIN:g} s; look for one that hangs",
                    address=str(self.path),
                )
            yield

    def users(self) -> list[Path]:
        """Return the files of the live user processes, and remove those of dead ones."""
        alive: list[Path] = []
        for file in sorted(self.path.glob("users/*.lock")):
            # Safe to remove: such files are made and locked under start.lock, which we hold.
            with contextlib.closing(_Lock(file)) as lock:
                if lock.take():
                    file.unlink(missing_ok=True)
                else:
                    alive.append(file)
        return alive

    def has_server(self) -> bool:
        """Return whether a server lives here, even if it is starting or hangs."""
        with contextlib.closing(_Lock(self._lock_file)) as lock:
            return not lock.take()

    def ensure_server(self) -> Path:
        """Start the server unless it runs, wait until it answers, and return its socket."""
        if self._ending.exists():
            self.end_server()
        spawned = False
        while not spawned:  # a server that was there, and ends while we wait for it, is replaced
            spawned = self._spawn_unless_alive()
            with contextlib.closing(_Lock(self._lock_file)) as lock:
                if process.wait_ready(self.path, self._address(), has_ended=lock.take):
                    return self._address()
        raise process.failure(self.path, self._address(), "ended while starting")

    def end_server(self) -> bool:
        """End the server, and wait until it is gone; return False if there is none."""
        with contextlib.closing(_Lock(self._lock_file)) as lock:
            if lock.take():
                return False
            # The answer comes behind the write of all that was answered before.
            said = process.ask(self._address(), b"INFO persistence\r\n", timeout=_END_WITHIN, most=1 << 16)
            failed = failed_saves(parse_info(said.decode(errors="replace")))
            if failed:
                _log.error(
                    "embedded server ends without its newest data: it could not write them",
                    path=str(self.path),
                    error=f"{', '.join(failed)}; its disk may be full or read-only, see its server.log",
                )
            with contextlib.suppress(
                OSError
            ):  # a full disk: the next start does without, for the lock is free
                self._ending.touch(mode=0o600)
            # NOSAVE skips only a snapshot; the append-only file is written out and synced all the same.
            process.ask(self._address(), b"SHUTDOWN NOSAVE\r\n", timeout=_END_WITHIN)
            if not lock.take_within(_END_WITHIN):
                raise process.failure(self.path, self._address(), "does not end")
            return True

    def _spawn_unless_alive(self) -> bool:
        with contextlib.closing(_Lock(self._lock_file)) as lock:
            # While the lock is held, a server lives, even if it does not answer yet.
            if not lock.take():
                return False
            address = process.choose_address(self.path)
            process.find_program()  # may raise: before anything changes
            self._address_file.touch(mode=0o600)
            self._address_file.write_bytes(os.fsencode(address))
            address.unlink(missing_ok=True)
            self._ending.unlink(missing_ok=True)
            # From here on the server holds the lock too, and keeps it when we close our file.
            process.launch_kept(self.path, address, lock=lock.fd)
            return True

    def _address(self) -> Path:
        # As the starting process chose it: this process may have another temporary directory.
        try:
            address = Path(os.fsdecode(self._address_file.read_bytes()))
        except FileNotFoundError:  # somebody removed it
            return process.choose_address(self.path)
        if address.parent != self.path and address.parent.exists():
            process.check_private(address.parent)
        return address


class _Persistent:
    """A use of the server in a folder that is kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = _Folder(folder)

    def start(self, expects: Expected) -> Path:
        if expects == "nothing":
            if not self._folder.start_lock.exists():
                process.find_program()  # may raise: before there is a folder to remove
            self._folder.prepare()
        elif not self._folder.start_lock.exists():
            raise _absent(self._folder.path, f"there is no embedded server in {self._folder.path}")
        with self._folder.hold_start_lock():
            if expects == "server" and not self._folder.has_server():
                raise _absent(self._folder.path, f"the embedded server in {self._folder.path} does not run")
            user_lock = self._take_user_lock()
            try:
                return self._folder.ensure_server()
            except BaseException:
                self._leave(user_lock)
                raise

    def stop(self) -> None:
        user_lock = _held.user_locks.get(self._folder.path)
        if user_lock is None or self not in user_lock.uses:
            return
        try:
            with self._folder.hold_start_lock():
                self._leave(user_lock)
                if not self._folder.users():
                    self._folder.end_server()
        except (ConfigError, StoreUnavailable, OSError) as error:
            # The server stays, and the next start adopts it; our lock must not stay.
            self._leave(user_lock)
            _log.warning("embedded server not ended", path=str(self._folder.path), error=str(error))

    def _take_user_lock(self) -> _UserLock:
        path = self._folder.path
        user_lock = _held.user_locks.get(path)
        if user_lock is None or not user_lock.file.exists():  # somebody may have removed the folder
            old, user_lock = user_lock, _UserLock(path)
            if old is not None:
                user_lock.uses |= old.uses
                old.leave()
            _held.user_locks[path] = user_lock
            _log.info("embedded server", path=str(path))
        user_lock.uses.add(self)
        return user_lock

    def _leave(self, user_lock: _UserLock) -> None:
        user_lock.uses.discard(self)
        if not user_lock.uses:
            _held.user_locks.pop(self._folder.path, None)
            user_lock.leave()


class _Temporary:
    """A server in a temporary folder, for this use alone. It ends with its owner."""

    def __init__(self) -> None:
        self._folder = self._address = Path()
        self._pipe: _Descriptor | None = None

    def start(self, expects: Expected) -> Path:
        if self._pipe is not None and self._pipe.fd >= 0:
            return self._address
        if expects != "nothing":
            said = "a server of memory: belongs to one process alone, so there is nothing of others in it"
            raise _absent(Path("memory:"), said)
        process.find_program()  # may raise: before there is a folder to remove
        self._folder = Path(tempfile.mkdtemp(prefix="eventbus-"))
        self._address = process.choose_address(self._folder)
        try:
            self._launch()
            with contextlib.closing(_Lock(self._folder / "server.lock")) as lock:
                if not process.wait_ready(self._folder, self._address, has_ended=lock.take):
                    raise process.failure(self._folder, self._address, "ended while starting")
        except BaseException:
            self.stop()
            raise
        _log.debug("throw-away server", path=str(self._folder))
        return self._address

    def _launch(self) -> None:
        with _held.opening:
            theirs, ours = os.pipe()
            self._pipe = _Descriptor(ours)
        try:
            with contextlib.closing(_Lock(self._folder / "server.lock")) as lock:
                lock.take()
                process.launch_thrown_away(self._folder, self._address, lock=lock.fd, owner=theirs)
        finally:
            os.close(theirs)

    def stop(self) -> None:
        if self._pipe is None or self._pipe.fd < 0:
            return
        self._pipe.close()
        with (
            contextlib.suppress(OSError),
            contextlib.closing(_Lock(self._folder / "server.lock", flags=0)) as lock,
        ):
            lock.take_within(_END_WITHIN)
        # The shell removes the folder too, but perhaps only after we return.
        shutil.rmtree(self._folder, ignore_errors=True)


def _absent(path: Path, what: str) -> StoreUnavailable:
    return StoreUnavailable(what, address=str(path))


def _unusable(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path} {why}", setting="url")
