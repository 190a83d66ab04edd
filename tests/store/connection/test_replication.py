"""Waiting for a replica, with a fake channel, and with a server that has no replica."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from eventbus import EmitError, EventProvider
from eventbus.errors import StoreError, StoreRefused, StoreUnavailable
from eventbus.store.connection.channel import Channel
from eventbus.store.connection.replication import ReplicatedChannel, warn_without_replica


class _Channel:
    """A fake channel: answers pipelined commands with prepared answers."""

    address = "h:1"
    is_closed = False

    def __init__(self, *answers: list[Any]) -> None:
        self.rows: list[tuple[tuple[Any, ...], ...]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self._answers = deque(answers)

    async def call_in_row(self, *commands: tuple[Any, ...], deadline: float | None = None) -> list[Any]:
        self.rows.append(commands)
        await self.gate.wait()
        return self._answers.popleft()

    @property
    def waits(self) -> list[int]:
        """The ms of each WAIT."""
        return [row[-1][-1] for row in self.rows]


def _over(channel: _Channel) -> ReplicatedChannel:
    return ReplicatedChannel(cast("Channel", channel), touch="touch")


async def test_each_call_is_followed_by_a_write_and_a_wait_on_its_connection() -> None:
    channel = _Channel([["reply"], "OK", 1])
    assert await _over(channel).call("EVALSHA", "digest") == ["reply"]
    ((command, touch, wait),) = channel.rows
    assert command == ("EVALSHA", "digest")
    assert touch[:2] == ("SET", "touch")
    assert wait[:2] == ("WAIT", 1)


@pytest.mark.parametrize(
    "rest",
    [
        ["OK", 0],
        [StoreRefused("no memory", code="OOM"), 1],
        ["OK", StoreRefused("changed", code="UNBLOCKED")],
    ],
    ids=["nobody", "no write", "no wait"],
)
async def test_what_no_replica_acknowledged_may_have_been_carried_out(rest: list[Any]) -> None:
    with pytest.raises(StoreUnavailable, match="no replica of the server at h:1 acknowledged") as caught:
        await _over(_Channel(["reply", *rest])).call("EVALSHA")
    assert caught.value.sent


async def test_a_connection_that_is_lost_behind_the_call_says_nothing_of_replicas() -> None:
    lost = StoreUnavailable("lost", sent=True)
    for rest in ([lost, lost], ["OK", lost], [lost]):
        with pytest.raises(StoreUnavailable, match="lost") as caught:
            await _over(_Channel(["reply", *rest])).call("EVALSHA")
        assert (type(caught.value), caught.value.sent) == (StoreUnavailable, True)


@pytest.mark.parametrize(
    "error", [StoreRefused("unknown", code="NOSCRIPT"), StoreUnavailable("lost", sent=True)]
)
async def test_an_error_of_the_call_itself_stays_what_it_is(error: StoreError) -> None:
    """Also where the row ends there, for the connection was lost while sending it."""
    for rest in ([], ["OK", 1]):
        with pytest.raises(type(error)) as caught:
            await _over(_Channel([error, *rest])).call("EVALSHA")
        assert caught.value is error


async def test_it_waits_longer_each_time_within_a_second_and_never_past_the_deadline() -> None:
    channel = _Channel(*(["reply", "OK", 0] for _ in range(8)))
    replicated = _over(channel)
    for _ in range(7):
        with pytest.raises(StoreUnavailable):
            await replicated.call("EVALSHA")
    assert channel.waits == [50, 100, 200, 400, 800, 1000, 1000]
    with pytest.raises(StoreUnavailable):
        await replicated.call("EVALSHA", deadline=time.monotonic() + 0.2)
    assert channel.waits[-1] < 200


async def test_a_replica_that_answers_fast_again_is_given_little_time_again() -> None:
    channel = _Channel(["reply", "OK", 0], ["reply", "OK", 0], ["reply", "OK", 1], ["reply", "OK", 1])
    replicated = _over(channel)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await replicated.call("EVALSHA")
    for _ in range(2):
        await replicated.call("EVALSHA")
    assert channel.waits == [50, 100, 200, 50]


async def test_one_waits_at_a_time_and_the_next_only_until_its_own_deadline() -> None:
    channel = _Channel(["first", "OK", 1], ["second", "OK", 1])
    replicated = _over(channel)
    channel.gate.clear()
    first = asyncio.create_task(replicated.call("EVALSHA", "1"))
    second = asyncio.create_task(replicated.call("EVALSHA", "2"))
    await asyncio.wait([first, second], timeout=0)  # both have come to where they wait
    assert len(channel.rows) == 1
    with pytest.raises(StoreUnavailable, match="what was sent before") as caught:
        await replicated.call("EVALSHA", "3", deadline=time.monotonic() + 0.05)
    assert not caught.value.sent
    assert len(channel.rows) == 1
    channel.gate.set()
    assert [await first, await second] == ["first", "second"]


async def test_rights_are_checked_without_waiting() -> None:
    channel = _Channel(["OK", 0], ["OK", StoreRefused("no right", code="NOPERM")])
    await _over(channel).check_rights(deadline=None)
    assert channel.rows[0][-1][:2] == ("WAIT", 0)
    with pytest.raises(StoreRefused, match="no right"):
        await _over(channel).check_rights(deadline=None)


async def test_a_full_server_lacks_no_right() -> None:
    full = StoreRefused("OOM command not allowed", code="OOM")
    await _over(_Channel([full, 0])).check_rights(deadline=None)
    with pytest.raises(StoreRefused, match="no right"):
        await _over(_Channel([full, StoreRefused("no right", code="NOPERM")])).check_rights(deadline=None)


@pytest.mark.parametrize(
    ("facts", "warnings"), [({}, 1), ({"connected_slaves": "0"}, 1), ({"connected_slaves": "2"}, 0)]
)
def test_a_primary_without_a_replica_is_warned_of(facts: dict[str, str], warnings: int) -> None:
    with capture_logs() as logs:
        warn_without_replica(facts, "h:1")
    assert [each["log_level"] for each in logs] == ["warning"] * warnings


async def test_an_emission_that_no_replica_has_is_told_as_unknown_and_its_job_runs(
    server_url: str, prefix: str
) -> None:
    async with EventProvider(server_url, prefix=prefix, durability="replicated") as provider:
        emission = provider.emit("work", reply=False, reply_timeout="300ms")
        with pytest.raises(EmitError, match=r"no replica of the server at .* acknowledged") as caught:
            await emission.enqueued()
    assert caught.value.enqueued is None
    assert caught.value.job_id == emission.job_id
