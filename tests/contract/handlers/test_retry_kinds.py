"""Rules that try again after some kinds of errors only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from importable import process_handlers

from eventbus import DefinitionError, Event, EventProvider, HandlerError, Handlers, Retry

MakeProvider = Callable[..., EventProvider]


class Busy(Exception):
    pass


@pytest.mark.parametrize("where", ["async", "thread", "process"])
async def test_a_rule_tries_again_after_the_kinds_that_it_names_and_fails_at_once_after_others(
    make_provider: MakeProvider, where: str
) -> None:
    provider = make_provider()
    rules = {
        "only": Retry(3, delay=0, only=(OSError, Busy)),
        "never": Retry(3, delay=0, never=(LookupError,)),
    }

    async def in_loop(kind: str) -> None:
        process_handlers.fail_with(kind)

    handler: Any = in_loop if where == "async" else process_handlers.fail_with
    for name, rule in rules.items():
        provider.on(name, retry=rule, pool="process" if where == "process" else None)(handler)
    expected = {
        ("only", "builtins.FileNotFoundError"): 3,
        ("only", "builtins.KeyError"): 1,
        ("never", "builtins.KeyError"): 1,
        ("never", "builtins.ValueError"): 3,
        ("never", "importable.process_handlers.Missing"): 1,
    }
    async with provider.worker():
        emissions = {each: provider.emit(each[0], each[1]) for each in expected}
        for (name, kind), attempts in expected.items():
            with pytest.raises(HandlerError) as caught:
                await emissions[name, kind]
            assert (name, kind, caught.value.attempts) == (name, kind, attempts)
            assert caught.value.type_name == kind.removeprefix("builtins."), (
                "the record names what was raised"
            )


async def test_a_timeout_is_a_kind_of_error_too(make_provider: MakeProvider) -> None:
    provider = make_provider()

    @provider.on("slow", timeout="50ms", retry=Retry(2, delay=0, never=(TimeoutError,)))
    async def slow(_: None) -> None:
        await asyncio.sleep(60)

    async with provider.worker():
        with pytest.raises(HandlerError) as caught:
            await provider.emit("slow")
    assert (caught.value.type_name, caught.value.attempts) == ("TimeoutError", 1)


async def test_kinds_of_errors_are_a_matter_of_the_handler_not_of_the_emission(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    answered = Event("answered", errors=[Busy])
    with pytest.raises(
        DefinitionError, match=r"the retry of the handler of event 'answered' has .*Busy.* in only"
    ):
        provider.on(answered, retry=Retry(only=(Busy,)))(lambda n: n)
    async with provider:
        with pytest.raises(DefinitionError, match="set it on the handler or the event"):
            provider.emit("e", 1, retry=Retry(never=(ValueError,)))


async def test_the_default_of_the_provider_may_name_what_one_event_declares_as_an_answer(
    make_provider: MakeProvider,
) -> None:
    """It is for many events; the nearer definition says what is an answer of this one."""
    provider = make_provider(retry=Retry(3, delay=0, only=(Busy, OSError)))
    answered: Event[Any, Any] = Event("answered", errors=[Busy])

    @provider.on(answered)
    @provider.on("plain")
    async def fail(_: None) -> None:
        raise Busy

    async with provider.worker():
        with pytest.raises(Busy):
            await provider.emit(answered, None)
        with pytest.raises(HandlerError) as caught:
            await provider.emit("plain")
    assert caught.value.attempts == 3


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (Retry(only=(OSError,)), "has an only without .*Busy.*; add it to only, or take it out of retry_on"),
        (Retry(never=(Busy,)), "has .*Busy.* in never, but retry_on has it too"),
    ],
)
def test_a_default_that_rules_out_what_an_event_wants_to_be_retried_is_refused_where_it_would_hold(
    make_provider: MakeProvider, rule: Retry, said: str
) -> None:
    provider = make_provider(retry=rule)
    retried = Event("retried", errors=[Busy], retry_on=[Busy])
    with pytest.raises(
        DefinitionError, match=f"the provider, which holds for event 'retried', {said}.*retry of its own"
    ):
        provider.on(retried)(lambda n: n)
    provider.on(retried, retry=Retry(3))(lambda n: n)
    provider.on(Event("own", errors=[Busy], retry_on=[Busy], retry=Retry(3)))(lambda n: n)


@pytest.mark.parametrize("pool", [None, "few"])
def test_a_collection_refuses_a_rule_that_contradicts_the_event_when_a_handler_is_added(
    pool: str | None,
) -> None:
    handlers, answered = Handlers(), Event("answered", errors=[Busy])
    with pytest.raises(
        DefinitionError, match=r"the retry of the handler of event 'answered' has .*Busy.* in only"
    ):
        handlers.on(answered, retry=Retry(only=(Busy,)), pool=pool)(lambda n: n)
    handlers.on(answered, retry=Retry(only=(OSError,)), pool=pool)(lambda n: n)
