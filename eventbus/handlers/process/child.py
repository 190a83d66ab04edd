"""The program of a process that runs CPU-bound handlers; `runtime.process_pool` is the worker's side.

A thread reads requests from the channel. The main thread runs them one by one and sends reports.
Log events of handlers are sent to the worker, which logs them as its own. If a handler's module
configures structlog itself, its configuration stays.

What must always hold: whatever a handler raises is reported. When the channel ends, this process ends with
every process that it started, also in the middle of a handler. A signal meant for the worker ends
nothing here, because the worker decides.

A handler is any code. It may do the following to this process:
- it forks, and the fork returns from the handler, by a return, `sys.exit` or an error (a failed
  `os.execv`): the fork ends there, as a program ends. It never writes into the channel, which is
  closed in it, and its log events go to standard error. Python's fork hooks do this. The process id
  is compared as well, because a fork made by native code runs no hooks.
- one of its threads forks: the fork has only this thread, so it never gets back to `serve`.
- its fork lives on after the job: it runs beside later jobs, until this process ends.
- it ends the process in which it was called (a daemon's double fork): the attempt fails.
- it closes the channel, and may open another file, which gets the same descriptor: nothing is
  written into a file that is not the channel, and the process ends, which fails the attempt. The
  channel has a high descriptor, so that closing it takes intent and the next file that is opened
  does not get it.
- it writes into the channel: the worker kills this process (`runtime.process_channel`). This process
  also ends when it reads bytes that the worker never wrote.
- it breaks standard output: its printed text is lost, and this is logged; its outcome is kept.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import MutableMapping
from typing import Any, NoReturn

import msgspec
import structlog

from eventbus._version import __version__
from eventbus.handlers.process.child_calls import AttemptCalls
from eventbus.handlers.process.child_run import run_request
from eventbus.handlers.process.messages import LogNote, Report, Request
from eventbus.runtime.process_channel import (
    ANSWER,
    HEADER,
    NOTE,
    REPLY,
    REQUEST,
    STOPPING,
    BadFrame,
    pack,
    unpack,
)
from eventbus.runtime.process_pool import CHANNEL_LOST, mark_child

_LAST_STEPS = 2.0
"""Seconds that an idle process has to end by itself."""

_HIGH = (900, 200)
"""The lowest descriptors to try for the channel. They are above those that programs close or open by number,
and below the usual limits of open files, 1024 and 256 (macOS)."""

_LOGGER = "eventbus.handler"

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_encode = msgspec.json.Encoder(enc_hook=repr).encode  # a log event may hold any object
_decode = msgspec.json.Decoder(Request).decode


def main(descriptor: int, *, version: str) -> None:
    """Serve the channel, an inherited socket with this descriptor, until it ends.

    `version` is that of the worker; another one here ends the process with a message.
    """
    if version != __version__:
        sys.exit(
            f"eventbus was replaced under its worker: {version} by {__version__}; start the worker again"
        )
    mark_child()
    for number in _SIGNALS:
        # A function and not SIG_IGN, because programs that a handler starts would inherit SIG_IGN.
        signal.signal(number, _leave_to_the_worker)
    server = _Server(socket.socket(fileno=_put_high(descriptor)))
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            server.note,
        ],
        logger_factory=_Name,
    )
    server.serve()


class _Name:
    """The logger that structlog wraps here. Only its name is used."""

    def __init__(self, text: str = _LOGGER, *_: Any) -> None:
        self.text = text


class _Server:
    """Receives requests from the worker, runs them, and sends reports and log notes."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._file = _file_of(channel)
        self._pid = os.getpid()
        self._lock = threading.Lock()  # for sending, because threads of a handler log too
        self._requests: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._number = 0  # that of the request that runs, or that ran last
        self._is_busy = False
        self._calls: AttemptCalls | None = None  # of that request
        self._broken_streams = set[str]()
        self._forking = threading.local()  # `mask`: the signals that a forking thread had blocked before
        os.register_at_fork(
            before=self._prepare_fork, after_in_parent=self._unblock, after_in_child=self._become_a_fork
        )

    def serve(self) -> None:
        """Run requests one by one until the channel ends."""
        threading.Thread(target=self._read, name="eventbus-channel", daemon=True).start()
        while (request := self._requests.get()) is not None:
            if not self._answer(*request):
                return

    def _answer(self, number: int, request: bytes) -> bool:
        """Run a request and report its outcome; return False if the worker is gone."""
        self._number = number
        given = _decode(request)
        calls = self._calls = AttemptCalls(number, max_saved=given.max_saved, send=self._send_now)
        report, error = run_request(given, calls)
        calls.end()
        if os.getpid() != self._pid:  # the handler forked, and this is the fork
            _end_fork(error)
        self._tell_unprinted(_flush())
        self._is_busy = False  # before the report, because the next request may come right after it
        if self._send(ANSWER, report):
            return True
        if not self._is_ours():
            os._exit(CHANNEL_LOST)
        return False

    def note(self, logger: _Name, _: str, event: MutableMapping[str, Any]) -> str:
        """Send a log event to the worker. This is structlog's last processor here; it always drops
        the event.
        """
        level, text = event.pop("level", "info"), str(event.pop("event", ""))
        note = LogNote(logger.text, level, text, dict(event))
        if not self._is_ours():  # before the lock: in a fork, a thread that no longer exists may hold it
            _write_to_stderr(note)
            raise structlog.DropEvent
        try:
            self._send(NOTE, note)
        except UnicodeError:  # text that UTF-8 cannot encode, such as the names of some files
            note.event, note.fields = ascii(text), {name: ascii(value) for name, value in event.items()}
            self._send(NOTE, note)
        raise structlog.DropEvent

    def _send(self, kind: bytes, message: Report | LogNote) -> bool:
        """Send one message; return False if the worker or the channel is gone."""
        return self._send_frame(pack(kind, self._number, _encode(message)))

    def _send_now(self, kind: bytes, number: int, message: bytes) -> bool:
        """Send a frame of the request `number`; return False if that has ended, in a fork, and if the channel
        is gone.
        """
        is_now = self._is_ours() and self._is_busy and number == self._number
        return is_now and self._send_frame(pack(kind, number, message))

    def _send_frame(self, frame: bytes) -> bool:
        with self._lock:
            if not self._is_ours():
                return False
            try:
                self._channel.sendall(frame)
            except OSError:
                return False
        return True

    def _is_ours(self) -> bool:
        """Return whether this process may write into the channel: it is no fork, and the channel is open."""
        return os.getpid() == self._pid and _file_of(self._channel) == self._file

    def _prepare_fork(self) -> None:
        _flush()  # otherwise the fork would print the buffered text again
        # A signal to the fork must wait until the fork has restored the usual signal handlers.
        self._forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.mask)

    def _become_a_fork(self) -> None:
        """Close the channel in a fork of this process, and let signals end the fork as they end any
        program.
        """
        if _file_of(self._channel) == self._file:
            self._channel.close()
        for number, default in zip(_SIGNALS, (signal.default_int_handler, signal.SIG_DFL), strict=True):
            if signal.getsignal(number) is _leave_to_the_worker:
                signal.signal(number, default)
        self._unblock()

    def _tell_unprinted(self, errors: dict[str, str]) -> None:
        """Log, once for each stream, that printed text of handlers is lost."""
        for stream, error in errors.items():
            if stream not in self._broken_streams:
                self._broken_streams.add(stream)
                fields = {"stream": stream, "error": error}
                self._send(NOTE, LogNote(_LOGGER, "warning", "what handlers print cannot be written", fields))

    def _read(self) -> None:
        try:
            for number in itertools.count(1):
                request = self._receive_request(number)
                if request is None:
                    break
                self._is_busy = True
                self._requests.put((number, request))
        except BadFrame:
            _end_group()  # the frame is not from the worker: code in this process writes or reads the channel
        if self._is_busy:
            if not self._is_ours():
                os._exit(CHANNEL_LOST)  # the worker still runs, and reports this exit code to its user
            _end_group()
        self._requests.put(None)
        time.sleep(_LAST_STEPS)  # a thread that a handler left behind keeps the interpreter from ending
        _end_group()

    def _receive_request(self, expected: int) -> bytes | None:
        """Return the next request, or None if the channel has ended. Raises BadFrame."""
        while (header := self._receive(HEADER.size)) is not None and (found := unpack(header)) is not None:
            kind, number, size = found
            if kind == REQUEST and number == expected:
                return self._receive(size)
            if kind not in (REPLY, STOPPING) or number != expected - 1:
                raise BadFrame(
                    f"a frame of kind {kind!r} for request {number} in place of request {expected}"
                )
            message = self._receive(size)
            if message is None:
                return None
            self._hear(kind, number, message)
        return None

    def _hear(self, kind: bytes, number: int, message: bytes) -> None:
        """Pass on what the worker says about the request that runs; one that has ended hears nothing."""
        calls = self._calls
        if calls is None or calls.number != number:
            return
        if kind == REPLY:
            calls.reply(message)
        else:
            calls.stop(message.decode())

    def _receive(self, size: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = self._channel.recv(min(size - len(parts), 1 << 20))
            except OSError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)


def _put_high(descriptor: int) -> int:
    """Move a descriptor to a high number and return it; programs that handlers start do not inherit it."""
    for lowest in _HIGH:
        try:
            moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)
        except OSError:  # above this process's limit of open files
            continue
        os.close(descriptor)
        return moved
    os.set_inheritable(descriptor, False)
    return descriptor


def _file_of(channel: socket.socket) -> tuple[int, int] | None:
    """Return the device and inode behind a descriptor, which identify its file; None if it is closed."""
    try:
        found = os.fstat(channel.fileno())
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _flush() -> dict[str, str]:
    """Flush standard output and error; return the error text of each stream that failed."""
    errors: dict[str, str] = {}
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name, None)
        try:
            if stream is not None:
                stream.flush()
        except Exception as error:  # noqa: BLE001  (a handler may replace a stream by any object)
            errors[name] = f"{type(error).__name__}: {error}"
    return errors


def _end_fork(error: BaseException | None) -> NoReturn:
    """End a fork that returned from its handler: as Python ends a program, but without this program's
    cleanup.
    """
    code = 1
    try:
        if error is None:
            code = 0
        elif not isinstance(error, SystemExit):
            sys.excepthook(type(error), error, error.__traceback__)
        elif error.code is None or isinstance(error.code, int):
            code = (error.code or 0) & 0xFF
        else:
            print(error.code, file=sys.stderr)  # noqa: T201  (as the end of a program does)
        _flush()
    finally:
        os._exit(code)


def _write_to_stderr(note: LogNote) -> None:
    """Write a line without Python's streams, whose locks may be held by a thread that the fork does
    not have.
    """
    fields = "".join(f" {name}={value!r}" for name, value in note.fields.items())
    try:
        os.write(2, f"[{note.level}] {note.event}{fields}\n".encode(errors="backslashreplace"))
    except OSError:
        pass  # there is no other place to write to


def _end_group() -> None:
    os.killpg(0, signal.SIGKILL)  # the group holds this process and every process that it started


def _leave_to_the_worker(_: int, __: object) -> None:
    pass
