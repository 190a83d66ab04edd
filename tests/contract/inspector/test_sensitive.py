"""Fields that are marked as sensitive: handlers and emitters get them, and nobody sees them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, date, datetime
from typing import Annotated, Any

import msgspec
import pytest
import structlog
from importable.paying import (
    Order,
    PlainOrder,
    Receipt,
    Refused,
    paid,
    refuse_at_length,
    refuse_payment,
    refused,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from structlog.testing import LogCapture

from eventbus import Batch, Event, EventContext, EventProvider, HandlerError, PayloadError, Retry, Sensitive
from eventbus.telemetry import spans
from workflows import StepContext, Workflow, WorkflowProvider

MakeProvider = Callable[..., EventProvider]
Until = Callable[..., Awaitable[None]]

CARD = "4111-1111-1111"


@pytest.fixture
async def other(make_provider: MakeProvider) -> AsyncIterator[EventProvider]:
    """A provider that knows no definition of any event, as a command or a dashboard."""
    async with make_provider() as provider:
        yield provider


@pytest.fixture
def logged() -> Any:
    structlog.configure(processors=[LogCapture()])
    (capture,) = structlog.get_config()["processors"]
    yield capture.entries
    structlog.reset_defaults()


async def test_a_handler_and_its_emitter_get_the_values_and_a_look_does_not_show_them(
    make_provider: MakeProvider, other: EventProvider
) -> None:
    provider = make_provider()
    got: list[str] = []

    @provider.on(paid)
    async def pay(order: Order) -> Receipt:
        got.append(order.card)
        return Receipt(7, "c0de")

    async with provider.worker():
        emission = provider.emit(paid, Order("o-1", CARD))
        assert (await emission).code == "c0de"
    assert got == [CARD]
    report = await other.inspector.jobs.get(emission.job_id)
    assert report.payload["id"] == "o-1"
    assert report.payload["card"].startswith("•••")
    assert report.result["number"] == 7
    assert report.result["code"].startswith("•••")
    revealed = await other.inspector.jobs.get(emission.job_id, reveal=True)
    assert revealed.payload == {"id": "o-1", "card": CARD}
    assert revealed.result == {"number": 7, "code": "c0de"}


@pytest.mark.parametrize(
    "options", [{"delay": "1 hour"}, {"idempotency_key": "k"}, {"meta": {"tenant": "a"}}, {"timeout": 5}]
)
async def test_the_marks_travel_with_each_kind_of_emission(
    make_provider: MakeProvider, other: EventProvider, options: dict[str, Any]
) -> None:
    async with make_provider() as provider:
        emission = provider.emit(paid, Order("o-1", CARD), reply=False, **options)
        await emission.enqueued()
    assert CARD not in str(await other.inspector.jobs.get(emission.job_id))


async def test_the_marks_stay_when_somebody_replaces_the_payload(
    make_provider: MakeProvider, other: EventProvider
) -> None:
    async with make_provider() as provider:
        emission = provider.emit(paid, Order("o-1", CARD), reply=False)
        await emission.enqueued()
        await provider.inspector.jobs.replace_payload(paid, emission.job_id, Order("o-2", "5555-5555"))
    report = await other.inspector.jobs.get(emission.job_id)
    assert report.payload["id"] == "o-2"
    assert "5555-5555" not in str(report)


async def test_what_a_report_shows_does_not_replace_the_value(make_provider: MakeProvider) -> None:
    async with make_provider() as provider:
        emission = provider.emit(paid, Order("o-1", CARD), reply=False)
        await emission.enqueued()
        shown = (await provider.inspector.jobs.get(emission.job_id)).payload
        for call in (
            provider.inspector.jobs.replace_payload(paid, emission.job_id, Order("o-2", shown["card"])),
            provider.inspector.jobs.edit(emission.job_id, {**shown, "id": "o-2"}),
        ):
            with pytest.raises(PayloadError, match=r"holds at \$.card what is only shown"):
                await call
        whole = await provider.inspector.jobs.get(emission.job_id, reveal=True)
    assert whole.payload == {"id": "o-1", "card": CARD}


async def test_what_a_schedule_emits_has_the_marks(make_provider: MakeProvider, other: EventProvider) -> None:
    async with make_provider() as provider:
        schedule = await provider.schedules.add(
            paid, id="nightly", every="1 hour", payload=Order("o-1", CARD)
        )
        job_id = await schedule.run_now()
    assert CARD not in str(await other.inspector.jobs.get(job_id))


async def test_a_provider_that_knows_the_event_hides_what_was_emitted_by_name(
    make_provider: MakeProvider,
) -> None:
    async with make_provider() as emitter:
        emission = emitter.emit("order.paid", {"id": "o-1", "card": CARD}, reply=False)
        await emission.enqueued()
    provider = make_provider()
    provider.on(paid)(_pay)
    async with provider:
        assert CARD not in str(await provider.inspector.jobs.get(emission.job_id))


async def _pay(order: Order) -> Receipt:
    return Receipt(1, order.card)


@pytest.mark.parametrize("pool", [None, "process"])
async def test_an_error_that_quotes_a_value_shows_it_nowhere(
    make_provider: MakeProvider, other: EventProvider, logged: list[dict[str, Any]], pool: Any
) -> None:
    provider = make_provider()
    options: dict[str, Any] = {} if pool is None else {"pool": pool}
    provider.on(paid, retry=Retry(attempts=2, delay=0), **options)(refuse_payment)
    async with provider.worker():
        emission = provider.emit(paid, Order("o-1", CARD))
        with pytest.raises(HandlerError) as raised:
            await emission
    assert "was declined" in str(raised.value)
    assert CARD not in f"{raised.value} {raised.value.remote_traceback} {raised.value.causes}"
    report = await other.inspector.jobs.get(emission.job_id)
    assert len(report.failures) == 2
    assert CARD not in str(report)
    assert [entry["event"] for entry in logged if "error" in entry] == [
        "attempt failed, trying again",
        "job failed",
    ]
    assert CARD not in str(logged)


@pytest.mark.parametrize("is_marked", [True, False], ids=["marked", "plain"])
async def test_a_span_records_the_error_without_the_value(
    make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch, is_marked: bool
) -> None:
    exporter, sdk = InMemorySpanExporter(), TracerProvider()
    sdk.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(spans.trace, "_TRACER_PROVIDER", sdk)
    event: Any = paid if is_marked else Event("plain", payload=PlainOrder, result=Receipt)
    provider = make_provider()
    provider.on(event, retry=Retry(attempts=1))(refuse_payment)
    async with provider.worker():
        with pytest.raises(HandlerError):
            await provider.emit(event, Order("o-1", CARD) if is_marked else PlainOrder("o-1", CARD))
    (span,) = [each for each in exporter.get_finished_spans() if each.name.startswith("process")]
    (recorded,) = span.events
    facts = dict(recorded.attributes or {})
    assert (recorded.name, facts["exception.type"]) == ("exception", "ValueError")
    assert "Traceback" in str(facts["exception.stacktrace"])
    assert (span.status.status_code, (span.attributes or {})["error.type"]) == (
        StatusCode.ERROR,
        "ValueError",
    )
    told = f"{facts} {span.status.description}"
    assert "was declined" in told
    assert (CARD in told) != is_marked


async def test_a_declared_error_comes_with_its_own_arguments(make_provider: MakeProvider) -> None:
    provider = make_provider()

    @provider.on(refused)
    async def refuse(order: Order) -> Receipt:
        raise Refused(order.card)

    async with provider.worker():
        with pytest.raises(Refused) as raised:
            await provider.emit(refused, Order("o-1", CARD))
    assert raised.value.args == (CARD,)


async def test_the_errors_of_a_batch_are_those_of_their_own_jobs(
    make_provider: MakeProvider, other: EventProvider
) -> None:
    provider = make_provider()

    @provider.on(paid, batch=Batch(size=2, wait="50ms"), retry=Retry(attempts=1))
    async def pay(orders: list[Order]) -> list[Receipt | Exception]:
        return [ValueError(f"declined: {order.card}") for order in orders]

    async with provider.worker():
        emissions = [provider.emit(paid, Order("o", f"{CARD}-{number}")) for number in range(2)]
        for emission in emissions:
            with pytest.raises(HandlerError, match="declined: •••"):
                await emission
    for emission in emissions:
        assert CARD not in str(await other.inspector.jobs.get(emission.job_id))


async def test_the_input_and_the_output_of_a_flow_are_hidden(
    make_provider: MakeProvider, other: EventProvider
) -> None:
    workflow: Workflow[Order, Receipt] = Workflow("checkout", input=Order, output=Receipt)

    @workflow.step()
    async def charge(ctx: StepContext[Order]) -> str:
        return ctx.input.card

    @workflow.completed
    async def receipt(ctx: StepContext[Order]) -> Receipt:
        return Receipt(3, ctx.result(charge))

    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(workflow)
    async with provider.worker():
        handle = await flows.execute(workflow, Order("o-1", CARD))
        assert (await handle.result()).code == CARD
    report = await other.inspector.jobs.get(handle.id)
    assert report.payload["i"]["id"] == "o-1"
    assert report.result["number"] == 3
    assert CARD not in str(report)
    assert CARD in str(await other.inspector.jobs.get(handle.id, reveal=True))


async def test_an_error_of_a_whole_batch_shows_no_value_of_any_of_its_jobs(
    make_provider: MakeProvider, other: EventProvider
) -> None:
    provider = make_provider()

    @provider.on(paid, batch=Batch(size=2, wait="5s"), retry=Retry(attempts=1))
    async def pay(orders: list[Order]) -> list[Receipt]:
        raise ValueError(", ".join(order.card for order in orders))

    async with provider.worker():
        emissions = [provider.emit(paid, Order("o", f"{CARD}-{number}")) for number in range(2)]
        for emission in emissions:
            with pytest.raises(HandlerError) as raised:
                await emission
            assert CARD not in str(raised.value)


async def test_a_value_that_repr_writes_in_another_way_is_hidden(make_provider: MakeProvider) -> None:
    provider, secret = make_provider(), "dom\\user\nline \u00e4"

    @provider.on(paid, retry=Retry(attempts=1))
    async def pay(order: Order) -> Receipt:
        raise KeyError(order.card)

    async with provider.worker():
        with pytest.raises(HandlerError) as raised:
            await provider.emit(paid, Order("o", secret))
    assert repr(secret)[1:-1] not in raised.value.remote_message
    assert "•••" in raised.value.remote_message


async def test_an_error_that_a_worker_recorded_has_no_digits_which_would_differ_from_those_of_the_payload(
    make_provider: MakeProvider,
) -> None:
    provider = make_provider()
    provider.on(paid, retry=Retry(attempts=1))(refuse_payment)
    async with provider.worker():
        emission = provider.emit(paid, Order("o-1", CARD))
        with pytest.raises(HandlerError) as raised:
            await emission
        report = await provider.inspector.jobs.get(emission.job_id)
    assert report.payload["card"].startswith("•••")
    assert "•••" in raised.value.remote_message
    assert re.search(r"•••\w", raised.value.remote_message + report.error) is None


@pytest.mark.parametrize("pool", [None, "process"])
async def test_no_part_of_a_value_stands_where_a_long_error_was_cut(
    make_provider: MakeProvider, other: EventProvider, pool: Any
) -> None:
    provider = make_provider()
    options: dict[str, Any] = {} if pool is None else {"pool": pool}
    provider.on(paid, retry=Retry(attempts=1), **options)(refuse_at_length)
    async with provider.worker():
        emission = provider.emit(paid, Order("o-1", "ZqKxWvJuHyGw"))
        with pytest.raises(HandlerError) as raised:
            await emission
    report = await other.inspector.jobs.get(emission.job_id)
    (failure,) = report.failures
    told = [failure.message, failure.causes[0][1], raised.value.remote_message, report.error]
    assert all("characters left out" in text for text in told)
    for text in (*told, failure.traceback, raised.value.remote_traceback):
        assert not re.search("Zq|qK|Kx|xW|Wv|vJ|Ju|uH|Hy|yG|Gw", text)


class Signed(msgspec.Struct):
    """A payload with sensitive values that JSON writes in another way than Python."""

    key: Annotated[bytes, Sensitive()]
    born: Annotated[date, Sensitive()]
    seen: Annotated[datetime, Sensitive()]


async def test_bytes_and_dates_are_hidden_as_python_writes_them(make_provider: MakeProvider) -> None:
    provider = make_provider()
    event = Event("signed", payload=Signed)

    @provider.on(event, retry=Retry(attempts=1))
    async def sign(given: Signed) -> None:
        raise ValueError(f"{given!r}, key {given.key.decode()}, born {given.born}, seen {given.seen}")

    async with provider.worker():
        with pytest.raises(HandlerError) as raised:
            await provider.emit(
                event, Signed(b"pass-word", date(1971, 12, 24), datetime(2026, 3, 1, 9, tzinfo=UTC))
            )
    assert not re.search("pass|1971|2026", raised.value.remote_message)
    assert raised.value.remote_message.count("•••") == 6


async def test_progress_lines_and_results_that_repeat_a_value_do_not_show_it(
    make_provider: MakeProvider, other: EventProvider
) -> None:
    provider = make_provider()
    told = Event("told", payload=Order, result=dict[str, Any])

    @provider.on(told)
    async def tell(order: Order, ctx: EventContext) -> dict[str, Any]:
        await ctx.progress({"at": [f"charging {order.card}"], "of": 3})
        ctx.keep_line(f"charged {order.card}")
        return {"text": f"charged {order.card}", "n": 7}

    async with provider, provider.worker():
        emission = provider.emit(told, Order("o-1", CARD))
        assert await emission == {"text": f"charged {CARD}", "n": 7}
    report = await other.inspector.jobs.get(emission.job_id)
    card = "•••"
    assert (report.result, report.progress) == (
        {"text": f"charged {card}", "n": 7},
        {"at": [f"charging {card}"], "of": 3},
    )
    assert [each.text for each in report.lines] == [f"charged {card}"]
    whole = await other.inspector.jobs.get(emission.job_id, reveal=True)
    assert (whole.result["text"], whole.progress["at"]) == (f"charged {CARD}", [f"charging {CARD}"])
