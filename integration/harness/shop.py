"""A small program with handlers and flows, for the tests of the dashboard in a browser."""

from __future__ import annotations

import asyncio
from typing import Any

from eventbus import EventProvider, Retry
from eventbus.dashboard import Dashboard
from workflows import StepContext, Workflow, WorkflowProvider

__all__ = ["TOKEN", "Shop"]

TOKEN = "a-token-that-nobody-guesses"


class Shop:
    """A program with some handlers and flows, and its dashboard."""

    def __init__(self) -> None:
        self.provider = EventProvider("memory:", concurrency=20)
        self.flows = WorkflowProvider(self.provider)
        self.gate = asyncio.Event()
        """Handlers of `held` and the last step of a flow wait for it."""
        self.checkout: Workflow[int, int] = Workflow(
            "checkout", input=int, output=int, retry=Retry(attempts=1)
        )
        self.dashboard: Dashboard
        self.url = ""
        self._define()

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

    async def fail(self, text: str) -> str:
        """Let a job fail with a text in payload and error; return its id."""
        job = self.provider.emit("paid", {"fails": text, "card": "4111111111111111"}, reply=False)
        await job.enqueued()
        await self.wait_for(job.job_id, "failed")
        return job.job_id

    async def wait_for(self, job_id: str, state: str) -> None:
        """Wait until a job is in a state."""
        while (await self.provider.inspector.job(job_id)).state != state:
            pass

    async def undo(self) -> str:
        """Let a flow fail and be undone; return its id."""
        flow = await self.flows.execute(self.checkout, -1)
        await self.wait_for(flow.id, "failed")
        return flow.id
