"""Handles by id: the workflow that types them need not be registered, and text that is no id is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from eventbus import DefinitionError, EventProvider, UnknownJob
from workflows import FlowHandle, StepContext, StepError, Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]


class Receipt(msgspec.Struct):
    number: int


class Refused(Exception):
    pass


def _shop() -> Workflow[int, Receipt]:
    shop = Workflow("shop", input=int, output=Receipt, errors=[Refused])

    @shop.step()
    async def pay(ctx: StepContext[int]) -> int:
        if ctx.input < 0:
            raise Refused("no")
        return ctx.input

    @shop.completed
    async def receipt(ctx: StepContext[int]) -> Receipt:
        return Receipt(ctx.result(pay))

    return shop


async def test_a_handle_with_its_workflow_reads_output_and_errors_though_nothing_is_registered_here(
    make_provider: MakeProvider,
) -> None:
    provider, caller = make_provider(), make_provider()
    flows, others = WorkflowProvider(provider), WorkflowProvider(caller)
    shop = _shop()
    flows.register(shop)
    declared = Workflow("shop", input=int, output=Receipt, errors=[Refused])
    async with caller, provider, provider.worker():
        good, bad = await flows.execute(shop, 7), await flows.execute(shop, -1)
        typed: FlowHandle[Receipt] = others.handle(good.id, declared)
        assert await typed.result() == Receipt(7)
        assert await others.handle(good.id).result() == {"number": 7}
        with pytest.raises(Refused, match="no"):
            await others.handle(bad.id, declared).result()
        with pytest.raises(StepError):
            await others.handle(bad.id).result()
        again: FlowHandle[Receipt] = await others.retry(good.id, workflow=declared)
        assert await again.result() == Receipt(7)


async def test_a_flow_of_another_workflow_is_unknown(make_provider: MakeProvider) -> None:
    provider = make_provider()
    flows, shop = WorkflowProvider(provider), _shop()
    told = r"is the id of a flow of workflow 'till', not of 'shop'"
    with pytest.raises(UnknownJob, match=told) as caught:
        flows.handle("till~0123456789abcdef0123", shop)
    assert caught.value.job_id == "till~0123456789abcdef0123"
    async with provider:
        with pytest.raises(UnknownJob, match=told):
            await flows.retry("till~0123456789abcdef0123", workflow=shop)


@pytest.mark.parametrize("text", ["", "shop", "shop~12", "../../etc", "0-4f1c2a9be07d-00000001", "\ud800"])
async def test_text_that_is_no_id_is_refused_where_it_is_given(
    make_provider: MakeProvider, text: str
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    with pytest.raises(UnknownJob, match="is no id of a flow") as caught:
        flows.handle(text)
    assert caught.value.job_id == text
    async with provider:
        for ask in (flows.report, flows.tree, flows.retry, flows.status):
            with pytest.raises(UnknownJob, match="is no id of a flow"):
                await ask(text)


@pytest.mark.parametrize("value", [None, 5, b"shop~0123456789abcdef0123"])
async def test_what_is_no_text_is_a_mistake_of_the_program(make_provider: MakeProvider, value: Any) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    with pytest.raises(DefinitionError, match="expected the id of a flow"):
        flows.handle(value)
    with pytest.raises(
        DefinitionError,
        match="expected the workflow of a flow to be a Workflow, a durable function or a StateMachine, "
        "got: 'shop'",
    ):
        flows.handle("shop~0123456789abcdef0123", "shop")  # type: ignore[call-overload]
