"""Places that a small slip would break without anybody seeing it: each has a test that fails then."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request

from eventbus import ConfigError, EventProvider, UsageError
from eventbus.dashboard import Actor
from eventbus.dashboard.entry.origin import Origins
from eventbus.dashboard.entry.rights import Rights, Target, reads_of
from eventbus.dashboard.entry.sessions import Sessions
from eventbus.engine.job import park
from eventbus.engine.job_actions import JobActions
from eventbus.engine.job_pages import count_jobs
from eventbus.model.url_redaction import redact
from eventbus.store.calls.operation_store import OperationRecord
from eventbus.store.connection.connector import Connector
from eventbus.store.readable import is_number, number, readable
from eventbus.store.store import Store
from eventbus.telemetry.metrics import OTHER, Bounded


def test_a_rule_for_an_event_counts_for_its_groups() -> None:
    rights = Rights(may=None, actions={"payout": {"job.cancel": False}}, is_read_only=False)
    for event, may in (("payout", False), ("payout@bank", False), ("payouts", True), ("pay", True)):
        refusal = rights.refusal(Actor("ann"), "job.cancel", Target("job", "1", event))
        assert (refusal == "") is may, event
    narrow = Rights(may=None, actions={"payout@bank": {"job.cancel": False}}, is_read_only=False)
    assert narrow.refusal(Actor("ann"), "job.cancel", Target("job", "1", "payout")) == ""
    assert narrow.refusal(Actor("ann"), "job.cancel", Target("job", "1", "payout@bank"))


def test_what_is_about_an_event_needs_the_right_to_see_it() -> None:
    assert reads_of(Target("queue", "event.a", "a")) == ("queue.read",)
    assert reads_of(Target("job", "1", "a")) == ("queue.read", "job.read")
    assert reads_of(Target("schedule", "s", "a")) == ("queue.read", "schedule.read")
    assert "flow.read" in reads_of(Target("schedule", "s", "workflow.w"))
    assert "flow.read" in reads_of(Target("queue", "workflow.w", "workflow.w"))


@pytest.mark.parametrize(
    ("forwarded", "address"),
    [
        ("", "10.0.0.1"),
        ("1.2.3.4", "1.2.3.4"),
        ("1.2.3.4, 10.0.0.2", "1.2.3.4"),
        ("9.9.9.9, 1.2.3.4, 10.0.0.3, 10.0.0.2", "1.2.3.4"),
        ("10.0.0.3, 10.0.0.2", "10.0.0.3"),
    ],
)
def test_an_address_is_looked_for_behind_all_proxies_that_are_trusted(forwarded: str, address: str) -> None:
    origins = Origins(allowed_hosts=None, public_origin=None, trusted_proxies=["10.0.0.0/8"])
    headers = [(b"x-forwarded-for", forwarded.encode())] if forwarded else []
    scope = {"type": "http", "client": ("10.0.0.1", 1), "headers": headers}
    assert origins.address(Request(scope)) == address
    scope["client"] = ("8.8.8.8", 1)
    assert origins.address(Request(scope)) == "8.8.8.8"


def test_another_token_ends_the_sessions_of_the_one_before() -> None:
    secret = "s" * 32
    before, same, after, none = (Sessions(secret, token) for token in ("a" * 16, "a" * 16, "b" * 16, None))
    header = before.begin(Actor("token"), is_secure=False)
    name, _, value = header.partition(";")[0].partition("=")
    assert same.read({name: value}, is_secure=False) == Actor("token")
    for other in (after, none):
        fresh = other.begin(Actor("token"), is_secure=False).partition("=")[0]
        assert other.read({name: value, fresh: value}, is_secure=False) is None


async def test_a_job_that_is_gone_when_its_batch_is_repeated_counts_as_removed(store: Store) -> None:
    actions = JobActions(store, key_ttl_ms=1000)
    record = OperationRecord(id="op", action="remove", queue="event.a", of="waiting", number=1)
    assert await actions.apply(record, ["gone-1", "gone-2"]) == 2


@pytest.mark.parametrize(
    "other",
    [{"action": "remove"}, {"queue": "b"}, {"state": "delayed"}, {"error": "ValueError"}, {"jobs": ["x"]}],
    ids=str,
)
async def test_an_id_of_an_operation_stands_for_one_meaning(
    make_provider: Any, other: dict[str, Any]
) -> None:
    meant: dict[str, Any] = {"action": "cancel", "queue": "a", "state": "waiting"}
    if other == {"error": "ValueError"}:
        meant = {"action": "retry", "queue": "a", "state": "failed"}
    async with make_provider() as provider:
        if "jobs" in other:
            meant = {"action": "cancel", "queue": "a", "jobs": ["y"]}
        await _begin(provider, meant)
        await _begin(provider, meant)  # the same one
        with pytest.raises(UsageError, match="is another one"):
            await _begin(provider, {**meant, **other})
        await provider.inspector.operations.run()


async def _begin(provider: EventProvider, meant: dict[str, Any]) -> None:
    options = dict(meant)
    action, queue = options.pop("action"), options.pop("queue")
    await provider.inspector.operations.begin(action, queue, operation_id="op", **options)


async def test_an_operation_is_about_jobs_up_to_its_moment_and_counts_it_in(make_provider: Any) -> None:
    async with make_provider() as provider:
        job = provider.emit("a", 1, delay="1 hour", reply=False)
        await job.enqueued()
        store = provider._life.running("look").store
        report = await provider.inspector.jobs.get(job.job_id)

        async def count(state: str, before: int) -> int:
            record = OperationRecord(id="op", action="cancel", queue="event.a", of=state, before=before)
            return (await count_jobs(store, record))[0]

        assert [await count("delayed", report.created_ms + n) for n in (-1, 0, 1)] == [0, 1, 1]
        await provider.cancel(job.job_id)
        ended = (await provider.inspector.jobs.get(job.job_id)).ended_ms
        assert [await count("cancelled", ended + n) for n in (-1, 0, 1)] == [0, 1, 1]


async def test_a_watch_goes_on_where_its_reader_is_and_not_where_it_has_read_to(make_provider: Any) -> None:
    async with make_provider() as provider, provider.watch("a") as watch:
        for each in [*provider.emit_many("a", range(3), delay="1 hour", reply=False)]:
            await each.enqueued()
        first = await watch.__anext__()
        while not watch.pending:
            first = await watch.__anext__()
        assert watch.reached == first.position  # what it has read, and not given out, is not behind it
        async with provider.watch("a", since=watch.reached) as other:
            assert (await other.__anext__()).position > first.position
        last = first
        while watch.pending:
            last = await watch.__anext__()
        assert watch.reached >= last.position


def test_the_value_of_an_option_that_is_not_known_is_in_no_error() -> None:
    url = "redis://host:1/0?paswd=s3cret&db=1"
    assert "s3cret" not in redact(url)
    assert "db=1" in redact(url)
    with pytest.raises(ConfigError, match="paswd") as error:
        Connector(url)
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize(
    "why",
    [
        "short, with 'a quote'",
        "at 12: recorded step 'charge_the_card', code has step 'refund_it_all'",
        "at 12: recorded step 'charge_the_card', code has another 'refund_it_all_now'",
        "ü" * 40,
        "it's " * 20,
        "'" * 65,
        "x" * 60 + "'yyyyyyyyy'",
    ],
)
def test_the_reason_of_a_parked_job_ends_in_no_quote_and_in_no_character(why: str) -> None:
    text = park(why).text
    assert len(text.encode()) <= 64
    assert text == why or (text.count("'") % 2 == 0 and "..." in text)
    assert text.partition("...")[0].strip("'") in why


def test_an_attribute_of_metrics_has_few_values() -> None:
    few = Bounded(3)
    assert [few(value) for value in "abcdab"] == ["a", "b", "c", OTHER, "a", "b"]


def test_what_is_damaged_is_told_and_can_be_encoded() -> None:
    assert readable(["a\udcff", {"ü\udcfe": 1}, 2, None]) == ["a\\xff", {"ü\\xfe": 1}, 2, None]
    assert [number(text) for text in ("12", "-3", "1795704424288.5", "", None, "nan", "inf", "9" * 30)] == [
        12, -3, 1795704424288, 0, 0, 0, 0, 0,
    ]  # fmt: skip
    assert number("nan", damaged=1) == 1
    assert [is_number(text) for text in ("1", "", None, "x", "1e9")] == [True, True, True, False, False]
