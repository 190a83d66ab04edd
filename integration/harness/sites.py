"""The site of flows under test: a server, one worker that may be killed, and the checks of the result."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from apps import flow_app
from checks.account import read_account
from checks.audit import Audit
from checks.ledger import Ledger
from harness.backends import Backend
from harness.conditions import until
from harness.journal import Journal
from harness.programs import Program
from harness.proxy import Proxy, When
from harness.supervisor import Supervisor

from eventbus import EventProvider
from workflows import FlowHandle, Workflow, WorkflowProvider

__all__ = [
    "LEASE",
    "Point",
    "Site",
    "check_twice",
    "heard_of",
    "let_minutes_pass",
    "run_caller",
    "wait_state",
]

LEASE = "1500ms"
"""Long enough that a worker on a busy machine keeps it: one that is lost runs a step twice."""
_BETWEEN = 0.02


class Point(NamedTuple):
    """Where the process dies: before or after a call, or `in` a function; and what happens twice by that."""

    when: str
    where: str
    what: str = ""
    twice: str = ""

    def __str__(self) -> str:
        return f"{self.when}-{self.where.replace(' ', '-')}"


def check_twice(ledger: Ledger, flow_id: str, point: Point) -> None:
    """Nothing happened twice but what the kill explains: it was done, and could not be said."""
    done = ("did", "undid", "failed", "completed")
    found = [(what, name) for what in done for name in ledger.repeated(flow_id, what)]
    assert found == ([(point.what, point.twice)] if point.twice else []), found


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
        self._settings: dict[str, object] = {}
        self._supervisor: Supervisor | None = None

    def begin(self, **settings: object) -> None:
        """Start the worker, with settings such as `grace="1s"`, which its followers have, too."""
        self._settings = settings
        self._supervisor = Supervisor(self._start)

    async def stop(self) -> None:
        """Send the current worker SIGTERM, and wait for its end."""
        worker = self.supervisor.current
        worker.send(signal.SIGTERM)
        await until("it stopped", lambda: worker.has_ended, story=worker.story)
        assert worker.wait_ended() == 0, worker.story()

    def start_other(self) -> Program:
        """Start another worker, which becomes the current one."""
        self.supervisor.workers.append(self._start())
        return self.supervisor.current

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

    async def wait_began(self, *steps: str) -> None:
        """Wait until steps have begun; one that is named twice must have begun twice."""
        await until(
            f"{', '.join(steps)} began",
            lambda: not Counter(steps) - Counter(each.payload for each in self._journal.read("began")),
            story=self.supervisor.story,
        )

    async def judge(
        self, flows: WorkflowProvider, handle: FlowHandle[Any], heard: object, *killed: int
    ) -> Ledger:
        """Compare record, journal and result of a flow; the test itself checks repeated effects."""
        (workflow,) = [each for each in flow_app.WORKFLOWS if each.name == handle.workflow]
        ledger = Ledger(self._journal, {*self.killed, *killed})
        account = await read_account(flows, workflow, handle.id, heard)
        flaws = ledger.flaws(account)
        assert flaws == [], flaws
        audit = Audit(self._server)
        assert audit.problems == []
        assert audit.left_open() == {}
        return ledger

    async def _look(self) -> None:
        while True:
            self.supervisor.look()
            await asyncio.sleep(_BETWEEN)

    def _start(self) -> Program:
        settings = {"lease": LEASE, **self._settings}
        return self._run("worker", "apps.flow_app:provider", url=self.proxy.url, **settings)


@asynccontextmanager
async def run_caller(server: Backend, *workflows: Workflow[Any, Any]) -> AsyncGenerator[WorkflowProvider]:
    """Execute these workflows, by default those of `flow_app`, from this process, which runs no step."""
    async with EventProvider(server.url, lease=LEASE) as provider:
        flows = WorkflowProvider(provider)
        for each in workflows or flow_app.WORKFLOWS:
            flows.register(each)
        yield flows


async def wait_state(handle: FlowHandle[Any], step: str, state: str) -> None:
    """Wait until a step is recorded in this state; a spread flow has no steps before a worker has
    claimed it.
    """
    while (  # noqa: ASYNC110  (the server notifies nobody)
        (found := (await handle.report()).steps.get(step)) is None or found.state != state
    ):
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
