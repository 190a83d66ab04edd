"""A Valkey server that a program brings along: `embedded:PATH`, kept and shared, and `memory:`, thrown away.

Here is its life cycle: who starts it, who uses it, who ends it. How one server process is made is
in `launcher`.

A folder has at most one server. In it lie

    start.lock          held by whoever starts or ends the server, for as long as that takes
    server.lock         held by the server, which inherits the open file: it is locked exactly
                        as long as the server lives, whoever started it
    users/PID-….lock    one for each process that uses the server, held while that process lives
    server.socket       the path of the socket, which lies elsewhere if it would be too long here
    server.ending       there from the decision to end the server until the next one starts
    server.pid, server.log, appendonlydir/      the server's own

What must hold: two servers never share a folder; a server in use is not ended; what was written
is there at the next start. All of it hangs on `flock`, which the kernel undoes when the last copy
of an open file closes. Nothing is decided by a process id: ids are used again, and serve messages.
Not taken: one shared lock, made exclusive to learn who is last (loses the lock in between); a
count in a file (survives the killed).

Crash windows, each with its test:
    killed while starting   the server may live and not answer yet. server.lock is held: the next
                            start waits for this server and does not start a second one
    killed while using      the user's lock is free: its file is swept and does not count. With no
                            user left the server stays, and the next start adopts it
    killed while ending     server.ending is there: the next start completes the ending first, and
                            does not adopt a server that is about to go
    server killed           server.lock is free: the next start replaces socket and server
    forked                  the child would hold all locks of its parent: it closes them, and is a
                            user only by a start of its own

A throw-away server has a temporary folder and one owner. A shell beside it waits on a pipe whose
other end only the owner holds. When that closes, by `stop` or by any death of the owner, the shell
kills the server and removes the folder.
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

from eventbus.errors import ConfigError, StoreUnavailable, UsageError
from eventbus.logs import get_logger
from eventbus.store import launcher

__all__ = ["EmbeddedServer", "end_server"]

_log = get_logger("eventbus.store")

_TURN_WITHIN = 30.0
"""Seconds to wait for others that start or end the server."""
_END_WITHIN = 10.0


class EmbeddedServer:
    """One use of the server in `folder`, or of a throw-away one if `folder` is None.

    All calls block. Several uses of one folder in one process count as one user process.
    """

    def __init__(self, folder: Path | None) -> None:
        self._use = _ThrowAway() if folder is None else _Kept(folder)

    def start(self) -> Path:
        """Start the server, or join the one that runs, and return its socket.

        May be repeated: it then starts a kept server again if that has died.
        Raises ConfigError without the `embedded` extra or for a folder that cannot be used,
        StoreUnavailable when the server does not come up.
        """
        with _held.turn:
            return self._use.start()

    def stop(self) -> None:
        """Leave the server; the last user process of its folder ends it. Idempotent."""
        with _held.turn:
            self._use.stop()


def end_server(folder: Path, *, force: bool = False) -> bool:
    """End the server of `folder` and return True, or return False if none runs.

    Raises UsageError if processes use it, unless `force`; StoreUnavailable if it does not end.
    """
    home = _Folder(folder)
    if not (home.path / "start.lock").exists():
        return False
    with _held.turn, home.turn():
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
        """Close the file. Idempotent, and nothing in a forked child, where it is closed already."""
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
        """Take the lock at once; False if it is not free."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def take_within(self, seconds: float) -> bool:
        """Take the lock as soon as it is free; False if that takes longer."""
        end = time.monotonic() + seconds
        while not self.take():
            if time.monotonic() > end:
                return False
            time.sleep(launcher.POLL)
        return True


class _Held:
    """What this process holds, and a child forked from it does not."""

    def __init__(self) -> None:
        self.open: set[_Descriptor] = set()
        self.seats: dict[Path, _Seat] = {}
        self.turn = threading.RLock()  # one start or stop at a time
        self.opening = threading.Lock()  # no fork between opening a file and noting it

    def drop_in_child(self) -> None:
        # Closed, not unlocked: the lock belongs to the open file, and the parent still has that.
        for descriptor in list(self.open):
            descriptor.close()
        self.seats.clear()
        # Other threads may have had these, and are not here to give them back.
        self.turn, self.opening = threading.RLock(), threading.Lock()

    def leave_all(self) -> None:
        """Leave what a program that ends has not stopped."""
        with self.turn:
            for use in [use for seat in self.seats.values() for use in seat.uses]:
                use.stop()


class _Seat(_Lock):
    """This process' place among the users of a folder."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "users" / f"{os.getpid()}-{secrets.token_hex(4)}.lock"
        self.uses: set[_Kept] = set()
        super().__init__(self.file, flags=os.O_CREAT | os.O_EXCL)
        self.take()

    def leave(self) -> None:
        """Give up the place. Idempotent."""
        self.file.unlink(missing_ok=True)
        self.close()


_held = _Held()
os.register_at_fork(
    before=lambda: _held.opening.acquire(),  # noqa: PLW0108  (a child has another lock)
    after_in_parent=lambda: _held.opening.release(),  # noqa: PLW0108
    after_in_child=_held.drop_in_child,
)
atexit.register(_held.leave_all)


class _Folder:
    """The data folder of a kept server. All but `prepare` is called within a `turn`."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.realpath(path))
        self._lock_file = self.path / "server.lock"
        self._address_file = self.path / "server.socket"
        self._ending = self.path / "server.ending"

    def prepare(self) -> None:
        """Make the folder ours alone; refuse one that is another's, or that holds other things."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.path.stat()
            if found.st_uid != os.geteuid():
                raise _unusable(self.path, f"belongs to user {found.st_uid}; name a folder of your own")
            if found.st_mode & 0o077:
                if any(self.path.iterdir()) and not (self.path / "start.lock").exists():
                    raise _unusable(self.path, "holds other things; name a folder for the server alone")
                self.path.chmod(0o700)
            (self.path / "users").mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise _unusable(self.path, f"cannot be used ({error.strerror}); name another folder") from error

    @contextlib.contextmanager
    def turn(self) -> Generator[None]:
        """Hold start.lock."""
        with contextlib.closing(_Lock(self.path / "start.lock")) as lock:
            if not lock.take_within(_TURN_WITHIN):
                raise StoreUnavailable(
                    f"another process has been starting or ending the server in {self.path} "
                    f"for {_TURN_WITHIN:g} s; look for one that hangs",
                    address=str(self.path),
                )
            yield

    def users(self) -> list[Path]:
        """List the files of the user processes that live, and sweep those of the dead."""
        alive: list[Path] = []
        for file in sorted(self.path.glob("users/*.lock")):
            # Safe to sweep: such files are made and locked within one turn, and this turn is ours.
            with contextlib.closing(_Lock(file)) as lock:
                if lock.take():
                    file.unlink(missing_ok=True)
                else:
                    alive.append(file)
        return alive

    def has_server(self) -> bool:
        """Whether a server lives here, be it starting or hanging."""
        with contextlib.closing(_Lock(self._lock_file)) as lock:
            return not lock.take()

    def ensure_server(self) -> Path:
        """Start the server unless it runs, wait until it answers, and return its socket."""
        if self._ending.exists():
            self.end_server()
        spawned = False
        while not spawned:  # one that was there, and ends while we wait for it, is replaced
            spawned = self._spawn_unless_alive()
            with contextlib.closing(_Lock(self._lock_file)) as lock:
                if launcher.wait_ready(self.path, self._address(), has_ended=lock.take):
                    return self._address()
        raise launcher.failure(self.path, self._address(), "ended while starting")

    def end_server(self) -> bool:
        """End the server and wait until it is gone; False if there is none."""
        with contextlib.closing(_Lock(self._lock_file)) as lock:
            if lock.take():
                return False
            self._ending.touch(mode=0o600)
            # The append-only file is written out and synced all the same; there is no snapshot to save.
            launcher.ask(self._address(), b"SHUTDOWN NOSAVE\r\n", timeout=_END_WITHIN)
            if not lock.take_within(_END_WITHIN):
                raise launcher.failure(self.path, self._address(), "does not end")
            return True

    def _spawn_unless_alive(self) -> bool:
        with contextlib.closing(_Lock(self._lock_file)) as lock:
            # Held by a server, it tells that this one lives, even if it does not answer yet.
            if not lock.take():
                return False
            address = launcher.choose_address(self.path)
            launcher.find_program()  # or an error, before anything changes
            self._address_file.touch(mode=0o600)
            self._address_file.write_bytes(os.fsencode(address))
            address.unlink(missing_ok=True)
            self._ending.unlink(missing_ok=True)
            # From here on the server holds the lock too, and keeps it when ours is closed.
            launcher.launch_kept(self.path, address, lock=lock.fd)
            return True

    def _address(self) -> Path:
        # As its starter chose it: this process may have another temporary directory.
        try:
            address = Path(os.fsdecode(self._address_file.read_bytes()))
        except FileNotFoundError:  # somebody removed it
            return launcher.choose_address(self.path)
        if address.parent != self.path and address.parent.exists():
            launcher.check_private(address.parent)
        return address


class _Kept:
    """A use of the server in a folder that stays."""

    def __init__(self, folder: Path) -> None:
        self._folder = _Folder(folder)

    def start(self) -> Path:
        self._folder.prepare()
        with self._folder.turn():
            seat = self._take_seat()
            try:
                return self._folder.ensure_server()
            except BaseException:
                self._leave(seat)
                raise

    def stop(self) -> None:
        seat = _held.seats.get(self._folder.path)
        if seat is None or self not in seat.uses:
            return
        try:
            with self._folder.turn():
                self._leave(seat)
                if not self._folder.users():
                    self._folder.end_server()
        except (ConfigError, StoreUnavailable, OSError) as error:
            # The server stays, and the next start takes it over; nothing of ours does.
            self._leave(seat)
            _log.warning("embedded server not ended", path=str(self._folder.path), error=str(error))

    def _take_seat(self) -> _Seat:
        path = self._folder.path
        seat = _held.seats.get(path)
        if seat is None or not seat.file.exists():  # somebody may have removed the folder
            old, seat = seat, _Seat(path)
            if old is not None:
                seat.uses |= old.uses
                old.leave()
            _held.seats[path] = seat
            _log.info("embedded server", path=str(path))
        seat.uses.add(self)
        return seat

    def _leave(self, seat: _Seat) -> None:
        seat.uses.discard(self)
        if not seat.uses:
            _held.seats.pop(self._folder.path, None)
            seat.leave()


class _ThrowAway:
    """A server of its own in a temporary folder, which ends with its owner."""

    def __init__(self) -> None:
        self._folder = self._address = Path()
        self._pipe: _Descriptor | None = None

    def start(self) -> Path:
        if self._pipe is not None and self._pipe.fd >= 0:
            return self._address
        launcher.find_program()  # or an error, before there is anything to remove
        self._folder = Path(tempfile.mkdtemp(prefix="eventbus-"))
        self._address = launcher.choose_address(self._folder)
        try:
            self._launch()
            with contextlib.closing(_Lock(self._folder / "server.lock")) as lock:
                if not launcher.wait_ready(self._folder, self._address, has_ended=lock.take):
                    raise launcher.failure(self._folder, self._address, "ended while starting")
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
                launcher.launch_thrown_away(self._folder, self._address, lock=lock.fd, owner=theirs)
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
        # The shell does the same; so it is done when we return.
        shutil.rmtree(self._folder, ignore_errors=True)


def _unusable(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path} {why}", setting="url")
