"""The program of a process that runs CPU-bound handlers; see `engine.processes` for the other side.

A thread reads assignments from the channel, the main thread runs them one by one and reports.
What handlers log is told to the worker, which logs it as its own; a program whose module sets up
structlog keeps that.

What must hold: whatever a handler raises is reported; when the channel ends, this process ends,
and all that it started, also in the middle of a handler. A signal meant for the worker ends
nothing here: the worker decides.
"""

from __future__ import annotations

import functools
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, MutableMapping
from typing import Any

import msgspec
import structlog

from eventbus._version import __version__
from eventbus.ambient import Ambient, enter
from eventbus.codec import Codec
from eventbus.context import JobFacts
from eventbus.engine.processes import HEADER, mark_child
from eventbus.failure import describe, is_final
from eventbus.remote.assignment import Assignment, LogNote, Report, Task
from eventbus.remote.place import find

__all__ = ["main"]

_LAST_STEPS = 2.0
"""Seconds for an idle process to end by itself."""

_encode = msgspec.json.Encoder(enc_hook=repr).encode  # a log entry may hold anything
_decode = msgspec.json.Decoder(Assignment).decode


def main(descriptor: int, *, version: str) -> None:
    """Serve the channel, an inherited socket, until it ends. `version` is the worker's."""
    if version != __version__:
        sys.exit(
            f"eventbus was replaced under its worker: {version} by {__version__}; start the worker again"
        )
    os.set_inheritable(descriptor, False)
    mark_child()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Not SIG_IGN, which programs that a handler starts would inherit.
        signal.signal(number, _leave_to_the_worker)
    desk = _Desk(socket.socket(fileno=descriptor))
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            desk.note,
        ],
        logger_factory=_Name,
    )
    desk.serve()


class _Name:
    """What structlog takes for a logger here: only its name is told."""

    def __init__(self, text: str = "eventbus.handler", *_: Any) -> None:
        self.text = text


class _Desk:
    """Takes assignments and gives reports."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lock = threading.Lock()  # of sending: a handler's threads log too
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._is_busy = False

    def serve(self) -> None:
        """Run what comes, until the channel ends."""
        threading.Thread(target=self._read, name="eventbus-channel", daemon=True).start()
        while (request := self._requests.get()) is not None:
            report = _run(_decode(request))
            sys.stdout.flush()
            sys.stderr.flush()
            self._is_busy = False  # the next assignment comes after the report
            if not self._send(report, is_answer=True):
                return

    def note(self, logger: _Name, _: str, event: MutableMapping[str, Any]) -> str:
        """The last processor of structlog here: tell the worker what was logged."""
        level, text = event.pop("level", "info"), str(event.pop("event", ""))
        try:
            self._send(LogNote(logger.text, level, text, dict(event)), is_answer=False)
        except UnicodeError:  # text that is none in UTF-8, as the names of some files
            fields = {name: ascii(value) for name, value in event.items()}
            self._send(LogNote(logger.text, level, ascii(text), fields), is_answer=False)
        raise structlog.DropEvent

    def _send(self, message: Report | LogNote, *, is_answer: bool) -> bool:
        """Send one message; False if the worker is gone."""
        data = _encode(message)
        try:
            with self._lock:
                self._channel.sendall(HEADER.pack(is_answer, len(data)) + data)
        except OSError:
            return False
        return True

    def _read(self) -> None:
        while (header := self._receive(HEADER.size)) is not None:
            _, size = HEADER.unpack(header)
            body = self._receive(size)
            if body is None:
                break
            self._is_busy = True
            self._requests.put(body)
        if self._is_busy:
            _end_group()
        self._requests.put(None)
        time.sleep(_LAST_STEPS)  # a thread that a handler left keeps an interpreter from ending
        _end_group()

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


def _run(given: Assignment) -> Report:
    declared: tuple[type[Exception], ...] = ()
    facts = given.facts
    try:
        handler = _prepare(given.task)
        declared = handler.declared
        enter(Ambient(facts["meta"], facts["correlation_id"], facts["job_id"], facts["traceparent"]))
        payload = handler.decode(bytes(given.payload))
        keywords = {given.task.context: JobFacts(**facts)} if given.task.context else {}
        return Report(result=msgspec.Raw(handler.encode(handler.function(payload, **keywords))))
    except BaseException as error:  # noqa: BLE001  (whatever a handler raises, or its import)
        return Report(
            error=describe(error, attempts=facts["attempt"], declared=declared), is_final=is_final(error)
        )


class _Prepared(msgspec.Struct, frozen=True):
    """A handler as this process runs it."""

    function: Callable[..., Any]
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    declared: tuple[type[Exception], ...]


@functools.cache
def _prepare(task: Task) -> _Prepared:
    event = find(task.event_place) if task.event_place else None
    payload, result, declared = (event.payload, event.result, event.errors) if event else (Any, Any, ())
    payloads = Codec(payload, role="payload", owner=task.event, max_bytes=sys.maxsize)
    results = Codec(result, role="result", owner=task.event, max_bytes=task.max_result)
    encode = results.encode if task.replies else _encode_nothing
    return _Prepared(find(task.function), payloads.decode, encode, declared)


def _encode_nothing(_: Any) -> bytes:
    return b"null"


def _end_group() -> None:
    os.killpg(0, signal.SIGKILL)  # the group holds this process and what it started


def _leave_to_the_worker(_: int, __: object) -> None:
    pass
