"""Short tracebacks and stacks for people on call: the frames of their program, without those of libraries.

Not here: keeping and logging the text.

What must always hold:
- hiding frames never makes a text empty: if no frame would be left, all frames are kept. The one exception is
  a value that does not fit its type (PayloadError);
- causes, contexts and groups are in the text, except where they could quote a payload;
- an error whose own methods raise causes no error here.

The lines have no marks (`^^^`) below them. Finding their columns would cost three times as much as all other
steps, for each failing job.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import traceback
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException
from types import FrameType
from typing import cast

import anyio

from eventbus import errors
from eventbus.errors import PayloadError
from eventbus.model.containment import as_exception, members_of

_MOST = 1000
"""Members of a group, each as often as it is in there, whose tracebacks are told."""
_hidden: set[str] = set()
_ASYNCIO = f"{Path(asyncio.__file__).parent}{os.sep}"
_COMMANDS = f"{Path(errors.__file__).parent / 'cli'}{os.sep}"
"""The command line. Of its code only the demo's handlers run inside jobs, and their frames are shown."""


def hide_frames(file: str) -> None:
    """Hide the frames of all code in the folder of `file`, or below it."""
    _hidden.add(f"{Path(file).parent}{os.sep}")
    _is_hidden.cache_clear()


@cache
def _is_hidden(file: str) -> bool:
    return file.startswith(tuple(_hidden)) and not file.startswith(_COMMANDS)


for _file in (errors.__file__, asyncio.__file__, concurrent.futures.__file__, anyio.__file__):
    hide_frames(_file)


def short_traceback(error: BaseException) -> str:
    """Return the traceback of an error and of its causes, without the libraries' frames.

    Empty for a PayloadError without a frame of the program. Never raises.
    """
    try:
        # lookup_lines=False: source lines are read only for the frames that are shown.
        told = error if _has_few_members(error) else Exception(str(error))
        report = TracebackException(type(error), told, error.__traceback__, lookup_lines=False, compact=True)
        chain = list(_chain(report, error))
        is_ours = not any(_shown(link.stack) for link in chain)
        if is_ours and isinstance(error, PayloadError):
            return ""  # no line of the program is wrong, and the message names the place inside the value
        for link in chain:
            frames = link.stack if is_ours else _shown(link.stack)
            link.stack = StackSummary.from_list([_unmarked(frame) for frame in frames])
        return "".join(report.format())
    except BaseException as own:  # noqa: BLE001  (the user's __str__ or __repr__)
        as_exception(own)
        return ""


def whole_traceback(error: BaseException) -> str:
    """Return the traceback of an error with all frames; empty if its class raises in a look at it."""
    try:
        told = error if _has_few_members(error) else Exception(str(error))
        return "".join(TracebackException(type(error), told, error.__traceback__, compact=True).format())
    except BaseException as own:  # noqa: BLE001  (as above)
        as_exception(own)
        return ""


def _has_few_members(error: BaseException) -> bool:
    """Return whether a report of a group ends soon: it has each member as often as the group does, and asks
    the class.
    """
    count, ahead = 0, [error]
    while ahead and count <= _MOST:
        one = ahead.pop()
        members = members_of(one)
        if members and getattr(type(one), "exceptions", None) is not BaseExceptionGroup.exceptions:
            return False
        ahead += members
        count += 1
    return count <= _MOST


def short_stack(frame: FrameType) -> str:
    """Return a thread's stack from its event loop on, outermost call first, without the libraries' frames."""
    stack = list(traceback.extract_stack(frame))
    first = next((index for index, caller in enumerate(stack) if caller.filename.startswith(_ASYNCIO)), 0)
    return "".join(traceback.format_list(_shown(stack[first:]) or stack))


def _shown(stack: Iterable[FrameSummary]) -> list[FrameSummary]:
    return [frame for frame in stack if not _is_hidden(frame.filename)]


def _unmarked(frame: FrameSummary) -> FrameSummary:
    return FrameSummary(frame.filename, frame.lineno, frame.name, lookup_line=False)


def _chain(told: TracebackException, error: BaseException) -> Iterator[TracebackException]:
    """Yield the report of an error, of its causes and contexts, and of the errors inside groups, each once.

    Removes the causes of a PayloadError from its report, because they may quote the payload.
    """
    seen: set[int] = set()
    ahead: list[tuple[TracebackException | None, BaseException | None]] = [(told, error)]
    while ahead:
        report, raised = ahead.pop()
        if report is None or raised is None or id(report) in seen:
            continue
        seen.add(id(report))
        yield report
        if isinstance(raised, PayloadError):
            report.__cause__ = report.__context__ = None
        ahead += [(report.__cause__, raised.__cause__), (report.__context__, raised.__context__)]
        if isinstance(raised, BaseExceptionGroup):
            inside = cast("BaseExceptionGroup[BaseException]", raised)
            ahead += zip(report.exceptions or (), inside.exceptions, strict=False)
