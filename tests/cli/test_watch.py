"""`eventbus watch`: prints what happens, until it is interrupted."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable

from drivers.program import Program
from typer.testing import Result

from eventbus import EventProvider

Invoke = Callable[..., Result]
MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]


async def _wait_watched(until: Until, admin: Callable[..., object], prefix: str) -> None:
    await until(lambda: admin("EXISTS", f"{prefix}:2:{{0}}:watched"), "the command watches")


async def test_changes_are_printed_as_they_happen_until_an_interrupt(
    start: Callable[..., Program],
    make_provider: MakeProvider,
    until: Until,
    admin: Callable[..., object],
    prefix: str,
) -> None:
    async with make_provider() as provider:
        program = start("watch", "order.placed")
        await _wait_watched(until, admin, prefix)
        await provider.emit("order.placed", 1, reply=False, delay=60).enqueued()
        await provider.emit("another", 1, reply=False).enqueued()
        await provider.pause("order.placed", reason="the bank is down")
        await until(lambda: len(program.output) == 2, "the pause is printed")
        program.send(signal.SIGINT)
        assert await asyncio.to_thread(program.wait) == 130
    first, second = program.output
    assert first.split()[1:3] == ["added", "event.order.placed"]
    assert "due 20" in first
    assert second.split()[1:] == ["paused", "event.order.placed", "the", "bank", "is", "down"]


async def test_programs_get_objects_with_positions_to_go_on_from(
    start: Callable[..., Program],
    make_provider: MakeProvider,
    until: Until,
    admin: Callable[..., object],
    prefix: str,
) -> None:
    async with make_provider() as provider:
        first = start("watch", "--json", "--count", "2")
        await _wait_watched(until, admin, prefix)
        for n in range(4):
            await provider.emit("a", n, reply=False).enqueued()
        assert await asyncio.to_thread(first.wait) == 0
        seen = [json.loads(line) for line in first.output]
        again = start(
            "watch", "a", "--json", "--count", "2", "--since", seen[-1]["position"], "--kind", "added"
        )
        assert await asyncio.to_thread(again.wait) == 0
        seen += [json.loads(line) for line in again.output]
    assert [each["what"] for each in seen] == ["added"] * 4
    assert len({each["job_id"] for each in seen}) == 4
    assert set(seen[0]) == {"what", "queue", "job_id", "at_ms", "state", "position"}


def test_a_kind_that_is_none_is_refused(invoke: Invoke) -> None:
    result = invoke("watch", "--kind", "finished")
    assert result.exit_code == 2
    assert "no changes of kind 'finished'; there are: added, delayed" in result.stderr


def test_a_position_that_is_none_is_refused(invoke: Invoke) -> None:
    result = invoke("watch", "--since", "x")
    assert result.exit_code == 2
    assert "position of a change" in result.stderr


def test_the_old_name_says_so_and_does_the_same(invoke: Invoke) -> None:
    old, new = invoke("tail", "--kind", "finished"), invoke("watch", "--kind", "finished")
    assert (old.exit_code, old.stdout) == (new.exit_code, new.stdout)
    assert old.stderr == f"note: eventbus tail is deprecated: use eventbus watch\n{new.stderr}"
    assert "tail" not in invoke("--help").stdout
