"""Rules that try again after some kinds of errors only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from importable import process_handlers

from eventbus import DefinitionError, Event, EventProvider, HandlerError, Retry

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
