"""Who waits for what when everything waits and nothing is due: the text of TimeStandsStill.

What must always hold: it is bounded, whatever the program has; and what cannot be found out is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final

from eventbus.errors import EventBusError
from eventbus.model.states import JobState
from eventbus.provider import EventProvider

_MOST_JOBS = 5
_STATES: Final[Sequence[JobState]] = ("waiting", "parked", "active", "delayed", "waiting-children")
_PATIENCE = "5s"

_LIBRARY = ("eventbus", "workflows", "anyio", "asyncio")


class TimeStandsStill(EventBusError):
    """Everything waits, and nothing is due: time would stand for ever.

    The text names the tasks that wait, each with the file and line of the program's or the test's own code,
    and some of the jobs that wait in the server, each with its reason.
    """


def is_of_library(task: asyncio.Task[Any]) -> bool:
    """Return whether a task runs nothing but code of libraries, which always waits for something."""
    return all(map(_is_library, _frames(task)))


def describe_task(task: asyncio.Task[Any]) -> str:
    """Return the name of a task, and the line of its own code at which it waits."""
    own = [frame for frame in _frames(task) if not _is_library(frame)]
    where = f"{own[-1].f_code.co_filename}:{own[-1].f_lineno}" if own else "its end"
    return f"{task.get_name()} at {where}"


async def describe_jobs(providers: Iterable[EventProvider]) -> list[str]:
    """Return for each job that has not ended why it is in its state; at most five, and how many more.

    Providers with one prefix share their jobs, and so have each described once.
    """
    found: list[str] = []
    more = 0
    for provider in {provider.settings.prefix: provider for provider in providers}.values():
        try:
            inspector = provider.inspector.within(_PATIENCE)
            for queue in await inspector.queues.names():
                page = await inspector.jobs.list(queue, state=_STATES, limit=100)
                room = max(0, _MOST_JOBS - len(found))
                for job in page.jobs[:room]:
                    reason = await inspector.jobs.why(job.id)
                    found.append(f"job {job.id} of {queue}: {reason.text}")
                more += len(page.jobs[room:])
        except EventBusError as error:
            found.append(f"the jobs in the server cannot be listed: {error}")
    return [*found, f"and {more} more"] if more else found


def _frames(task: asyncio.Task[Any]) -> list[Any]:
    """Return the frames of the coroutines and generators in which a task waits, the outermost first."""
    frames: list[Any] = []
    waits: Any = task.get_coro()
    while waits is not None:
        for kind, following in (("cr", "await"), ("ag", "await"), ("gi", "yieldfrom")):
            if (frame := getattr(waits, f"{kind}_frame", None)) is not None:
                frames.append(frame)
                waits = getattr(waits, f"{kind}_{following}", None)
                break
        else:
            break
    return frames


def _is_library(frame: Any) -> bool:
    module: str = frame.f_globals.get("__name__", "")
    return module.partition(".")[0] in _LIBRARY
