"""An HTTP port of a worker process, for supervisors and monitors: it answers GET and HEAD.

Threads with the standard library's HTTP server answer, so that they answer while the event loop is blocked.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias, cast

from eventbus.cli.failures import CommandError
from eventbus.model import clock

_LOOK_FOR_END = 0.2  # seconds between two checks whether the server should end
_SLOWEST_ASKER = 5.0  # seconds for all of a request; a client that takes longer would hold a thread
_MOST_ASKERS = 32  # requests at a time, each a thread; a supervisor and a monitor need two


class HttpResponse(NamedTuple):
    """What a request is answered."""

    code: int
    content_type: str
    body: bytes


_Answering: TypeAlias = Callable[[str, Mapping[str, str]], HttpResponse]


class HttpPort:
    """Answers on a port inside its block."""

    def __init__(self, host: str, port: int, answer: _Answering, *, name: str, option: str) -> None:
        """Listen at once. Raises CommandError if that fails.

        `answer` gets the path without its query, and the headers; it is called in other threads. `name` is
        what is answered, and `option` the beginning of the two options that choose the address.
        """
        try:
            family, *_, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._server = _Server(family, address, answer)
        except OSError as error:
            raise CommandError(
                f"cannot answer {name} on {host} port {port}: {error.strerror or error}; "
                f"choose another {option}-port or {option}-host",
                exit_code=1,
            ) from error
        self.host = host
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_LOOK_FOR_END,), name=f"eventbus-{name}", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, family: int, address: Any, answer: _Answering) -> None:
        self.address_family = family
        self.answer = answer
        self._open: dict[socket.socket, float] = {}  # until when each may take
        super().__init__(address, _Asked)

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002
        """Hang up on those who are too many: the oldest are about to be cut off."""
        if len(self._open) >= _MOST_ASKERS:
            return False
        self._open[request] = clock.monotonic() + _SLOWEST_ASKER
        return True

    def service_actions(self) -> None:
        """Cut off who takes too long.

        A timeout of each read is not enough: a client may send a byte a second.
        """
        now = clock.monotonic()
        for request, end in list(self._open.items()):
            if end < now:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)  # its thread reads an end, and closes it

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, and forget it."""
        self._open.pop(request, None)
        super().shutdown_request(request)

    def server_bind(self) -> None:
        # Not HTTPServer's own method, because that looks up the name of the address, which may take long.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "eventbus", int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: a client may hang up at any time."""


class _Asked(BaseHTTPRequestHandler):
    timeout = _SLOWEST_ASKER
    server_version = "eventbus"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (its name there)
        """Log nothing, because requests come every few seconds."""

    def _answer(self, *, with_body: bool) -> None:
        answer = cast("_Server", self.server).answer
        code, content_type, body = answer(
            self.path.partition("?")[0], cast("Mapping[str, str]", self.headers)
        )
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_body:
            self.wfile.write(body)
