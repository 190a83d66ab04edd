"""Decorators that are written in an unusual way: each works, or says at once what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eventbus import DefinitionError, Event, EventProvider, Handlers
from workflows import Workflow

# Untyped, because type checkers refuse most of this.
_bus: Any = EventProvider("memory:")
_event: Any = Event


async def confirm(payload: Any) -> None: ...


def _workflow() -> Any:
    workflow = Workflow("shop")

    @workflow.step
    async def charge(ctx: Any) -> int: ...

    return workflow


@pytest.mark.parametrize(
    ("apply", "message"),
    [
        (
            lambda: _bus.on(confirm),
            (
                r'stands above confirm without an event; write @provider.on\("order.placed"\) or '
                r"@provider.on\(event\)"
            ),
        ),
        (
            lambda: _bus.on(lambda payload: None),
            "@provider.on stands above .*<lambda> without an event; write",
        ),
        (
            lambda: _bus.on(Event),
            "expected an Event or the name of one, got: <class 'eventbus.model.event.Event'>",
        ),
        (lambda: _bus.on(None), "expected an Event or the name of one, got: None"),
        (lambda: _bus.on("a b")(confirm), "expected an event name"),
        (lambda: _bus.on("ask")("confirm"), "expected handler 'confirm' of event 'ask' to be a function"),
        (_bus.use, "expected a middleware .*, got: None; write @provider.use without parentheses"),
        (_bus.lifespan, "expected a lifespan .*, got: None; write @provider.lifespan without parentheses"),
        (lambda: _event(confirm), "expected an event name .*, got: <function confirm"),
        (lambda: _workflow().completed(), "@workflow.completed of workflow 'shop' takes the function itself"),
        (lambda: _workflow().failed(), "@workflow.failed of workflow 'shop' takes the function itself"),
        (
            lambda: _workflow().step("charge"),
            "expected a step of workflow 'shop' to be a function, got: 'charge'",
        ),
        (
            lambda: _workflow().find("charge").rollback("x"),
            "expected the rollback of step 'charge' .* function",
        ),
    ],
)
def test_what_would_register_nothing_is_refused(apply: Callable[[], Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        apply()


@pytest.mark.parametrize("registry", [EventProvider("memory:"), Handlers()], ids=["provider", "collection"])
@pytest.mark.parametrize("event", [Event("ask"), "ask"])
def test_an_unknown_option_of_a_handler_is_refused_with_those_that_there_are(
    registry: EventProvider | Handlers, event: Any
) -> None:
    options: dict[str, Any] = {"tiemout": 5}
    with pytest.raises(DefinitionError) as refused:
        registry.on(event, **options)
    assert str(refused.value) == (
        f"a handler of {event!r} has no option 'tiemout'; "
        "its options are: concurrency, retry, timeout, pool, group, batch; did you mean timeout?"
    )


async def test_what_cannot_be_subscribed_is_refused() -> None:
    async with EventProvider("memory:") as provider:
        bus: Any = provider
        with pytest.raises(
            DefinitionError, match="expected handler 5 of event 'ask' to be a function, got: 5"
        ):
            await bus.subscribe("ask", 5)
        with pytest.raises(
            DefinitionError, match="expected an Event or the name of one, got: <function confirm"
        ):
            await bus.subscribe(confirm, confirm)
        with pytest.raises(DefinitionError, match="a handler of 'ask' has no option 'tiemout'"):
            await bus.subscribe("ask", confirm, tiemout=5)
        assert provider.queues == []


def test_steps_and_rollbacks_take_parentheses_or_not() -> None:
    workflow = Workflow("shop")

    @workflow.step()
    async def reserve(ctx: Any) -> int: ...

    @workflow.step
    async def charge(ctx: Any) -> int: ...

    @reserve.rollback()
    async def release(ctx: Any, result: int) -> None: ...

    @charge.rollback
    async def refund(ctx: Any, result: int) -> None: ...

    assert list(workflow.steps) == ["reserve", "charge"]
    assert (reserve.undo, charge.undo) == (release, refund)
