"""The relay reads lines and prints results in their order, with a bounded number of open emissions."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Generator
from typing import Any, cast

import pytest

from eventbus.cli.commands.lines import LineReader
from eventbus.cli.commands.meter import Meter
from eventbus.cli.commands.relay import Relay
from eventbus.emit.emission import Emission
from eventbus.errors import EmitError


class Sent:
    """An emission that the test settles."""

    def __init__(self, line: bytes) -> None:
        self.line = line
        self._outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(self) -> bool:
        return self._outcome.done()

    def settle(self, outcome: Any = None) -> None:
        if isinstance(outcome, Exception):
            self._outcome.set_exception(outcome)
        else:
            self._outcome.set_result(self.line if outcome is None else outcome)

    async def enqueued(self) -> None:
        pass

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.shield(self._outcome).__await__()


class Stage:
    """A relay with everything around it; `feed` gives it lines."""

    def __init__(self, limit: int) -> None:
        self.sent: list[Sent] = []
        self.output = io.BytesIO()
        self.refuse: Exception | None = None
        self.relay = Relay(
            self._emit, lambda value: value, limit=limit, output=self.output, meter=Meter(None, prints=True)
        )
        self.reader = _Fed()
        self.running = asyncio.create_task(self.relay.run(cast("LineReader", self.reader)))

    def _emit(self, line: bytes) -> Emission[Any]:
        refuse, self.refuse = self.refuse, None
        if refuse is not None:
            raise refuse
        self.sent.append(Sent(line))
        return cast("Emission[Any]", self.sent[-1])

    async def turn(self) -> None:
        """Let everything go as far as it goes."""
        for _ in range(20):
            await asyncio.sleep(0)


class _Fed:
    def __init__(self) -> None:
        self._chunks: asyncio.Queue[list[bytes]] = asyncio.Queue()

    def feed(self, *lines: bytes) -> None:
        self._chunks.put_nowait(list(lines))

    def close(self) -> None:
        self.feed()

    async def next_chunk(self) -> list[bytes]:
        return await self._chunks.get()


async def test_results_are_printed_in_the_order_of_their_lines() -> None:
    stage = Stage(limit=10)
    stage.reader.feed(b"1", b"2", b"3")
    stage.reader.feed()
    await stage.turn()
    stage.sent[2].settle()
    stage.sent[1].settle()
    await stage.turn()
    assert stage.output.getvalue() == b""
    stage.sent[0].settle()
    await stage.running
    assert stage.output.getvalue() == b"1\n2\n3\n"


async def test_no_more_than_the_limit_is_under_way_from_the_oldest_unprinted_line() -> None:
    stage = Stage(limit=2)
    stage.reader.feed(*(b"%d" % n for n in range(5)))
    await stage.turn()
    assert len(stage.sent) == 2
    stage.sent[1].settle()  # the oldest is not: still two
    await stage.turn()
    assert len(stage.sent) == 2
    stage.sent[0].settle()
    await stage.turn()
    assert len(stage.sent) == 4
    stage.running.cancel()


async def test_a_result_is_printed_while_the_next_line_is_still_waited_for() -> None:
    stage = Stage(limit=10)
    stage.reader.feed(b"1")
    await stage.turn()
    stage.sent[0].settle()
    await stage.turn()
    assert stage.output.getvalue() == b"1\n"
    stage.reader.feed(b"2")
    await stage.turn()
    assert [each.line for each in stage.sent] == [b"1", b"2"]
    stage.running.cancel()


async def test_failed_lines_are_told_with_number_and_error_and_the_others_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stage = Stage(limit=10)
    stage.refuse = ValueError("not this")
    stage.reader.feed(b"bad", b"", b"worse", b"good")
    stage.reader.feed()
    await stage.turn()
    stage.sent[0].settle(LookupError("nothing\nthere"))
    stage.sent[1].settle()
    await stage.running
    assert stage.output.getvalue() == b"good\n"
    assert capsys.readouterr().err.splitlines() == [
        "line 1: ValueError: not this: bad",
        "line 3: LookupError: nothing there: worse",
    ]
    assert (stage.relay.answered, stage.relay.failed) == (1, 2)


async def test_a_refusal_because_much_is_unsent_is_waited_out() -> None:
    stage = Stage(limit=10)
    stage.reader.feed(b"1")
    await stage.turn()
    stage.refuse = EmitError("too much is unsent")
    stage.reader.feed(b"2", b"3")
    stage.reader.feed()
    await stage.turn()
    for each in stage.sent:
        each.settle()
    await stage.running
    assert stage.output.getvalue() == b"1\n2\n3\n"
    assert stage.relay.read == 3


async def test_stopped_it_emits_nothing_more_and_prints_what_is_under_way() -> None:
    stage = Stage(limit=2)
    stage.reader.feed(b"1", b"2", b"3", b"4")
    await stage.turn()
    stage.relay.stop(cast("LineReader", stage.reader))
    stage.sent[0].settle()
    stage.sent[1].settle()
    await stage.running
    assert len(stage.sent) == 2
    assert stage.output.getvalue() == b"1\n2\n"


async def test_after_the_provider_has_stopped_every_outcome_is_heard() -> None:
    stage = Stage(limit=5)
    stage.reader.feed(b"1", b"2")
    await stage.turn()
    stage.running.cancel()
    stage.sent[0].settle()
    stage.sent[1].settle(LookupError())
    assert await stage.relay.abandon() == 2
