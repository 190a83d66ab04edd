"""Finding jobs by a field of their payload: `order_id:7`, `customer.name:Ada`.

No index has it, because that would cost each emission. So the newest jobs of one queue and state are looked
at in the server, which hands out those whose body holds the text; what they hold is then compared here.

What must always hold: a search looks at 10,000 jobs at most, and for two seconds; it says how many it has
seen, and has a cursor to go on from if there are more. A field that is marked as sensitive is hidden before
it is compared, so nobody finds a job by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from eventbus.admin.jobs.job_cursor import write_cursor
from eventbus.admin.jobs.job_report import report_of
from eventbus.admin.jobs.lookups import FoundJob, found_job
from eventbus.emit.route import Routes
from eventbus.errors import DefinitionError
from eventbus.model import clock
from eventbus.model.names import EVENT_QUEUES, shown, split_group
from eventbus.model.redaction.hidden_values import HiddenValues
from eventbus.model.redaction.redacting import Names
from eventbus.store.bounds import PAGE_JOBS
from eventbus.store.calls.queries import Cursor, JobRow
from eventbus.store.store import Store

MOST_SEEN = 10_000
_ENOUGH = 100
_SECONDS = 2.0
_LONGEST = 512
_AT_ONCE = 16


class FieldMatches(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs that were found. `seen` is how many were looked at; `cursor` goes on behind them, None if
    these were all.
    """

    jobs: list[FoundJob]
    seen: int
    cursor: str | None


class FieldSearch:
    """One search in the jobs of a queue and state."""

    def __init__(
        self,
        store: Store,
        routes: Routes,
        path_and_value: tuple[tuple[str, ...], str],
        *,
        names: Names | None,
        deadline: float,
    ) -> None:
        self._store = store
        self._routes = routes
        self._path, self._value = path_and_value
        self._names = names
        self._deadline = deadline
        if names is not None and (hidden := next(filter(names, self._path), None)) is not None:
            raise DefinitionError(f"the values of field {hidden!r} are hidden, so no job is found by them")

    async def run(self, queue: str, state: str, place: Cursor | None) -> FieldMatches:
        """Look at the jobs behind a place, as far as the bounds go."""
        end, found, seen = clock.monotonic() + _SECONDS, list[FoundJob](), 0
        sought = _sought(self._path, self._value)
        while place is not None and seen < MOST_SEEN and len(found) < _ENOUGH and clock.monotonic() < end:
            # As many as one call looks at, so that a page never ends early because of what it has found: that
            # would tell of hidden values.
            page, looked = await self._store.inspection.sift(
                queue, state, sought, cursor=place, limit=PAGE_JOBS, deadline=self._deadline
            )
            seen += looked
            found += await self._compare(page.jobs)
            place = page.cursor
        return FieldMatches(jobs=found, seen=seen, cursor=None if place is None else write_cursor(place))

    async def _compare(self, rows: list[JobRow]) -> list[FoundJob]:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def look(job: str) -> FoundJob | None:
            async with gate:
                found = await self._store.inspection.job(job, deadline=self._deadline)
            if not found.fields:
                return None
            name = split_group(found.fields.get("queue", ""))[0].removeprefix(EVENT_QUEUES)
            hidden = HiddenValues(found.body, self._routes.known(name), job_id=job, names=self._names)
            is_meant = has_field(report_of(job, found, hidden).payload, self._path, self._value)
            return found_job(job, found) if is_meant else None

        return [job for job in await asyncio.gather(*(look(row.id) for row in rows)) if job is not None]


def read_field(text: str) -> tuple[tuple[str, ...], str]:
    """Return the path and the value of `a.b:x`. Raises DefinitionError."""
    path, between, value = text.partition(":")
    parts = tuple(path.split("."))
    if not between or not value or not all(parts) or len(text) > _LONGEST:
        raise DefinitionError(f"expected FIELD:VALUE, such as order_id:7, got: {shown(text)}")
    return parts, value


def has_field(payload: Any, path: tuple[str, ...], value: str) -> bool:
    """Return whether a payload has this value, as text, at this path."""
    for part in path:
        if isinstance(payload, Mapping):
            payload = cast("Mapping[str, Any]", payload).get(part)
        elif isinstance(payload, list) and part.isdecimal() and int(part) < len(cast("list[Any]", payload)):
            payload = cast("list[Any]", payload)[int(part)]
        else:
            return False
    if isinstance(payload, (dict, list)) or payload is None:
        return False
    return value == (payload if isinstance(payload, str) else msgspec.json.encode(payload).decode())


def _sought(path: tuple[str, ...], value: str) -> str:
    """Return the text that the body of such a job has in any case."""
    inner = msgspec.json.encode(value).decode()[1:-1]
    try:
        is_text = isinstance(msgspec.json.decode(value), (str, dict, list))
    except msgspec.DecodeError:
        is_text = True
    if is_text and not path[-1].isdecimal():  # it can only stand there as text
        return f'{msgspec.json.encode(path[-1]).decode()}:"{inner}"'
    return inner
