"""`eventbus demo`: emits orders to an embedded server, with a worker in a second process.

What must always hold: when the demo ends for any reason, the server and the worker end too. This process ends
them if it can. Otherwise they end because their pipes from this process close.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import IO

from eventbus.cli.commands.board import Board
from eventbus.cli.commands.demo_events import (
    Order,
    Receipt,
    bill_asked,
    item_counted,
    order_placed,
    order_refused,
    payment_taken,
)
from eventbus.cli.failures import CommandError, one_line
from eventbus.cli.loop import run
from eventbus.cli.signals import Interrupts
from eventbus.errors import HandlerError
from eventbus.model import clock
from eventbus.provider import EventProvider
from eventbus.runtime.clean_up import run_to_end
from eventbus.store.embedded.server import EmbeddedServer

_BURST = 3000
"""Events of the last scene, which shows a rate."""
_WORKER = (sys.executable, "-m", "eventbus", "worker")
SHOP = "eventbus.cli.commands.demo_app:provider"
"""The program of the demo's worker."""
_WORKER_ENDS_WITHIN = 3.0


def demo() -> int:
    """Show the main job: an embedded server, a worker in a second process, and orders to it."""
    return run(_demo())


async def _demo() -> int:
    with Interrupts() as interrupts:
        try:
            scenes = _Scenes()
            async with (
                run_server() as url,
                run_worker(url, SHOP) as worker,
                EventProvider(url, reply_timeout=30) as provider,
            ):
                await _before_end_of(worker, scenes.play(provider))
        except asyncio.CancelledError:
            if not interrupts.count:
                raise
            return interrupts.code
    return 1 if scenes.board.has_failed else 0


class WorkerProcess:
    """The worker process, and its output."""

    def __init__(self, process: asyncio.subprocess.Process, errors: IO[bytes]) -> None:
        self.process = process
        self._errors = errors

    async def wait_failed(self) -> None:
        """Wait for the end of the process, which would come too early. Raises CommandError then."""
        code = await self.process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
        raise CommandError(f"the worker of the demo ended with code {code}: {said[-1]}", exit_code=1)

    async def aclose(self) -> None:
        """End the process; kill it if it does not end in time."""
        if self.process.returncode is None:
            self.process.terminate()
            try:
                async with asyncio.timeout(_WORKER_ENDS_WITHIN):
                    await self.process.wait()
            except TimeoutError:
                self.process.kill()
                await self.process.wait()


@asynccontextmanager
async def run_server() -> AsyncGenerator[str]:
    """Run a temporary server for the block, and yield its URL."""
    server = EmbeddedServer(None)
    try:
        yield f"unix://{await asyncio.to_thread(server.start)}"
    finally:
        server.stop()


@asynccontextmanager
async def run_worker(url: str, place: str) -> AsyncGenerator[WorkerProcess]:
    """Run a worker of the program at `place` in a process of its own for the block."""
    with tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            *_WORKER,
            place,
            "--url",
            url,
            "--grace",
            "1s",
            "--until-eof",
            stdin=asyncio.subprocess.PIPE,  # the worker ends when this closes, also if this process is killed
            stdout=errors,
            stderr=errors,
            start_new_session=True,  # Ctrl-C reaches only this process, which then ends the worker in order
        )
        worker = WorkerProcess(process, errors)
        try:
            yield worker
        finally:
            await run_to_end(worker.aclose(), "worker of the demo", within=2 * _WORKER_ENDS_WITHIN)


async def _before_end_of(worker: WorkerProcess, play: Awaitable[None]) -> None:
    """Await `play`. Raises CommandError if the worker ends before it."""
    playing = asyncio.ensure_future(play)
    failing = asyncio.create_task(worker.wait_failed())
    try:
        done, _ = await asyncio.wait([playing, failing], return_when=asyncio.FIRST_COMPLETED)
        await done.pop()
    finally:
        playing.cancel()
        failing.cancel()
        await asyncio.wait([playing, failing])


class _Scenes:
    """The scenes of the demo; each is a row of the table."""

    def __init__(self) -> None:
        self._scenes: dict[str, Callable[[EventProvider], Awaitable[tuple[str, str]]]] = {
            "order, result awaited": _await_result,
            "same order, group billing": _await_group,
            "payment, fails twice": _await_retry,
            "order, delayed by 1 s": _await_delayed,
            "order, handler fails": _await_failure,
        }
        self._burst = f"{_BURST} events, awaited"
        heading = "eventbus demo: an embedded server, a worker in a second process"
        self.board = Board(heading, [*self._scenes, self._burst])

    async def play(self, provider: EventProvider) -> None:
        """Play all scenes and show their outcomes."""
        with self.board:
            # Before the first order, so that the group gets that order even if its worker starts later.
            await provider.add_group(order_placed, "billing")
            async with asyncio.TaskGroup() as scenes:
                for title, scene in self._scenes.items():
                    scenes.create_task(self._play_one(title, scene(provider)))
            await self._play_one(self._burst, _await_burst(provider))
        self.board.close("Next: eventbus --help.")

    async def _play_one(self, title: str, scene: Awaitable[tuple[str, str]]) -> None:
        try:
            outcome, detail = await scene
        except Exception as error:  # noqa: BLE001  (the row shows the error)
            self.board.show(title, one_line(error), is_error=True)
        else:
            self.board.show(title, outcome, detail=detail)


async def _await_result(provider: EventProvider) -> tuple[str, str]:
    return _said(await provider.emit(order_placed, Order("o-1", 990))), ""


async def _await_group(provider: EventProvider) -> tuple[str, str]:
    # The group billing got the order too. Only the default group answers the emitter, so another event asks
    # for the bill.
    return f"too: {_said(await provider.emit(bill_asked, 'o-1'))}", ""


async def _await_retry(provider: EventProvider) -> tuple[str, str]:
    receipt = await provider.emit(payment_taken, Order("o-2", 1250))
    return f"{_said(receipt)}, at attempt {receipt.attempt}", ""


async def _await_delayed(provider: EventProvider) -> tuple[str, str]:
    return _said(await provider.emit(order_placed, Order("o-3", 80), delay="1s")), ""


async def _await_failure(provider: EventProvider) -> tuple[str, str]:
    try:
        receipt = await provider.emit(order_refused, Order("o-4", 0))
    except HandlerError as error:
        return f"raised here: {error.type_name}: {error.remote_message}", error.remote_traceback.rstrip()
    raise CommandError(f"expected it to fail, got: {receipt}")


async def _await_burst(provider: EventProvider) -> tuple[str, str]:
    began = clock.monotonic()
    for number, emission in enumerate(provider.emit_many(item_counted, range(_BURST))):
        if await emission != number + 1:
            raise CommandError(f"expected {number + 1} as result {number}")
    rate = _BURST / (clock.monotonic() - began)
    return f"{rate:,.0f} emissions a second", ""


def _said(receipt: Receipt) -> str:
    return f"receipt {receipt.number} from process {receipt.process}"
