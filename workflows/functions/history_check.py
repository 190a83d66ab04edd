"""Checking code against a history: does a function still do what a flow of it has recorded?

What must always hold: nothing is done and nothing is recorded; the first call that is not recorded ends the
check.
"""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import msgspec

from eventbus import PayloadError, UsageError
from eventbus.lowlevel import Attempt, Signal, outside_job
from workflows.errors import NonDeterminismError
from workflows.execution.step_attempt import MemoryHost
from workflows.execution.surroundings import FlowClock, NoChildren, Surroundings
from workflows.functions.calls.kept import Kept, kept_entries
from workflows.functions.context import FlowContext
from workflows.functions.definition import Durable, DurableCodecs
from workflows.functions.endings import Diverged
from workflows.functions.function_run import FunctionRun
from workflows.functions.history import History
from workflows.records.entries import Entry, encode_entry, read_entries
from workflows.records.ids import workflow_of


class FlowHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What a flow has recorded, as a file holds it: `entries` are those of its journal. Times are Unix times
    in ms.
    """

    flow_id: str
    version: str
    input: msgspec.Raw
    created_ms: int
    run: int = 1
    entries: tuple[msgspec.Raw, ...] = ()
    is_redacted: bool = False

    def read(self) -> list[Entry]:
        """Return the entries. Raises StoreCorrupt for what is none."""
        return read_entries(self.flow_id, [bytes(entry).decode() for entry in self.entries])


async def check_history(durable: Durable[Any, Any], history: FlowHistory) -> NonDeterminismError | None:
    """Run a function against a history, without effects; return the mismatch if there is one."""
    codecs = DurableCodecs(durable)
    kept = kept_entries(history.read())
    recorded = History(kept.entries, created_ms=history.created_ms, number=kept.first, loose=kept.loose)
    around = _nothing(durable, history, kept)
    run = FunctionRun(durable, codecs, recorded, _Nowhere(), around, has_effects=False)
    try:
        given = codecs.input.decode(memoryview(kept.input if kept.input is not None else history.input))
    except PayloadError as error:
        if not history.is_redacted:
            raise
        raise UsageError(
            f"the input of this history does not fit {durable.where}: {error}; its texts are redacted, "
            "and what takes their place is not of that type; export the flow without --redact"
        ) from error
    context: FlowContext[Any] = FlowContext(run, given, number=history.run)
    ending = await run.run(durable.function(context))
    if not isinstance(ending, Diverged):
        return None
    return _doubted(ending.error) if history.is_redacted else ending.error


def _doubted(error: NonDeterminismError) -> NonDeterminismError:
    told = (
        f"{error}; the texts of this history are redacted, "
        "so code that depends on them may have gone another way"
    )
    return NonDeterminismError(
        told, flow_id=error.flow_id, position=error.position, recorded=error.recorded, asked=error.asked
    )


def redacted(history: FlowHistory) -> FlowHistory:
    """Return a history without texts: each text in inputs, results and errors is `***`; numbers and names
    stay.

    Dates, times, durations, UUIDs and numbers in texts become others of their kind, so that they can still be
    read.
    """
    entries = [msgspec.Raw(encode_entry(_without_texts(entry)).encode()) for entry in history.read()]
    return msgspec.structs.replace(
        history, input=_hidden(history.input), entries=tuple(entries), is_redacted=True
    )


def _without_texts(entry: Entry) -> Entry:
    changes: dict[str, Any] = {"result": _hidden(entry.result)}
    if entry.failure:
        failure: dict[str, Any] = msgspec.json.decode(entry.error)
        changes["error"] = msgspec.Raw(msgspec.json.encode(_without_words(failure)))
    return msgspec.structs.replace(entry, **changes)


_FACTS = frozenset(
    ("type", "attempts", "declared", "flow_id", "workflow", "step", "job", "timeout", "rollback")
)
"""What stays of the record of an error, or of that of a flow: names, ids and numbers."""


def _without_words(failure: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in failure.items() if name in _FACTS}
    if failure.get("error"):  # of the step that a flow failed with
        kept["error"] = _without_words(failure["error"])
    if failure.get("reason"):
        kept["reason"] = "***"
    return {**kept, "message": "***"}


def _hidden(text: msgspec.Raw) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(_hide(msgspec.json.decode(text))))


_SHAPES: tuple[tuple[Any, str], ...] = (
    (uuid.UUID, "00000000-0000-4000-8000-000000000000"),
    (dt.datetime, "2000-01-01T00:00:00"),
    (dt.date, "2000-01-01"),
    (dt.time, "00:00:00"),
    (dt.timedelta, "P1D"),
    (decimal.Decimal, "1"),
)
"""Kinds of values that JSON has as texts, each with the one that takes its place."""


def _hide_text(text: str) -> str:
    for kind, instead in _SHAPES:
        try:
            value = msgspec.convert(text, kind)
        except msgspec.ValidationError:
            continue
        has_zone = isinstance(value, (dt.datetime, dt.time)) and value.tzinfo is not None
        return f"{instead}Z" if has_zone else instead
    return "***"


def _hide(value: Any) -> Any:
    if isinstance(value, str):
        return _hide_text(value)
    if isinstance(value, list):
        return [_hide(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, dict):
        return {name: _hide(one) for name, one in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return value


class _Nowhere:
    """Records nothing: a run without effects has nothing to record."""

    signals: Sequence[Signal] = ()

    def __init__(self) -> None:
        self.clock: FlowClock = FlowClock(0)

    async def append(
        self, entries: Sequence[Entry], *, live: Mapping[str, str] | None = None, taken: Sequence[str] = ()
    ) -> None:
        """Do nothing."""

    async def wait_until(self, time_ms: int) -> None:
        """Do nothing."""

    async def listen(self) -> None:
        """Do nothing."""

    async def refresh(self) -> None:
        """Do nothing."""


class _Elsewhere(NoChildren):
    """The children of a history, which are jobs of a server: nothing of them begins here."""

    are_here = False


class _NoTools:
    """What the code may ask of its worker: there is none."""

    def shared(self, lifespan: Callable[..., Any]) -> Any:
        del lifespan

    @property
    def emits(self) -> NoReturn:
        raise UsageError("a check of a history emits nothing")


def _nothing(durable: Durable[Any, Any], history: FlowHistory, kept: Kept) -> Surroundings:
    return Surroundings(
        flow_id=history.flow_id,
        run=kept.run_of(history.run),
        seed=kept.seed_of(history.run),
        workflow=workflow_of(history.flow_id),
        tools=_NoTools(),
        own=Attempt(MemoryHost(), outside_job(history.flow_id)),
        call_sync=_never,
        sleep=_never,
        span=_no_span,
        facts={"workflow": durable.name, "flow_id": history.flow_id},
        children=_Elsewhere(),
    )


def _no_span(_what: str, _label: str, _attempt: int) -> AbstractContextManager[str]:
    return nullcontext("")


def _never(_what: Any) -> Awaitable[Any]:
    raise UsageError("a check of a history runs no step")
