"""Reading lines ahead, in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import pytest

from eventbus.cli.commands.lines import LineReader, Source


def reads(chunks: Iterable[bytes]) -> Callable[[], bytes]:
    """What `os.read` would give, one after the other, and then the end."""
    left = iter(chunks)
    return lambda: next(left, b"")


async def lines_of(reader: LineReader) -> list[bytes]:
    lines: list[bytes] = []
    while chunk := await reader.next_chunk():
        lines.extend(chunk)
    return lines


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([], []),
        ([b"a\nb\n"], [b"a", b"b"]),
        ([b"a\nb"], [b"a", b"b"]),
        ([b"a", b"b", b"c\nd", b"\n"], [b"abc", b"d"]),
        ([b"\n\na\n"], [b"", b"", b"a"]),
        ([b"x" * 70_000] * 20 + [b"\n"], [b"x" * 1_400_000]),
    ],
)
async def test_lines_are_what_lies_between_line_ends(chunks: list[bytes], lines: list[bytes]) -> None:
    assert await lines_of(LineReader(Source(reads(chunks)))) == lines


async def test_it_reads_no_more_than_a_little_ahead() -> None:
    count = 0
    third = threading.Event()

    def read() -> bytes:
        nonlocal count
        count += 1
        if count == 3:
            third.set()
        return b"line\n"

    reader = LineReader(Source(read))
    assert third.wait(240)  # two wait to be taken, and one for room
    assert count == 3
    await reader.next_chunk()
    reader.close()


async def test_an_error_of_the_file_reaches_who_takes_the_lines() -> None:
    def read() -> bytes:
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        await LineReader(Source(read)).next_chunk()


async def test_closing_it_ends_the_lines_while_a_read_waits() -> None:
    release = threading.Event()

    def read() -> bytes:
        release.wait(240)
        return b""

    reader = LineReader(Source(read))
    reader.close()
    assert await reader.next_chunk() == []
    release.set()
