"""The site of flows under test: a server, one worker that may be killed, and the checks of the result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from apps import flow_app
from checks.audit import Audit
from checks.ledger import Account, Ledger
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.programs import Program
from harness.proxy import Proxy, When
from harness.supervisor import Supervisor

from eventbus import EventProvider
from workflows import FlowHandle, Workflow, WorkflowProvider

__all__ = ["LEASE", "Site", "heard_of", "let_minutes_pass", "run_caller", "wait_state"]

LEASE = "600ms"
_BETWEEN = 0.02


class Site:
    """A server with one worker of `flow_app` behind the proxy, started again when it has died."""

    def __init__(
        self, server: Backend, proxy: Proxy, folder: Path, journal: Journal, run: Callable[..., Program]
    ) -> None:
        self.proxy = proxy
        self._server = server
        self._folder = folder
        self._journal = journal
        self._run = run
        self._supervisor: Supervisor | None = None

    def begin(self) -> None:
        """Start the worker."""
        self._supervisor = Supervisor(self._start)

    def kill(self) -> None:
        """Kill the current worker with `kill -9`."""
        self.supervisor.current.kill()

    def set_trap(self, when: str, where: str) -> None:
        """Kill the worker once: `before` or `after` a call, or `in` a function."""
        if when == "in":
            (self._folder / f"die in {where}").touch()
            return
        moment: When = "before" if when == "before" else "after"
        self.proxy.strike(where, moment, self.kill)

    def hold(self, step: str) -> None:
        """Make a step wait in the middle of its function."""
        (self._folder / f"hold {step}").touch()

    def release(self, step: str) -> None:
        (self._folder / f"hold {step}").unlink()

    @property
    def supervisor(self) -> Supervisor:
        assert self._supervisor is not None, "its worker has not been started"
        return self._supervisor

    @property
    def killed(self) -> list[int]:
        """The workers that died and were replaced."""
        return [] if self._supervisor is None else [each.pid for each in self.supervisor.workers[:-1]]

    @asynccontextmanager
    async def supervised(self) -> AsyncGenerator[None]:
        """Replace workers that die while the block runs."""
        task = asyncio.create_task(self._look())
        try:
            yield
        finally:
            task.cancel()

    async def wait_killed(self) -> None:
        await until("it died and was replaced", lambda: self.killed != [], story=self.supervisor.story)

    async def wait_began(self, step: str) -> None:
        await until(
            f"{step} began",
            lambda: step in [each.payload for each in self._journal.read("began")],
            story=self.supervisor.story,
        )

    async def judge(
        self, flows: WorkflowProvider, handle: FlowHandle[Any], heard: object, *killed: int
    ) -> Ledger:
        """Compare record, journal and result of an `order` flow; the test itself checks repeated effects."""
        account = Account(flow_app.order, await flows.report(handle.id), {}, heard)
        ledger = Ledger(self._journal, {*self.killed, *killed})
        assert ledger.flaws(account) == []
        audit = Audit(self._server)
        assert audit.problems == []
        assert audit.left_open() == {}
        return ledger

    async def _look(self) -> None:
        while True:
            self.supervisor.look()
            await asyncio.sleep(_BETWEEN)

    def _start(self) -> Program:
        return self._run("worker", "apps.flow_app:provider", url=self.proxy.url, lease=LEASE)


@asynccontextmanager
async def run_caller(server: Backend, *workflows: Workflow[Any, Any]) -> AsyncGenerator[WorkflowProvider]:
    """Execute these workflows, by default those of `flow_app`, from this process, which runs no step."""
    async with EventProvider(server.url, lease=LEASE) as provider:
        flows = WorkflowProvider(provider)
        for each in workflows or (flow_app.order, flow_app.wide):
            flows.register(each)
        yield flows


async def wait_state(handle: FlowHandle[Any], step: str, state: str) -> None:
    """Wait until a step is recorded in this state."""
    while (await handle.report()).steps[step].state != state:  # noqa: ASYNC110  (the server notifies nobody)
        await asyncio.sleep(_BETWEEN)


def let_minutes_pass(server: Backend, entry: str) -> float:
    """Make the delayed jobs of a tree due now; return in how many seconds they would have been due."""
    with server.client() as client:
        due: float | None = client.zscore("eb:2:{0}:due", entry)
        assert due is not None, f"nothing is due under {entry}"
        client.zadd("eb:2:{0}:due", {entry: 1}, xx=True)
    return due / 1000 - time.time()


async def heard_of(handle: FlowHandle[Any]) -> object:
    """Return what the caller gets: the output or the error."""
    try:
        return await handle.result()
    except Exception as error:  # noqa: BLE001  (the ledger checks it)
        return error
