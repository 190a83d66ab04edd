"""A small program with handlers and flows, for the tests of the dashboard in a browser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import uvicorn

from eventbus import EventProvider, Retry
from eventbus.dashboard import Dashboard
from workflows import FlowContext, Signal, Step, StepContext, Workflow, WorkflowProvider, durable, step

__all__ = ["TOKEN", "Served", "Shop", "ask", "serving"]

TOKEN = "a-token-that-nobody-guesses"


approval = Signal("approval", int)


@durable("ask", signals=[approval])
async def ask(ctx: FlowContext[int]) -> int:
    """Wait for a number."""
    return await ctx.wait_for(approval)


async def _one(ctx: StepContext[Any]) -> int:
    return 1


class Shop:
    """A program with some handlers and flows, and its dashboard."""

    def __init__(self, url: str = "memory:") -> None:
        self.provider = EventProvider(url, concurrency=20)
        self.flows = WorkflowProvider(self.provider)
        self.at_gate = asyncio.Event()
        """A risky step waits for the gate."""
        self.gate = asyncio.Event()
        """Handlers of `held` and the last step of a flow wait for it."""
        self.checkout: Workflow[int, int] = Workflow(
            "checkout", input=int, output=int, retry=Retry(attempts=1)
        )
        self.wide: Workflow[int, None] = Workflow("wide", input=int, retry=Retry(attempts=1))
        self.long: Workflow[int, None] = Workflow("long", input=int, retry=Retry(attempts=1))
        self.fate: dict[str, bool] = {}
        """Which steps and rollbacks of `wide` fail."""
        self.ran: list[str] = []
        self.dashboard: Dashboard
        self.url = ""
        self._define()
        self._define_wide()
        self.flows.register(ask)

    def _define(self) -> None:
        provider, checkout, gate = self.provider, self.checkout, self.gate

        @provider.on("paid", retry=Retry(attempts=1))
        async def pay(payload: dict[str, Any]) -> str:
            if payload.get("fails"):
                raise ValueError(payload["fails"])
            return "paid"

        @provider.on("held")
        async def hold(_: int) -> None:
            await gate.wait()

        @checkout.step()
        async def reserve(ctx: StepContext[int]) -> int:
            return 1

        @reserve.rollback
        async def release(ctx: StepContext[int], reserved: int) -> None: ...

        @checkout.step(after=reserve)
        async def charge(ctx: StepContext[int]) -> int:
            if ctx.input < 0:
                raise ValueError("no money")
            await gate.wait()
            return 2

        @checkout.completed
        async def done(ctx: StepContext[int]) -> int:
            return 3

        self.flows.register(checkout)

    def _define_wide(self) -> None:
        """One step, then fifty, a nested flow and one that may fail beside each other, then one; and a row of
        a thousand.
        """
        inner: Workflow[int, int] = Workflow("inner", input=int, retry=Retry(attempts=1))
        inner.then(self._made("inside"))
        parts = [self._made(f"part-{n}") for n in range(50)]
        self.wide.then(self._made("begin")).parallel(*parts, inner, self._made("risky")).then(
            self._made("end")
        )
        self.long.then(*(step(_one, name=f"work-{n}") for n in range(999)), self._made("risky"))
        self.flows.register(self.wide)
        self.flows.register(self.long)

    def _made(self, name: str) -> Step[Any, Any]:
        """A step that notes that it ran, waits for the gate if it is risky, and fails if that is its fate, as
        its rollback does.
        """

        async def run(ctx: StepContext[Any]) -> str:
            self.ran.append(name)
            if name == "risky":
                self.at_gate.set()
                await self.gate.wait()
            if self.fate.get(name):
                raise ValueError(f"{name} cannot be done")
            return name

        async def undo(ctx: StepContext[Any], result: str) -> None:
            self.ran.append(f"undo {name}")
            if self.fate.get(f"undo {name}"):
                raise ValueError(f"{name} cannot be undone")

        return step(run, name=name, rollback=undo)

    async def fail(self, text: str) -> str:
        """Let a job fail with a text in payload and error; return its id."""
        job = self.provider.emit("paid", {"fails": text, "card": "4111111111111111"}, reply=False)
        await job.enqueued()
        await self.wait_for(job.job_id, "failed")
        return job.job_id

    async def wait_for(self, job_id: str, state: str) -> None:
        """Wait until a job is in a state."""
        while (await self.provider.inspector.jobs.get(job_id)).state != state:
            pass

    async def undo(self) -> str:
        """Let a flow fail and be undone; return its id."""
        flow = await self.flows.execute(self.checkout, -1)
        await self.wait_for(flow.id, "failed")
        return flow.id


class Served(Protocol):
    """A program whose dashboard is served. What waits for its gate goes on when that ends."""

    provider: EventProvider
    flows: WorkflowProvider
    gate: asyncio.Event
    dashboard: Dashboard
    url: str


@asynccontextmanager
async def serving(shop: Served) -> AsyncGenerator[None]:
    """Serve the dashboard of a program, whose provider is started, with a token and with links."""
    shop.dashboard = Dashboard(
        shop.provider,
        flows=shop.flows,
        token=TOKEN,
        one_time_codes=True,
        poll=0.5,
        allowed_hosts=["localhost"],
    )
    config = uvicorn.Config(
        shop.dashboard,
        host="127.0.0.1",
        port=0,
        log_config=None,
        lifespan="off",
        ws="none",
        proxy_headers=False,
    )
    server: Any = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None
    running = asyncio.create_task(server._serve())
    while not server.started:  # noqa: ASYNC110  (uvicorn tells nobody)
        await asyncio.sleep(0.01)
    shop.url = f"http://localhost:{server.servers[0].sockets[0].getsockname()[1]}"
    yield
    shop.gate.set()
    server.should_exit = True
    await running
