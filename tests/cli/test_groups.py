"""`eventbus groups`: lists the groups of events, and removes one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from drivers.program import Program
from typer.testing import Result

from eventbus import EventProvider

Invoke = Callable[..., Result]
Plant = Callable[..., None]


@pytest.fixture
def plant(environment: dict[str, str]) -> Plant:
    """Make groups, and emit for them."""

    async def plant(event: str, groups: tuple[str, ...], count: int) -> None:
        provider = EventProvider(environment["EVENTBUS_URL"], prefix=environment["EVENTBUS_PREFIX"])
        async with provider:
            for group in groups:
                await provider.add_group(event, group)
            for each in provider.emit_many(event, range(count), reply=False):
                await each

    return lambda *words: asyncio.run(plant(*words))


def test_groups_are_listed_for_people_and_for_programs(
    invoke: Invoke, plant: Plant, start: Callable[..., Program]
) -> None:
    assert invoke("groups").stdout == "no groups beside default\n"
    plant("double", ("retired",), 2)
    start("worker", "shop:provider", "--queues", "double@audit").wait_for("worker ready")
    result = invoke("groups", "double")
    head, audit, retired = (line.split() for line in result.stdout.splitlines())
    assert head == ["event", "group", "waiting", "parked", "oldest", "workers", "served"]
    assert (audit[:6], len(audit)) == (["double", "audit", "0", "0", "-", "1"], 8)
    assert (retired[:4], retired[-2:]) == (["double", "retired", "2", "0"], ["0", "-"])
    assert result.exit_code == 0
    lines = [json.loads(line) for line in invoke("groups", "--json").stdout.splitlines()]
    assert [(each["name"], each["waiting"], each["workers"]) for each in lines] == [
        ("audit", 0, 1), ("retired", 2, 0),
    ]  # fmt: skip
    other = invoke("groups", "other")
    assert (other.exit_code, other.stdout) == (1, "")
    assert other.stderr.startswith("eventbus: there is no queue event.other on the server ")


@pytest.mark.slow
def test_a_group_is_removed_and_one_that_is_served_only_by_force(
    invoke: Invoke, plant: Plant, start: Callable[..., Program]
) -> None:
    plant("double", ("retired", "gone"), 3)
    result = invoke("groups", "double", "--remove", "retired")
    assert result.stdout == "group retired of double is removed, 3 jobs cancelled\n"
    again = invoke("groups", "double", "--remove", "retired")
    assert again.stderr == "eventbus: double has no group retired; there is: gone\n"
    assert (again.stdout, again.exit_code) == ("", 1)
    start("worker", "shop:provider", "--queues", "double@audit").wait_for("worker ready")
    refused = invoke("groups", "double", "--remove", "audit")
    assert "a worker serves it and would make it again within 5 s" in refused.stderr
    assert (refused.stdout, refused.exit_code) == ("", 2)
    forced = invoke("groups", "double", "--remove", "audit", "--force")
    assert forced.stdout == "group audit of double is removed, 0 jobs cancelled\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--remove", "x"], "expected an EVENT whose group to remove"),
        (["double", "--force"], "expected --force with --remove only"),
        (["double", "--remove", "x", "--watch"], "expected either --remove or --watch, got both"),
        (["double", "--remove", "default"], "is the event itself and cannot be removed"),
        (["double", "--remove", "a b"], "expected a group name"),
        (["--url", "ftp://host"], "expected a URL of redis://"),
    ],
)
def test_what_is_wrong_is_told_on_one_line(invoke: Invoke, words: list[str], told: str) -> None:
    result = invoke("groups", *words)
    assert told in result.stderr
    assert (result.stdout, result.stderr.count("\n"), result.exit_code) == ("", 1, 2)
