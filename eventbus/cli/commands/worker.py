"""`eventbus worker`: runs one worker process, from its start to a clean end.

    starting -> serving -> stopping (a signal, `--burst` drained, standard input closed) -> ended

What must always hold: the first signal lets handlers finish within the grace and gives the other jobs back;
the second signal waits for nothing. In both cases the process ends, even if the thread of a handler or a
lifespan does not end, or the event loop is blocked.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Coroutine, Iterable
from contextlib import ExitStack
from typing import Annotated, Any

import structlog
import typer

from eventbus.cli.commands.probes import Probes
from eventbus.cli.commands.reload import run_reloading
from eventbus.cli.failures import CommandError, is_debugging
from eventbus.cli.loading import load_provider, with_settings
from eventbus.cli.logs import LogFormat, LogLevel, configure_logs
from eventbus.cli.loop import leave_within, run
from eventbus.cli.metrics_port import MetricsPort
from eventbus.cli.server_choice import choose_server
from eventbus.cli.session import started
from eventbus.cli.signals import Interrupts
from eventbus.engine.reporting.health import Health
from eventbus.handlers.worker import EventWorker
from eventbus.model.durations import seconds
from eventbus.provider import EventProvider

_log = structlog.get_logger("eventbus.worker")

_AT_ONCE = 4.0
"""Seconds after a second signal, for cancelling handlers and giving jobs back."""
_BLOCKED = 10.0
"""Seconds after a second signal until the process is ended by force.

`_AT_ONCE` is over before, also if a busy machine lets the event loop wait for seconds until it acts.
"""
_LAST_RESORT = 20.0
"""Seconds beyond twice the grace (for handlers, then for lifespans). All steps of a stop take less."""
_PATIENCE = math.inf
"""A worker waits for its server without limit, also at the start; the log reports it."""

_Level = Annotated[
    LogLevel | None,
    typer.Option(
        help="The least that is logged; info by default.", envvar="EVENTBUS_LOG_LEVEL", case_sensitive=False
    ),
]
_MetricsPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        metavar="PORT",
        help="Answer Prometheus at /metrics here; 0: a free one. Needs the extra prometheus.",
    ),
]
_MetricsHost = Annotated[
    str, typer.Option(metavar="HOST", help="The address of the metrics port; by default this machine alone.")
]


def worker(
    place: Annotated[
        str, typer.Argument(metavar="MODULE:PROVIDER", help="Where the provider is, such as app:provider.")
    ],
    *,
    concurrency: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Jobs that this process runs at a time.")
    ] = None,
    queues: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB",
            help="Serve what matches only: globs over NAME and NAME@GROUP, with commas or repeated.",
        ),
    ] = None,
    burst: Annotated[bool, typer.Option("--burst", help="End when no work is left that is due.")] = False,
    log_format: Annotated[
        LogFormat | None, typer.Option(help="Form of the log; console on a terminal, else json.")
    ] = None,
    log_level: _Level = None,
    grace: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How long handlers may finish when asked to end: 10s, 1m."),
    ] = None,
    url: Annotated[str | None, typer.Option(help="The server, over the provider's own setting.")] = None,
    health_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, metavar="PORT", help="Answer /livez and /readyz here; 0: a free one."),
    ] = None,
    health_host: Annotated[
        str, typer.Option(metavar="HOST", help="The address of the health port; by default all.")
    ] = "0.0.0.0",  # noqa: S104  (who asks is outside the container)
    metrics_port: _MetricsPort = None,
    metrics_host: _MetricsHost = "127.0.0.1",
    reload: Annotated[
        bool, typer.Option("--reload", help="Start again when Python files in this folder change.")
    ] = False,
    until_eof: Annotated[bool, typer.Option("--until-eof", hidden=True)] = False,
) -> int:
    """Run the handlers of a provider until told to end by SIGTERM or SIGINT.

    The first signal lets handlers finish and gives the rest back to other workers; the
    second ends at once.
    """
    if reload:
        if burst:
            raise CommandError("expected either --reload or --burst, got both")
        return run_reloading(sys.argv[1:], grace=None if grace is None else seconds(grace, setting="grace"))
    provider = load_provider(place)
    _configure_logs(log_format, log_level)
    with_settings(choose_server(provider, url), max_concurrency=concurrency, grace=grace)
    globs = [glob.strip() for each in queues or ["*"] for glob in each.split(",") if glob.strip()]
    process = _Process(provider, globs, burst=burst, until_eof=until_eof)
    with ExitStack() as ports:
        if metrics_port is not None:
            ports.enter_context(MetricsPort(metrics_host, metrics_port))
        if health_port is not None:
            ports.enter_context(Probes(health_host, health_port, process.health))
        # Modules and classes stay for good; to look through them would stop all jobs for 30 ms each time.
        gc.freeze()
        return run(process.run())


def _configure_logs(chosen: LogFormat | None, level: LogLevel | None) -> None:
    if level is None:
        configure_logs(chosen, level=logging.DEBUG if is_debugging() else logging.INFO)
    else:
        configure_logs(chosen, level=level.number, is_level_chosen=True)


class _Process:
    """One worker process."""

    def __init__(
        self, provider: EventProvider, globs: Iterable[str], *, burst: bool, until_eof: bool
    ) -> None:
        self._provider = provider
        self._globs = list(globs)
        self._is_burst = burst
        self._until_eof = until_eof
        self._runner: EventWorker | None = None
        self._input_closed: asyncio.Event | None = None

    def health(self) -> Health | None:
        """Return the health of the worker; None while it starts."""
        return None if self._runner is None else self._runner.health()

    async def run(self) -> int:
        """Serve until the end, and return the exit code."""
        if self._until_eof:  # already now: the parent may die while the worker waits for its server
            self._input_closed = _watch_input(self._provider.settings.grace + 1)
        # Until the worker serves, a signal cancels this task, because there is no handler to wait for.
        with Interrupts(limits=(2 * self._provider.settings.grace + _LAST_RESORT, _BLOCKED)) as interrupts:
            try:
                async with (
                    started(self._provider, patience=_PATIENCE),
                    self._provider.worker(queues=self._globs) as runner,
                ):
                    self._runner = runner
                    interrupts.act = lambda: self._on_signal(runner, interrupts)
                    await self._serve(runner, interrupts)
            except asyncio.CancelledError:
                if not interrupts.count:
                    raise
            return interrupts.code if interrupts.count > 1 else 0

    async def _serve(self, runner: EventWorker, interrupts: Interrupts) -> None:
        ended = asyncio.create_task(runner.wait())
        reasons = [asyncio.create_task(reason) for reason in self._reasons_to_end(runner)]
        try:
            await asyncio.wait([ended, *reasons], return_when=asyncio.FIRST_COMPLETED)
            is_asked = bool(interrupts.count) or any(reason.done() for reason in reasons)
            for reason in reasons:
                if reason.done():
                    reason.result()  # raises the error of the reason, if it has one
            runner.request_stop()
            await ended
            if not is_asked:
                raise CommandError("the worker gave up; its log says why", exit_code=1)
        finally:
            for reason in reasons:
                reason.cancel()

    def _reasons_to_end(self, runner: EventWorker) -> Iterable[Coroutine[Any, Any, None]]:
        """Yield a coroutine for each reason to end besides a signal. It returns when the reason has come."""
        if self._is_burst:
            yield runner.wait_drained(self._provider.flush)
        if self._input_closed is not None:
            yield _wait_set(self._input_closed)

    def _on_signal(self, runner: EventWorker, interrupts: Interrupts) -> None:
        is_second = interrupts.count > 1
        if is_second:
            leave_within(_AT_ONCE, interrupts.code)
        _log.info("stopping at once" if is_second else "stopping", worker=runner.id)
        runner.request_stop(at_once=is_second)


async def _wait_set(event: asyncio.Event) -> None:
    await event.wait()


def _watch_input(rest: float) -> asyncio.Event:
    """Return an event that is set when the parent process closes standard input, which its death does too.

    After that this process has `rest` seconds, because nobody waits for it and its server may be gone too.
    """
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()

    def read() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        try:
            loop.call_soon_threadsafe(closed.set)
        except RuntimeError:
            return  # the loop has ended first
        time.sleep(rest)
        os._exit(1)

    threading.Thread(target=read, name="eventbus-stdin", daemon=True).start()
    return closed
