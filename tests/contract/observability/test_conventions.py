"""OpenTelemetry's conventions for messaging, as the package `opentelemetry-semantic-conventions` has them,
beside our spans and metrics, and beside the tables of `docs/telemetry.md`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.metrics import NoOpMeter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv.attributes import error_attributes, server_attributes

from eventbus import EventContext, EventProvider, HandlerError, Retry
from eventbus.telemetry import spans as telemetry
from eventbus.telemetry.metrics import METRICS
from workflows import StepContext, Workflow, WorkflowProvider
from workflows.distributed.flow_consumer import FLOWS_ENDED

# By name: these modules have no stubs, and their package says that they may move.
_INCUBATING = "opentelemetry.semconv._incubating"
messaging_attributes: Any = import_module(f"{_INCUBATING}.attributes.messaging_attributes")
messaging_metrics: Any = import_module(f"{_INCUBATING}.metrics.messaging_metrics")

MakeProvider = Callable[..., EventProvider]

_PAGE = Path(__file__).parents[3] / "docs" / "telemetry.md"
_ADVISED = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""The boundaries in the conventions' text; their package does not have them."""
_REQUIRED = {
    *("messaging.system", "messaging.operation.name", "messaging.operation.type"),
    *("messaging.destination.name", "messaging.client.id"),
    *("messaging.message.id", "messaging.message.conversation_id", "server.address"),
}
"""What the conventions require of each span, or recommend, of what we know."""
_SHORT = {
    "operation": {"messaging.system", "messaging.operation.name", "messaging.operation.type"},
    "queue": {"eventbus.queue", "messaging.destination.name", "messaging.consumer.group.name"},
    "server": {"server.address", "server.port"},
}


def _table(head: str) -> list[list[str]]:
    """Return the cells of a table of the page, without backticks where a cell is one name."""
    text = _PAGE.read_text()
    assert text.count(f"\n{head}") == 1
    rows = text.partition(f"\n{head}")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def _bare(cell: str) -> str:
    return cell.strip("`")


def _known(*modules: Any) -> set[str]:
    """Return the attributes of the conventions that are not deprecated: their text stands below each
    constant.
    """
    names: set[str] = set()
    for module in modules:
        found = re.findall(
            r'^[A-Z_]+: Final = "([\w.]+)"\n"""\n(\w+)', inspect.getsource(module), re.MULTILINE
        )
        names.update(name for name, first in found if first != "Deprecated")
    return names


class _Made(NoOpMeter):
    """A meter that notes how the package of the conventions makes its instruments."""

    def __init__(self) -> None:
        super().__init__("conventions")
        self.made: dict[str, tuple[str, str, str]] = {}

    def create_counter(self, name: str, unit: str = "", description: str = "") -> Any:
        self.made[name] = ("counter", unit, description)

    def create_histogram(self, name: str, unit: str = "", description: str = "", **_: Any) -> Any:
        self.made[name] = ("histogram", unit, description)


def test_metrics_have_the_names_kinds_units_and_texts_of_the_conventions() -> None:
    meter = _Made()
    for name, make in inspect.getmembers(messaging_metrics, inspect.isfunction):
        if name.startswith("create_") and "Deprecated" not in (make.__doc__ or ""):
            make(meter)
    ours = {name: metric for name, metric in METRICS.items() if name.startswith("messaging.")}
    assert {name: (each.kind, each.unit, each.description) for name, each in ours.items()} == meter.made
    assert {each.bounds for each in ours.values() if each.kind == "histogram"} == {_ADVISED}


def test_attributes_of_metrics_are_those_of_the_conventions_or_have_our_prefix() -> None:
    known = _known(messaging_attributes, error_attributes, server_attributes)
    assert "messaging.operation.type" in known
    assert "messaging.operation" not in known  # deprecated
    for metric in (*METRICS.values(), FLOWS_ENDED):
        for name in metric.attributes:
            assert name in known or name.startswith(("eventbus.", "workflows.")), (metric.name, name)
        if metric.name.startswith("messaging."):
            assert {"messaging.system", "messaging.operation.name"} <= {*metric.attributes}


def test_the_table_of_metrics_is_what_the_code_records() -> None:
    said: dict[str, tuple[str, str, set[str]]] = {}
    for name, kind, unit, attributes, _ in _table("| metric |"):
        listed: set[str] = set()
        for word in filter(None, map(str.strip, attributes.split(","))):
            listed |= _SHORT.get(word, {_bare(word)})
        said[_bare(name)] = (kind, _bare(unit), listed)
    assert said == {
        metric.name: (metric.kind, metric.unit, {*metric.attributes})
        for metric in (*METRICS.values(), FLOWS_ENDED)
    }


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[ReadableSpan]]:
    """Set an SDK for the test; gives the ended spans in order."""
    exporter = InMemorySpanExporter()
    sdk = TracerProvider()
    sdk.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry.trace, "_TRACER_PROVIDER", sdk)
    return lambda: list(exporter.get_finished_spans())


def _shop(provider: EventProvider) -> tuple[WorkflowProvider, dict[str, object]]:
    """Register handlers and a flow; return what of the caller's baggage each function saw."""
    flows, seen = WorkflowProvider(provider), dict[str, object]()
    workflow = Workflow[Any, Any]("checkout", retry=Retry(attempts=1))
    happy = Workflow[Any, Any]("thanks")

    def note(where: str) -> None:
        seen[where] = baggage.get_baggage("tenant")

    @happy.completed
    async def end(ctx: StepContext[Any]) -> None:
        note("completed")

    @workflow.step()
    async def reserve(ctx: StepContext[Any]) -> int:
        note("step")
        return 1

    @reserve.rollback
    async def release(ctx: StepContext[Any], result: int) -> None:
        note("rollback")

    @workflow.step(after=reserve)
    async def charge(ctx: StepContext[Any]) -> None:
        raise ValueError("declined")

    @workflow.failed
    async def tell(ctx: StepContext[Any], error: Any) -> None:
        note("failed")

    @provider.on("placed")
    async def placed(_: Any, ctx: EventContext) -> None:
        note("placed")
        await ctx.emit("noted")
        await (await flows.execute(happy, None)).result()
        await (await flows.execute(workflow, None)).result()

    @provider.on("noted")
    async def noted(_: Any) -> None:
        note("noted")

    flows.register(workflow)
    flows.register(happy)
    return flows, seen


async def test_a_trace_of_emissions_a_flow_and_its_rollback_is_as_the_table_says(
    make_provider: MakeProvider, exported: Callable[[], list[ReadableSpan]]
) -> None:
    provider = make_provider(retry=Retry(attempts=1))
    _, seen = _shop(provider)
    token = context.attach(baggage.set_baggage("tenant", "t-1"))
    caller = telemetry.trace.get_tracer_provider().get_tracer("test")
    try:
        async with provider, provider.worker():
            with caller.start_as_current_span("request"), pytest.raises(HandlerError):
                await provider.emit("placed", correlation_id="req-1")
    finally:
        context.detach(token)
    assert {*seen.values()} == {"t-1"}
    assert {*seen} == {"placed", "noted", "step", "rollback", "failed", "completed"}
    trace_of = _Trace(exported())
    rows = {_bare(row[0]): row[1:] for row in _table("| span |")}
    met = {trace_of.check(span, rows) for span in trace_of.spans.values() if span.name != "request"}
    assert met == {*rows}  # each row of the table was seen


class _Trace:
    """The spans of one trace, and how they are compared with the rows of the table."""

    def __init__(self, spans: list[ReadableSpan]) -> None:
        self.spans: dict[int, ReadableSpan] = {_ids(span)[1]: span for span in spans}
        assert len({_ids(span)[0] for span in spans}) == 1
        self._surroundings = {"send placed": "request", "execute checkout": "process placed"} | {
            "send noted": "process placed",
            "execute thanks": "process placed",
        }
        self._attributes = {_bare(row[0]): row[1] for row in _table("| attribute |")}
        self._known = _known(messaging_attributes, error_attributes, server_attributes)

    def check(self, span: ReadableSpan, rows: dict[str, list[str]]) -> str:
        """Compare a span with its row; return the name of the row."""
        given = dict(span.attributes or {})
        operation, destination = given["messaging.operation.name"], given["messaging.destination.name"]
        step = f".{given['workflows.step']}" if "workflows.step" in given else ""
        assert span.name == f"{operation} {destination}{step}"
        is_flow = "workflows.workflow" in given
        row = f"{operation} {'WORKFLOW' if is_flow else 'EVENT'}{'.STEP' if step else ''}"
        kind, name, type_, parent, links = rows[row]
        assert span.kind is trace.SpanKind[kind.upper()]
        assert (operation, given["messaging.operation.type"]) == (_bare(name), _bare(type_))
        assert type_.strip("`") in {each.value for each in messaging_attributes.MessagingOperationTypeValues}
        self._check_parent(span, parent, str(destination))
        assert {self.spans[link.context.span_id].name for link in span.links} == self._linked(span, links)
        self._check_attributes(span)
        return row

    def _check_parent(self, span: ReadableSpan, said: str, destination: str) -> None:
        assert span.parent is not None
        parent = self.spans[span.parent.span_id].name
        if said.startswith("what surrounds"):
            assert parent == self._surroundings[span.name]
        else:
            assert parent == re.sub("EVENT|WORKFLOW", destination, _bare(said))

    def _linked(self, span: ReadableSpan, said: str) -> set[str]:
        if not said:
            return set()
        if said == "`send EVENT`":
            return {span.name.replace("process", "send")}
        step = (span.attributes or {})["workflows.step"]
        if said == "the step that it undoes":
            return {f"step checkout.{step}"}
        assert said == "the steps that it waited for"
        return {"step checkout.reserve"} if step == "charge" else set()

    def _check_attributes(self, span: ReadableSpan) -> None:
        given = dict(span.attributes or {})
        assert given.keys() >= _REQUIRED
        assert given.keys() <= self._attributes.keys()
        for name in given:
            assert name in self._known or name.startswith(("eventbus.", "workflows."))
        has_failed = span.status.status_code is trace.StatusCode.ERROR
        assert has_failed == ("error.type" in given), span.name
        if has_failed:
            assert span.events[0].name == "exception"
        assert ("messaging.consumer.group.name" in given) == span.name.startswith("process ")
        is_consumer = span.kind is trace.SpanKind.CONSUMER
        assert is_consumer == ("eventbus.attempt" in given) == ("eventbus.worker.id" in given)


def _ids(span: ReadableSpan) -> tuple[int, int]:
    found = span.get_span_context()
    assert found is not None
    return found.trace_id, found.span_id
