"""Contexts: results that are loaded, results that are not, and results that may not be read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import msgspec
import pytest

from eventbus import DefinitionError, PayloadError, UsageError
from eventbus.lowlevel import Attempt, outside_job
from workflows.definition.codecs import Codecs
from workflows.definition.context import StepContext
from workflows.definition.flow_tools import FlowFacts
from workflows.definition.workflow import Workflow
from workflows.errors import ResultNotLoaded, StepSkipped
from workflows.execution.environment import InlineTools
from workflows.execution.step_attempt import MemoryHost
from workflows.records.records import StepRecord


class Point(msgspec.Struct):
    x: int


async def a(ctx: StepContext[Any]) -> Point:
    return Point(1)


async def b(ctx: StepContext[Any]) -> None: ...


async def c(ctx: StepContext[Any]) -> None: ...


async def d(ctx: StepContext[Any]) -> None: ...


_WORKFLOW: Workflow[Any, Any] = Workflow("w").then(a, b, c, d)
_POINT = StepRecord(result=msgspec.Raw(b'{"x":1}'))


class _Tools(InlineTools):
    """Records on request, and who asked."""

    def __init__(self, records: Mapping[str, StepRecord]) -> None:
        super().__init__(None, records)
        self.asked: list[str] = []

    async def load_record(self, step: str) -> StepRecord | None:
        self.asked.append(step)
        return await super().load_record(step)


def _context(
    records: dict[str, StepRecord],
    *,
    reach: tuple[str, ...] = ("a", "b"),
    unloaded: tuple[str, ...] = (),
    tools: Any = None,
    traceparent: str = "",
) -> StepContext[Any]:
    return StepContext(
        tools or _Tools({}),
        Codecs(_WORKFLOW),
        FlowFacts(flow_id="w~1", meta={"m": 1}, correlation_id="c-1"),
        input=None,
        step="c",
        job_id="j",
        attempt=2,
        traceparent=traceparent,
        records=records,
        reach=reach,
        unloaded=unloaded,
        own=Attempt(MemoryHost(), outside_job("j"), ""),
    )


def test_a_result_is_found_by_step_function_and_name_and_is_typed() -> None:
    ctx = _context({"a": _POINT})
    assert ctx.result(a) == ctx.result("a") == ctx.result(_WORKFLOW.steps["a"]) == Point(1)
    assert ctx.result(a) is ctx.result("a")  # decoded once
    assert dict(ctx.results) == {"a": Point(1)}


def test_results_cannot_be_changed() -> None:
    results = _context({"a": _POINT}).results
    with pytest.raises(TypeError):
        cast("Any", results)["a"] = 1


def test_a_skipped_step_has_no_result_but_a_default() -> None:
    ctx = _context({"a": StepRecord(skipped=True)})
    assert ctx.result(a, default=None) is None
    assert ctx.result(a, default=5) == 5
    assert dict(ctx.results) == {}
    with pytest.raises(StepSkipped, match="'a' of workflow 'w' was skipped") as caught:
        ctx.result(a)
    assert (caught.value.step, caught.value.workflow) == ("a", "w")


def test_a_step_that_did_not_complete_is_told_apart_from_a_skipped_one() -> None:
    ctx = _context({}, reach=("a", "b", "c", "d"))
    with pytest.raises(StepSkipped, match="'d' of workflow 'w' did not complete"):
        ctx.result(d)
    assert ctx.result(d, default=0) == 0


@pytest.mark.parametrize("step", ["c", "d", c])
def test_what_does_not_run_before_may_not_be_asked_for(step: Any) -> None:
    with pytest.raises(DefinitionError, match=r"step 'c' of workflow 'w' asks for the result of step '[cd]'"):
        _context({"a": _POINT}).result(step)


def test_a_step_of_nobody_is_named() -> None:
    with pytest.raises(DefinitionError, match="'nobody' is no step of workflow 'w'"):
        _context({}).result("nobody")


def test_what_was_not_loaded_says_how_to_load_it() -> None:
    with pytest.raises(ResultNotLoaded, match=r"await ctx.load\('a'\)"):
        _context({}, unloaded=("a",)).result(a, default=1)


async def test_load_asks_for_what_was_not_loaded_and_for_nothing_else() -> None:
    tools = _Tools({"a": _POINT})
    ctx = _context({"b": StepRecord()}, unloaded=("a",), tools=tools)
    assert await ctx.load(b) is None
    assert await ctx.load(a) == Point(1)
    assert tools.asked == ["a"]
    assert ctx.result("b") is None


async def test_load_of_what_did_not_complete_is_no_result() -> None:
    ctx = _context({}, unloaded=("a",))
    assert await ctx.load(a, default=3) == 3
    with pytest.raises(StepSkipped):
        await ctx.load(a)


def test_a_record_that_does_not_fit_names_its_step() -> None:
    ctx = _context({"a": StepRecord(result=msgspec.Raw(b'{"x":"one"}'))})
    with pytest.raises(PayloadError, match=r'result of "w.a" \(Point\)'):
        ctx.result(a)


def test_the_log_knows_the_trace(logs: list[dict[str, Any]]) -> None:
    ctx = _context({}, traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    ctx.log.info("here")
    ctx.log.info("again")
    assert logs[0] == {
        "event": "here",
        "log_level": "info",
        "flow_id": "w~1",
        "workflow": "w",
        "step": "c",
        "job_id": "j",
        "attempt": 2,
        "correlation_id": "c-1",
        "meta": {"m": 1},
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
    }
    assert len(logs) == 2


async def _pool() -> AsyncIterator[str]:
    yield "never made here"


def test_without_a_provider_emitting_says_what_is_missing() -> None:
    ctx = _context({})
    for use in (lambda: ctx.emit("e"), lambda: ctx.emit_many("e", []), lambda: ctx.shared(_pool)):
        with pytest.raises(UsageError, match=r"run_inline\(..., provider=provider\)"):
            use()


def test_with_a_provider_it_does_the_work() -> None:
    class Provider:
        def emit(self, *args: Any, **options: Any) -> Any:
            return ("emit", args, options)

        def emit_many(self, *args: Any, **options: Any) -> Any:
            return ("emit_many", args, options)

        def shared(self, lifespan: Any) -> Any:
            return ("shared", lifespan)

    ctx = _context({}, tools=InlineTools(Provider(), {}))
    assert ctx.emit("e", 1, delay=2) == ("emit", ("e", 1), {"delay": 2})
    assert ctx.emit_many("e", [1]) == ("emit_many", ("e", [1]), {})
    assert ctx.shared(_pool) == ("shared", _pool)
