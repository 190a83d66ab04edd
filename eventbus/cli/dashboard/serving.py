"""Serves a dashboard on a port of its own.

What must always hold: a port that others can reach is served only with a lasting token; the link that is
printed signs in once; the path of a request is in no log, because that of the link has a code.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Collection, Generator
from pathlib import Path
from typing import Any

import msgspec

from eventbus.cli.failures import CommandError
from eventbus.provider import EventProvider

_ENDS_WITHIN = 3
"""Seconds that open requests have when the server ends."""


class DashboardOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where a dashboard is served, and how it is closed."""

    host: str = "127.0.0.1"
    port: int = 0
    token_file: Path | None = None
    read_only: bool = False
    allowed_hosts: Collection[str] = ()
    public_origin: str | None = None
    base_path: str | None = None
    trusted_proxies: Collection[str] = ()


class DashboardServer:
    """One dashboard, listening. Made before anything is started, so that a wrong option changes nothing."""

    def __init__(self, provider: EventProvider, options: DashboardOptions) -> None:
        """Raises CommandError for a port that is taken or not allowed, ConfigError."""
        try:
            import uvicorn  # noqa: PLC0415  (slow to import, and of the extra)

            from eventbus.dashboard import Dashboard  # noqa: PLC0415
            from eventbus.dashboard.entry.origin import LOOPBACK, is_loopback  # noqa: PLC0415
            from eventbus.dashboard.flow_source import find_flow_source  # noqa: PLC0415
        except ImportError as error:
            raise CommandError(f"{error}; pip install 'eventbus-workflows[dashboard]'") from error
        is_local = is_loopback(options.host)
        if not is_local and options.token_file is None:
            raise CommandError(
                f"others can reach {options.host}, so a lasting token is needed: give --token-file FILE, "
                "or leave out --host"
            )
        token = None if options.token_file is None else _read_token(options.token_file)
        own = () if options.host in ("0.0.0.0", "::") else (options.host,)  # noqa: S104  (only compared)
        self._dashboard = Dashboard(
            provider,
            flows=find_flow_source(provider),
            token=token,
            one_time_codes=token is None,
            read_only=options.read_only,
            allowed_hosts=[*LOOPBACK, *own, *options.allowed_hosts],
            public_origin=options.public_origin,
            base_path=options.base_path,
            trusted_proxies=options.trusted_proxies,
        )
        self._options = options
        self.socket: socket.socket = _listen(options.host, options.port)
        config = uvicorn.Config(
            self._dashboard,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_ENDS_WITHIN,
        )
        self._server: Any = uvicorn.Server(config)
        # Signals are the command's.
        self._server.capture_signals = _nothing

    @property
    def url(self) -> str:
        """The URL to open; on a port that only this machine reaches, with a new code."""
        host, port = self._options.host, self.socket.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        origin = self._options.public_origin or f"http://{shown}:{port}"
        base = f"{origin}{(self._options.base_path or '').rstrip('/')}"
        return (
            f"{base}/" if self._options.token_file else f"{base}/sign-in?code={self._dashboard.make_code()}"
        )

    async def serve(self) -> None:
        """Answer requests until `request_stop`, or until cancelled."""
        await self._server.serve(sockets=[self.socket])

    def request_stop(self) -> None:
        """Take no more requests, and end with those that are open, within three seconds."""
        self._server.should_exit = True


def _read_token(path: Path) -> str:
    token = path.read_text(encoding="utf-8").strip()
    if not token:
        raise CommandError(f"{path} is empty; write a token of 16 characters or more into it")
    return token


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise CommandError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; give another --port",
            exit_code=1,
        ) from error


@contextlib.contextmanager
def _nothing() -> Generator[None]:
    yield
