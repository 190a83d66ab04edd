"""A misspelt name in a reading command: it is told, with the server and the names that are close."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from typer.testing import Result

from eventbus import EventProvider

Invoke = Callable[..., Result]
MakeProvider = Callable[..., EventProvider]

_LINES = [
    ["queues", "list", "{}"],
    ["queues", "list", "{}", "--json"],
    ["queues", "history", "{}"],
    ["jobs", "count", "{}"],
    ["jobs", "count", "{}", "--json"],
    ["jobs", "list", "{}", "--state", "failed"],
    ["jobs", "failures", "{}"],
    ["groups", "{}"],
    ["groups", "{}", "--json"],
]


def _empty_queue(make_provider: MakeProvider) -> None:
    """Make a queue that is known, and empty."""

    async def make() -> None:
        async with make_provider() as provider:
            emission = provider.emit("order.placed", 1, delay="1 hour", reply=False)
            await emission.enqueued()
            assert await provider.inspector.remove(emission.job_id)

    asyncio.run(make())


@pytest.mark.parametrize("words", _LINES, ids=" ".join)
def test_a_misspelt_name_is_told_with_the_server_and_the_close_names(
    make_provider: MakeProvider, invoke: Invoke, server_url: str, words: list[str]
) -> None:
    _empty_queue(make_provider)
    ran = invoke(*(word.format("order.plcaed") for word in words))
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert ran.stderr == (
        f"eventbus: there is no queue event.order.plcaed on the server {server_url}; "
        "did you mean order.placed?\n"
    )
    ran = invoke(*(word.format("zzz") for word in words))
    assert ran.exit_code == 1
    assert ran.stderr.endswith("; `eventbus queues` lists all\n")


@pytest.mark.parametrize("words", _LINES, ids=" ".join)
def test_a_queue_that_is_known_and_empty_is_no_mistake(
    make_provider: MakeProvider, invoke: Invoke, words: list[str]
) -> None:
    _empty_queue(make_provider)
    ran = invoke(*(word.format("order.placed") for word in words))
    assert (ran.exit_code, ran.stderr) == (0, "")
