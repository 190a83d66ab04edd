"""Tracebacks without the machinery's frames."""

from __future__ import annotations

import asyncio
import re
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import pydantic
import pytest

from eventbus.errors import PayloadError
from eventbus.model.codec import Codec
from eventbus.model.names import check_event_name
from eventbus.telemetry.failure import describe, read_failure
from eventbus.telemetry.tracebacks import short_stack, short_traceback, whole_traceback


def _files(text: str) -> set[str]:
    return {re.sub(r".*/", "", found) for found in re.findall(r'File "([^"]+)"', text)}


async def _fail(depth: int = 1) -> None:
    if depth:
        await _fail(depth - 1)
    raise LookupError("nothing in stock")


def _raised_by(work: Callable[[], Awaitable[Any]]) -> BaseException:
    """What `work` raises as a task of an event loop: frames of asyncio are around and between."""

    async def run() -> BaseException:
        try:
            await asyncio.wait_for(work(), 240)
        except BaseException as error:  # noqa: BLE001
            return error
        raise AssertionError

    return asyncio.run(run())


def test_frames_of_the_machinery_are_left_out_and_no_marks_are_drawn() -> None:
    async def named_badly() -> None:
        check_event_name("no name")

    for work in (_fail, named_badly):
        error = _raised_by(work)
        assert _files("".join(traceback.format_exception(error))) > {"test_tracebacks.py"}
        text = short_traceback(error)
        assert _files(text) == {"test_tracebacks.py"}
        assert text.splitlines()[-1].endswith(str(error))
        assert "^" not in text


def test_causes_contexts_and_groups_are_all_in_it() -> None:
    async def turn() -> None:
        try:
            await _fail()
        except LookupError as error:
            raise ValueError("turned") from error

    async def several() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(turn())
        finally:
            raise KeyError("on the way out")

    text = short_traceback(_raised_by(several))
    assert _files(text) == {"test_tracebacks.py"}
    for told in ("LookupError: nothing in stock", "direct cause", "ValueError: turned", "ExceptionGroup"):
        assert told in text
    assert text.endswith("KeyError: 'on the way out'\n")


def test_where_no_frame_would_be_left_all_are_kept() -> None:
    async def cancel_itself() -> None:
        await asyncio.wait_for(asyncio.Event().wait(), 0)

    error: BaseException | None = None
    try:
        asyncio.run(cancel_itself())
    except TimeoutError as caught:
        error = caught
    assert error is not None
    theirs: Any = error.__traceback__
    while theirs.tb_next is not None and "asyncio" not in theirs.tb_frame.f_code.co_filename:
        theirs = theirs.tb_next
    bare = TimeoutError().with_traceback(theirs)
    while theirs.tb_next is not None:  # cut behind the frames of asyncio
        if theirs.tb_next.tb_frame.f_code.co_filename == __file__:
            theirs.tb_next = None
            break
        theirs = theirs.tb_next
    assert "runners.py" in short_traceback(bare)
    assert short_traceback(ValueError("never raised")) == "ValueError: never raised\n"


def test_an_error_in_a_ring_of_causes_is_told_once() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert short_traceback(one).count("ValueError: one") == 1


class Card(pydantic.BaseModel):
    number: int


def test_what_could_quote_a_payload_is_taken_out() -> None:
    codec = Codec(Card, role="payload", owner="paid", max_bytes=1000)
    data = b'{"number":"4111-secret"}'
    with pytest.raises(PayloadError) as caught:
        codec.decode(data)
    assert "4111-secret" in "".join(traceback.format_exception(caught.value))
    with pytest.raises(ExceptionGroup) as group:
        raise ExceptionGroup("several", [caught.value])
    for error in (caught.value, group.value):
        text = read_failure(describe(error, attempts=1)).traceback
        assert "valid integer" in text
        assert "4111-secret" not in text


def test_a_stack_is_told_from_the_event_loop_on() -> None:
    found: list[str] = []

    async def inner() -> None:
        found.append(short_stack(sys._getframe()))

    async def outer() -> None:
        await inner()

    asyncio.run(outer())
    assert re.findall(r"line \d+, in (\w+)", found[0]) == ["outer", "inner"]


def test_a_group_that_holds_the_same_group_again_and_again_is_told_without_its_members() -> None:
    error: Exception = ValueError("twice")
    for _ in range(60):
        members: list[Exception] = [error, error]
        error = ExceptionGroup("both", members)
    for text in (short_traceback(error), whole_traceback(error)):
        assert "both" in text
        assert "twice" not in text
