"""`eventbus demo --dashboard`: a small shop that goes on until Ctrl-C, and its dashboard in a browser.

Packages on top of this one show what they have, by entry points of the group `eventbus.demos`. What must
always hold is what `commands.demo` says: when the demo ends for any reason, its server and its workers end
too.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, suppress
from importlib.metadata import entry_points
from typing import Annotated, Protocol, cast

import typer

from eventbus.cli.commands import demo as scenes
from eventbus.cli.commands.demo import SHOP, WorkerProcess, run_server, run_worker
from eventbus.cli.commands.demo_events import Order, order_placed, order_refused, payment_taken
from eventbus.cli.dashboard.serving import DashboardOptions, DashboardServer
from eventbus.cli.logs import configure_logs
from eventbus.cli.loop import run
from eventbus.cli.output import say
from eventbus.cli.signals import Interrupts
from eventbus.errors import EventBusError
from eventbus.provider import EventProvider

_DEMOS = "eventbus.demos"
_PAUSE = 0.4
"""Seconds between two rounds of orders."""


class Demo(Protocol):
    """What a package adds to the demo."""

    worker: str
    """`MODULE:PROVIDER` of a program that a worker runs."""

    async def play(self, provider: EventProvider) -> None:
        """Make something to look at, until cancelled."""
        ...


def demo(
    *,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Go on until Ctrl-C, and show it in a browser.")
    ] = False,
) -> int:
    """Show the main job: an embedded server, a worker in a second process, and orders to it."""
    configure_logs(None, level=logging.CRITICAL)  # what the demo prints shows the failures
    return run(_show()) if dashboard else scenes.demo()


async def _show() -> int:
    """Run the demo until a signal; return the exit code."""
    demos = [cast("Demo", point.load()) for point in entry_points(group=_DEMOS)]
    with Interrupts(limits=(15.0, 1.0)) as interrupts:
        try:
            async with AsyncExitStack() as stack:
                url = await stack.enter_async_context(run_server())
                workers = [
                    await stack.enter_async_context(run_worker(url, place))
                    for place in (SHOP, *(demo.worker for demo in demos))
                ]
                provider = EventProvider(url, reply_timeout=30)
                server = DashboardServer(provider, DashboardOptions())
                stack.callback(server.socket.close)
                await stack.enter_async_context(provider)
                await _prepare(provider)
                say(f"open {server.url} and end this with Ctrl-C", flush=True)
                interrupts.act = server.request_stop
                await _play(provider, server, demos, workers)
        except asyncio.CancelledError:
            if not interrupts.count:
                raise
            return interrupts.code
    return 0


async def _prepare(provider: EventProvider) -> None:
    await provider.add_group(order_placed, "billing")
    await provider.schedules.add(order_placed, id="standing-order", every="20s", payload=Order("o-0", 50))
    provider.emit(order_placed, Order("o-tomorrow", 70), delay="1 day", reply=False)


async def _play(
    provider: EventProvider, server: DashboardServer, demos: list[Demo], workers: list[WorkerProcess]
) -> None:
    """Serve until somebody asks for the end. Raises CommandError if a worker ends before."""
    serving = asyncio.create_task(server.serve())
    players = [asyncio.create_task(_order(provider))]
    players += [asyncio.create_task(demo.play(provider)) for demo in demos]
    players += [asyncio.create_task(worker.wait_failed()) for worker in workers]
    try:
        done, _ = await asyncio.wait([serving, *players], return_when=asyncio.FIRST_COMPLETED)
        await done.pop()
    finally:
        server.request_stop()
        for player in players:
            player.cancel()
        await asyncio.wait([serving, *players])


async def _order(provider: EventProvider) -> None:
    """Emit orders; some payments need three attempts, and some orders fail."""
    number = 0
    while True:
        number += 1
        with suppress(EventBusError):  # a full queue, or a server that ends
            provider.emit(order_placed, Order(f"o-{number}", 10 * number), reply=False)
            if number % 3 == 0:
                provider.emit(payment_taken, Order(f"o-{number}", 1250), reply=False)
            if number % 10 == 0:
                provider.emit(order_refused, Order(f"o-{number}", 0), reply=False)
        await asyncio.sleep(_PAUSE)
