"""The worker's end of a channel: what it accepts, and what it rejects."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus.runtime.process_channel import (
    ANSWER,
    CALL,
    NOTE,
    PROGRESS,
    REPLY,
    REQUEST,
    STOPPING,
    ChannelEnded,
    ProcessChannel,
    pack,
)

_FRAMES = pack(NOTE, 1, b"one") + pack(NOTE, 0, b"") + pack(ANSWER, 1, b"1" * 300) + pack(NOTE, 1, b"late")


class Wire(asyncio.Transport):
    """A transport that records all writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)


class Bench:
    """A channel on a wire, with what it reported."""

    def __init__(self) -> None:
        self.notes: list[bytes] = []
        self.ends: list[str] = []
        self.channel = ProcessChannel(self.notes.append)
        self.channel.on_end = self.ends.append
        self.wire = Wire()
        self.channel.connection_made(self.wire)

    async def ask(self, request: bytes = b"?") -> asyncio.Task[Any]:
        """Ask; returns when the request is written: the first step of an ask does that."""
        task = asyncio.ensure_future(self.channel.ask(request, int))
        await asyncio.sleep(0)
        return task


@given(cuts=st.lists(st.integers(0, len(_FRAMES)), max_size=12))
def test_frames_may_come_in_any_pieces(cuts: list[int]) -> None:
    async def run() -> None:
        bench = Bench()
        answer = await bench.ask()
        edges = [0, *sorted(cuts), len(_FRAMES)]
        for start, end in itertools.pairwise(edges):
            if start != end:
                bench.channel.data_received(_FRAMES[start:end])
        assert await answer == int("1" * 300)
        assert bench.notes == [b"one", b"", b"late"]
        assert not bench.channel.is_over

    asyncio.run(run())


async def test_requests_are_numbered_and_answered_one_by_one() -> None:
    bench = Bench()
    for number in (1, 2, 3):
        answer = await bench.ask(b"%d?" % number)
        assert bench.wire.written.endswith(pack(REQUEST, number, b"%d?" % number))
        bench.channel.data_received(pack(NOTE, 1, b"late") + pack(ANSWER, number, b"%d" % number))
        assert await answer == number
    assert bench.ends == []


async def test_only_the_progress_of_the_request_under_way_is_passed_on() -> None:
    bench, told = Bench(), list[bytes]()
    for number in (1, 2):
        answer = asyncio.ensure_future(bench.channel.ask(b"?", int, told.append))
        await asyncio.sleep(0)
        bench.channel.data_received(pack(PROGRESS, 1, b"of 1") + pack(PROGRESS, number, b"now"))
        bench.channel.data_received(pack(ANSWER, number, b"5"))
        bench.channel.data_received(pack(PROGRESS, number, b"too late"))
        assert await answer == 5
    assert told == [b"of 1", b"now", b"now"]
    bench.channel.data_received(pack(PROGRESS, 3, b"of a request that was never sent"))
    assert bench.channel.is_over


class _Attending:
    """Replies to each call with its own text."""

    def __init__(self) -> None:
        self.send: Any = None
        self.calls: list[bytes] = []

    def attend(self, send: Any) -> None:
        self.send = send

    def called(self, message: bytes) -> None:
        self.calls.append(message)
        self.send(REPLY, message)

    def part(self) -> bool:
        self.send(STOPPING, b"cancel")
        return True


async def test_calls_are_served_only_while_their_request_is_under_way() -> None:
    bench, attending = Bench(), _Attending()
    answer = asyncio.ensure_future(bench.channel.ask(b"?", int, None, attending))
    await asyncio.sleep(0)
    bench.channel.data_received(pack(CALL, 1, b"save"))
    assert bench.wire.written.endswith(pack(REPLY, 1, b"save"))
    bench.channel.data_received(pack(ANSWER, 1, b"5") + pack(CALL, 1, b"too late"))
    assert await answer == 5
    written = bench.wire.written
    attending.send(STOPPING, b"stop")
    answer = asyncio.ensure_future(bench.channel.ask(b"?", int, None, _Attending()))
    await asyncio.sleep(0)
    attending.send(REPLY, b"of the first request")
    bench.channel.data_received(pack(CALL, 1, b"of the first request"))
    assert bench.wire.written == written + pack(REQUEST, 2, b"?")
    assert attending.calls == [b"save"]
    bench.channel.data_received(pack(ANSWER, 2, b"6"))
    assert await answer == 6


@pytest.mark.parametrize("comes", [True, False])
async def test_the_answer_of_a_cancelled_request_is_waited_for_and_dropped(*, comes: bool) -> None:
    bench, attending = Bench(), _Attending()
    asked = asyncio.ensure_future(bench.channel.ask(b"?", int, None, attending))
    await asyncio.sleep(0)
    asked.cancel()
    await asyncio.wait({asked})
    attending.part()
    assert bench.wire.written.endswith(pack(STOPPING, 1, b"cancel"))
    late = asyncio.ensure_future(bench.channel.wait_late(20 if comes else 0.01))
    await asyncio.sleep(0)
    bench.channel.data_received(pack(CALL, 1, b"save"))
    assert attending.calls == [b"save"], "it saves what it has done"
    if comes:
        bench.channel.data_received(pack(ANSWER, 1, b"5"))
    assert await late is comes
    if comes:
        answer = await bench.ask()
        bench.channel.data_received(pack(ANSWER, 2, b"6"))
        assert await answer == 6


@pytest.mark.parametrize("is_under_way", [True, False])
@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"evb",
        bytes(100),
        pack(REQUEST, 2, b""),
        pack(b"?", 2, b""),
        pack(NOTE, 3, b""),
        pack(ANSWER, 1, b"1"),
        pack(ANSWER, 3, b"3"),
        pack(ANSWER, 3, b"3" * 1000)[:20],  # it may never be whole
    ],
)
async def test_whatever_is_no_frame_of_now_breaks_it_for_good(data: bytes, *, is_under_way: bool) -> None:
    bench = Bench()
    first = await bench.ask()
    bench.channel.data_received(pack(ANSWER, 1, b"1"))
    assert await first == 1
    answer = await bench.ask()
    if not is_under_way:
        bench.channel.data_received(pack(ANSWER, 2, b"2"))
        assert await answer == 2
    bench.channel.data_received(data)
    bench.channel.data_received(pack(ANSWER, 2, b"7"))
    bench.channel.connection_lost(None)
    if is_under_way:
        with pytest.raises(ChannelEnded) as caught:
            await answer
        assert str(caught.value)
    else:
        (fault,) = bench.ends
        assert fault
    with pytest.raises(ChannelEnded):
        await bench.channel.ask(b"?", int)


@pytest.mark.parametrize("data", [pack(ANSWER, 1, b"no number"), pack(NOTE, 1, b"one")])
async def test_a_message_that_cannot_be_read_breaks_it(data: bytes) -> None:
    bench = Bench()
    bench.channel._on_note = cast("Any", int)
    answer = await bench.ask()
    bench.channel.data_received(data)
    with pytest.raises(ChannelEnded, match="that cannot be read: invalid literal"):
        await answer


async def test_half_an_answer_is_none() -> None:
    bench = Bench()
    answer = await bench.ask()
    bench.channel.data_received(pack(ANSWER, 1, b"123")[:-1])
    bench.channel.connection_lost(None)
    with pytest.raises(ChannelEnded) as caught:
        await answer
    assert str(caught.value) == ""
    assert bench.ends == []
