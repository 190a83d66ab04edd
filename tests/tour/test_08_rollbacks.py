"""8. When a step fails for good, the rollbacks of the completed steps undo their work (a saga).

A rollback belongs to one step and receives its result. Rollbacks run in reverse order, and they are retried
and recorded like steps. The error names the step that failed, and says whether everything was undone.
"""

import pytest

from eventbus import EventProvider, Unrecoverable
from workflows import StepContext, StepError, Workflow, WorkflowProvider

checkout = Workflow("checkout", input=int)


@checkout.step()
async def reserve(ctx: StepContext[int]) -> str:
    return "shelf 3"


@reserve.rollback
async def release(ctx: StepContext[int], shelf: str) -> None:
    ctx.log.info("releasing", shelf=shelf)


@checkout.step()
async def charge(ctx: StepContext[int]) -> int:
    return ctx.input


@charge.rollback
async def refund(ctx: StepContext[int], paid: int) -> None:
    ctx.log.info("refunding", paid=paid)


@checkout.step()
async def ship(ctx: StepContext[int]) -> None:
    raise Unrecoverable("no delivery to Atlantis")


async def test_a_flow_that_fails_undoes_its_steps_in_reverse_order() -> None:
    provider = EventProvider("memory:")
    flows = WorkflowProvider(provider)
    flows.register(checkout)
    async with provider, provider.worker():
        flow = await flows.execute(checkout, 990)
        with pytest.raises(StepError, match="no delivery to Atlantis") as caught:
            await flow.result()
        assert (caught.value.step, caught.value.rollback) == ("ship", "complete")
        assert [undone.step for undone in (await flow.report()).rollbacks] == ["charge", "reserve"]
