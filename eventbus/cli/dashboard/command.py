"""`eventbus dashboard`: shows the queues, jobs, flows and schedules of a server in a browser, on this machine
alone.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from eventbus.cli.dashboard.serving import DashboardOptions, DashboardServer
from eventbus.cli.failures import is_debugging
from eventbus.cli.logs import configure_logs
from eventbus.cli.loop import run
from eventbus.cli.output import say
from eventbus.cli.server_choice import asking_provider
from eventbus.cli.session import started
from eventbus.cli.signals import Interrupts
from eventbus.cli.toolkit import UrlOption
from eventbus.provider import EventProvider

_PATIENCE = 5.0
"""Seconds that the server may take for an answer."""


def dashboard(
    *,
    url: UrlOption = None,
    host: Annotated[
        str, typer.Option(help="Where to listen; other than on this machine only with --token-file.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8765,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="It holds a lasting token, in place of the link.")
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Refuse all that changes something.")
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A host name by which browsers may come, beside local ones."),
    ] = None,
    public_origin: Annotated[
        str | None,
        typer.Option(metavar="ORIGIN", help="What browsers see behind a proxy: https://ops.example.com."),
    ] = None,
    base_path: Annotated[
        str | None, typer.Option(metavar="PATH", help="The path before ours, behind a proxy: /ops/bus.")
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS", help="Believe X-Forwarded-For of this proxy.")
    ] = None,
) -> int:
    """Serve the dashboard, and print the link that opens it: it signs in once, within five minutes."""
    configure_logs(None, level=logging.DEBUG if is_debugging() else logging.INFO)
    provider = asking_provider(url, reply_timeout=_PATIENCE)
    options = DashboardOptions(
        host=host,
        port=port,
        token_file=token_file,
        read_only=read_only,
        allowed_hosts=allowed_host or (),
        public_origin=public_origin,
        base_path=base_path,
        trusted_proxies=trusted_proxy or (),
    )
    server = DashboardServer(provider, options)
    try:
        return run(_serve(provider, server, reads_only=read_only))
    finally:
        server.socket.close()


async def _serve(provider: EventProvider, server: DashboardServer, *, reads_only: bool) -> int:
    with Interrupts(limits=(20.0, 1.0)) as interrupts:
        async with started(provider, reads_only=reads_only):
            interrupts.act = server.request_stop
            say(server.url, flush=True)
            await server.serve()
    return 0
