"""7. A workflow is a graph of steps. Each step is a job, so any worker may run it.

A step runs after the one defined before it, or after those that `after` names; steps with the same `after`
run in parallel. A step is skipped if its `when` is false. The result of a step is recorded, and later steps
read it, typed.
"""

import msgspec

from eventbus import EventProvider
from workflows import StepContext, Workflow, WorkflowProvider
from workflows.testing import run_inline


class Order(msgspec.Struct):
    total: int
    email: str = ""


checkout = Workflow("checkout", input=Order, output=str)


@checkout.step()
async def charge(ctx: StepContext[Order]) -> int:
    return ctx.input.total


@checkout.step(after=charge)
async def ship(ctx: StepContext[Order]) -> str:
    return f"a parcel for {ctx.result(charge)}"


@checkout.step(after=charge, when=lambda ctx: ctx.input.email != "")  # in parallel with `ship`
async def mail(ctx: StepContext[Order]) -> str:
    return f"a mail to {ctx.input.email}"


@checkout.completed  # after all steps; returns the output of the workflow
async def summary(ctx: StepContext[Order]) -> str:
    return f"{ctx.result(ship)} and {ctx.result(mail, default='no mail')}"


async def test_a_workflow_runs_its_steps_and_returns_its_output() -> None:
    provider = EventProvider("memory:")
    flows = WorkflowProvider(provider)
    flows.register(checkout)
    async with provider, provider.worker():
        flow = await flows.execute(checkout, Order(990, "ada@example.org"))  # a flow is one run of it
        assert await flow.result() == "a parcel for 990 and a mail to ada@example.org"

    # A test can run the same workflow without a server.
    assert await run_inline(checkout, Order(990)) == "a parcel for 990 and no mail"
