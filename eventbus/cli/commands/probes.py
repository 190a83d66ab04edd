"""The health port of a worker: it answers `/livez` and `/readyz` for supervisors of the process.

Threads with the standard library's HTTP server answer, so that they answer while the event loop is blocked.
The answers have facts about the worker and nothing of its jobs' content.

The status is 200 with `"ok"`, or 503 with the problems. A starting worker is alive and not ready.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from types import TracebackType
from typing import Any, Self, cast

import msgspec
import structlog

from eventbus.cli.failures import CommandError
from eventbus.engine.health import Health

__all__ = ["Probes"]

_log = structlog.get_logger("eventbus.worker")

_PATHS = ("/livez", "/readyz")
_LOOK_FOR_END = 0.2  # seconds between two checks whether the server should end
_SLOWEST_ASKER = 5.0  # seconds; a client that takes longer would hold a thread


class Probes:
    """Answers probes on a port inside its block."""

    def __init__(self, host: str, port: int, health: Callable[[], Health | None]) -> None:
        """Listen at once. Raises CommandError if that fails. `health` is called in other threads."""
        try:
            family, *_, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._server = _Server(family, address, health)
        except OSError as error:
            raise CommandError(
                f"cannot answer probes on {host} port {port}: {error.strerror or error}; "
                "choose another --health-port or --health-host",
                exit_code=1,
            ) from error
        self.port: int = self._server.server_address[1]
        self._host = host
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_LOOK_FOR_END,), name="eventbus-probes", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        _log.info("answering probes", host=self._host, port=self.port, paths=_PATHS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, family: int, address: Any, health: Callable[[], Health | None]) -> None:
        self.address_family = family
        self.health = health
        super().__init__(address, _Asked)

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
        """Log nothing, because probes come every few seconds."""

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        health = cast("_Server", self.server).health
        code, said = _read(path, health()) if path in _PATHS else (404, {"paths": _PATHS})
        body = msgspec.json.encode(said) + b"\n"
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_body:
            self.wfile.write(body)


def _read(path: str, health: Health | None) -> tuple[int, dict[str, Any]]:
    """Return the status and the body for one of the two paths."""
    if health is None:
        return (200 if path == "/livez" else 503), {"status": "the worker starts"}
    found = health.liveness_problems if path == "/livez" else health.readiness_problems
    facts = msgspec.to_builtins(health)
    for name in ("lag", "answered"):
        facts[name] = None if facts[name] is None else round(facts[name], 3)
    return 503 if found else 200, {"status": "; ".join(found) or "ok", **facts}
