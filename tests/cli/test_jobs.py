"""`eventbus jobs`: counts, lists and shows jobs, changes those that wait, and cancels one."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import msgspec
import pytest
from typer.testing import Result

from eventbus import Event, EventProvider, Retry, Sensitive

Invoke = Callable[..., Result]
MakeProvider = Callable[..., EventProvider]
T = TypeVar("T")


def _do(make_provider: MakeProvider, act: Callable[[EventProvider], Awaitable[T]]) -> T:
    async def do() -> T:
        async with make_provider() as provider:
            return await act(provider)

    return asyncio.run(do())


def _emit(make_provider: MakeProvider, *payloads: Any, **options: Any) -> list[str]:
    """Emit orders that nobody serves; return their jobs."""

    async def emit(provider: EventProvider) -> list[str]:
        emissions = [provider.emit("order", each, reply=False, **options) for each in payloads]
        for emission in emissions:
            await emission
        return [emission.job_id for emission in emissions]

    return _do(make_provider, emit)


def _fail(make_provider: MakeProvider, message: str) -> str:
    """Let an order fail twice; return its job."""

    async def fail(provider: EventProvider) -> str:
        @provider.on("order", retry=Retry(attempts=2, delay=0))
        async def handle(_: Any) -> None:
            raise ValueError(message)

        async with provider.worker():
            emission = provider.emit("order", 1)
            with pytest.raises(Exception, match="ValueError"):
                await emission
        return emission.job_id

    return _do(make_provider, fail)


def _lines(result: Result) -> list[list[str]]:
    assert result.exit_code == 0, result.stderr
    return [line.split() for line in result.stdout.splitlines()]


def test_jobs_are_counted_in_each_state(make_provider: MakeProvider, invoke: Invoke) -> None:
    _emit(make_provider, 1, 2)
    _emit(make_provider, 3, delay="1 hour")
    counts = dict(_lines(invoke("jobs", "count", "order"))[1:])
    assert (counts["waiting"], counts["delayed"], counts["failed"]) == ("2", "1", "0")
    assert json.loads(invoke("jobs", "count", "event.order", "--json").stdout)["delayed"] == 1
    unknown = invoke("jobs", "count", "order", "--group", "audit", "--json")
    assert (unknown.exit_code, unknown.stdout) == (1, ""), "its jobs are not those of the event"


def test_jobs_are_listed_a_page_at_a_time(make_provider: MakeProvider, invoke: Invoke) -> None:
    ids = _emit(make_provider, 1, 2, 3)
    first = invoke("jobs", "list", "order", "--limit", "2")
    assert [words[0] for words in _lines(first)] == ["job", *ids[:2]]
    (_, cursor) = first.stderr.strip().split("more: --cursor ")
    rest = invoke("jobs", "list", "order", "--limit", "2", "--cursor", cursor)
    assert [words[0] for words in _lines(rest)] == ["job", ids[2]]
    assert rest.stderr == ""
    told = invoke("jobs", "list", "order", "--limit", "2", "--json")
    assert [json.loads(line)["id"] for line in told.stdout.splitlines()] == ids[:2]
    assert told.stderr.startswith("more: --cursor ")
    assert invoke("jobs", "list", "order", "--state", "failed").stdout == "no job is failed\n"


def test_a_failed_job_shows_what_failed_and_its_tracebacks_if_asked(
    make_provider: MakeProvider, invoke: Invoke
) -> None:
    job = _fail(make_provider, "the bank is down")
    assert "ValueError: the bank is down" in invoke("jobs", "list", "order", "--state", "failed").stdout
    told = invoke("jobs", "show", job).stdout
    assert "attempts  2 failed, 0 stalled\n" in told
    assert "payload   1\n" in told
    assert "attempt 1 failed: ValueError: the bank is down\n" in told
    assert "attempt 2 failed: ValueError: the bank is down\n" in told
    assert "Traceback" not in told
    assert invoke("jobs", "show", job, "--full").stdout.count("Traceback") == 2
    report = json.loads(invoke("jobs", "show", job, "--json").stdout)
    assert (report["state"], len(report["failures"]), report["payload"]) == ("failed", 2, 1)
    assert [each["outcome"] for each in report["attempts_log"]] == ["failed", "failed"]
    assert report["emitted_ms"] <= report["first_started_ms"] <= report["started_ms"] <= report["ended_ms"]


def test_a_job_is_shown_with_its_start_its_worker_and_its_timeline(
    make_provider: MakeProvider, invoke: Invoke
) -> None:
    job = _fail(make_provider, "the bank is down")
    told = invoke("jobs", "show", job).stdout
    worker = json.loads(invoke("jobs", "show", job, "--json").stdout)["worker"]
    assert re.search(rf"^started   20.*, by {worker}$", told, re.MULTILINE)
    rows = [line.split()[3:] for line in told[told.index("time ") :].splitlines()[1:]]
    happened = [[word for word in row if word not in ("s", "0.00")] for row in rows]
    failed = ["failed", "1", worker, "ValueError:", "the", "bank", "is", "down"]
    assert happened[0] == ["emitted"]
    assert happened[1] == ["started", "1", worker]
    assert happened[2] == failed
    assert happened[-1] == ["ended", worker, "failed"]


def test_a_job_that_waits_is_put_off_promoted_and_given_another_place(
    make_provider: MakeProvider, invoke: Invoke
) -> None:
    first, second = _emit(make_provider, 1, 2)
    assert invoke("jobs", "delay", first, "10m").stdout == f"job {first} is due in 10m\n"
    assert [words[0] for words in _lines(invoke("jobs", "list", "order", "--state", "delayed"))] == [
        "job",
        first,
    ]
    assert "why       It is due at " in invoke("jobs", "show", first).stdout
    assert invoke("jobs", "promote", first).stdout == f"job {first} is due now\n"
    assert [words[0] for words in _lines(invoke("jobs", "list", "order"))] == ["job", second, first]
    assert invoke("jobs", "prioritize", first, "-5").stdout == f"job {first} has priority -5\n"
    assert [words[0] for words in _lines(invoke("jobs", "list", "order"))] == ["job", first, second]


def test_it_is_said_why_a_job_does_not_run(make_provider: MakeProvider, invoke: Invoke) -> None:
    (job,) = _emit(make_provider, 1)
    assert invoke("jobs", "why", job).stdout == "No worker serves event.order.\n"
    assert "why       No worker serves event.order.\n" in invoke("jobs", "show", job).stdout
    invoke("queues", "pause", "order", "--reason", "stock\x1b[31m")
    told = invoke("jobs", "why", job).stdout
    assert told.startswith("event.order is paused by ")
    assert told.endswith(": stock\\x1b[31m.\n")
    reason = json.loads(invoke("jobs", "why", job, "--json").stdout)
    assert (reason["kind"], reason["until_ms"]) == ("paused", 0)
    assert reason["since_ms"] > 0
    assert " UTC: " in reason["text"]


def test_a_reason_and_a_report_tell_times_of_one_zone(
    make_provider: MakeProvider, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        (job,) = _emit(make_provider, 1, delay="1 hour")
        why, shown = invoke("jobs", "why", job).stdout, invoke("jobs", "show", job).stdout
    finally:
        monkeypatch.undo()
        time.tzset()
    (due,) = re.findall(r"due +(\S+ \S+\+05:30)$", shown, re.MULTILINE)
    assert why == f"It is due at {due}.\n"
    assert "UTC" not in shown


def test_a_job_is_cancelled_with_a_reason(make_provider: MakeProvider, invoke: Invoke) -> None:
    (job,) = _emit(make_provider, 1)
    assert invoke("jobs", "cancel", job, "--reason", "no stock").exit_code == 0
    told = invoke("jobs", "show", job).stdout
    assert "state     cancelled\n" in told
    assert "no stock" in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cancel"], "there is nothing to cancel"),
        (["promote"], "only a delayed job is promoted"),
        (["delay", "5s"], "only a job that waits or is delayed can be put off"),
        (["prioritize", "5"], "only a job that waits or is delayed has a place to change"),
    ],
    ids=["cancel", "promote", "delay", "prioritize"],
)
def test_a_change_that_the_state_does_not_allow_names_the_state(
    words: list[str], said: str, make_provider: MakeProvider, invoke: Invoke
) -> None:
    job = _fail(make_provider, "no")
    result = invoke("jobs", words[0], job, *words[1:])
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"job {job} is failed; {said}" in result.stderr


@pytest.mark.parametrize(
    "words",
    [["show"], ["why"], ["cancel"], ["promote"], ["delay", "5s"], ["prioritize", "5"]],
    ids=["show", "why", "cancel", "promote", "delay", "prioritize"],
)
def test_an_unknown_job_is_an_error_everywhere(words: list[str], invoke: Invoke) -> None:
    result = invoke("jobs", words[0], "none", *words[1:])
    assert result.exit_code != 0
    assert "none" in result.stderr


def test_bad_words_are_refused_before_the_server_is_asked(invoke: Invoke) -> None:
    assert (
        "expected --state to be one of waiting, " in invoke("jobs", "list", "order", "--state", "gone").stderr
    )
    assert "'a b'" in invoke("jobs", "count", "a b").stderr
    assert invoke("jobs", "delay", "j", "soon").exit_code == 2
    assert invoke("jobs", "prioritize", "j", "5000").exit_code == 2
    assert invoke("jobs", "list", "order", "--cursor", "x").exit_code == 2


def test_texts_of_others_neither_move_the_cursor_nor_begin_a_line(
    make_provider: MakeProvider, invoke: Invoke
) -> None:
    job = _fail(make_provider, "red \x1b[31m\nroot@host\u202e$ \x07 [bold]no[/bold]")
    for words in (["list", "order", "--state", "failed"], ["show", job], ["show", job, "--full"]):
        told = invoke("jobs", *words).stdout
        assert not any(each in told for each in ("\x1b", "\u202e", "\x07"))
        assert not any(line.startswith("root@host") for line in told.splitlines())
        assert "red \\x1b[31m root@host\\u202e$ \\x07 [bold]no[/bold]" in told


def test_a_payload_is_shown_as_it_is(make_provider: MakeProvider, invoke: Invoke) -> None:
    (job,) = _emit(make_provider, {"a  b": "two  spaces\n\tand \u2028 a line", "é": "ü"})
    told = invoke("jobs", "show", job).stdout
    assert 'payload   {"a  b":"two  spaces\\n\\tand \\u2028 a line","é":"ü"}\n' in told


def test_a_long_payload_is_cut_unless_all_is_asked_for(make_provider: MakeProvider, invoke: Invoke) -> None:
    (job,) = _emit(make_provider, "x" * 5000)
    assert "... (3002 characters more)" in invoke("jobs", "show", job).stdout
    assert "x" * 5000 in invoke("jobs", "show", job, "--full").stdout


def test_a_payload_is_edited_and_found_by_a_field(make_provider: MakeProvider, invoke: Invoke) -> None:
    async def emit() -> str:
        async with make_provider() as provider:
            job = provider.emit("order", {"order_id": 7}, delay="1 hour", reply=False)
            await job.enqueued()
            return job.job_id

    job = asyncio.run(emit())
    assert job in invoke("jobs", "find", "order", "--field", "order_id:7", "--state", "delayed").stdout
    edited = invoke("jobs", "edit", job, "--payload", '{"order_id": 8}')
    assert (edited.exit_code, edited.stdout) == (0, f"job {job} has another payload\n")
    found = invoke("jobs", "find", "order", "--field", "order_id:7", "--state", "delayed", "--json").stdout
    assert '"jobs":[]' in found.replace(" ", "")
    stale = invoke("jobs", "edit", job, "--payload", "1", "--revision", "0.0.0")
    assert (stale.exit_code, "was changed meanwhile" in stale.stderr) == (1, True)
    assert invoke("jobs", "edit", job, "--payload", "{").exit_code == 2
    assert invoke("jobs", "find", "--field", "order_id:7").exit_code == 2


def test_a_payload_that_was_copied_from_a_report_does_not_replace_what_is_hidden(
    make_provider: MakeProvider, invoke: Invoke
) -> None:
    class Payment(msgspec.Struct):
        order: int
        cards: list[Annotated[str, Sensitive()]]

    async def emit(provider: EventProvider) -> str:
        event = Event("order", payload=Payment)
        job = provider.emit(event, Payment(7, ["4111-1111", "4222-2222"]), delay="1 hour", reply=False)
        await job.enqueued()
        return job.job_id

    job = _do(make_provider, emit)
    shown = json.loads(invoke("jobs", "show", job, "--json").stdout)
    copied = json.dumps({**shown["payload"], "order": 8})
    refused = invoke("jobs", "edit", job, "--payload", copied, "--revision", shown["revision"])
    assert refused.exit_code == 1
    assert "holds at $.cards[0] what is only shown instead of a sensitive value" in refused.stderr
    assert "--reveal" in refused.stderr
    whole = json.loads(invoke("jobs", "show", job, "--json", "--reveal").stdout)["payload"]
    assert whole == {"order": 7, "cards": ["4111-1111", "4222-2222"]}
    edited = invoke("jobs", "edit", job, "--payload", json.dumps({**whole, "order": 8}))
    assert edited.exit_code == 0


def test_why_tells_the_error_of_a_job_that_failed(make_provider: MakeProvider, invoke: Invoke) -> None:
    job = _fail(make_provider, "no\x1b[31m such card")
    told = invoke("jobs", "why", job).stdout
    assert told == "It has ended as failed.\nValueError: no\\x1b[31m such card\n"


def test_a_job_shows_its_chain_by_which_the_others_are_found(
    make_provider: MakeProvider, invoke: Invoke
) -> None:
    (job,) = _emit(make_provider, 1, correlation_id="chain 7", idempotency_key="k 7", meta={"tenant": "acme"})
    shown = invoke("jobs", "show", job).stdout
    for line in ("chain     chain 7\n", "key       k 7\n", 'meta      {"tenant":"acme"}\n'):
        assert line in shown
    told = json.loads(invoke("jobs", "show", job, "--json").stdout)
    assert (told["correlation_id"], told["key"], told["meta"]) == ("chain 7", "k 7", {"tenant": "acme"})
    found = invoke("jobs", "find", "--correlation-id", "chain 7")
    assert job in found.stdout
    old = invoke("jobs", "find", "--correlation", "chain 7")
    assert (old.stdout, old.stderr) == (
        found.stdout,
        "note: --correlation is deprecated: use --correlation-id\n",
    )


def test_jobs_of_several_states_are_listed_one_state_after_the_other(
    make_provider: MakeProvider, invoke: Invoke
) -> None:
    waiting, delayed = _emit(make_provider, 1), _emit(make_provider, 2, delay="1 hour")
    for words in (["--state", "delayed,waiting"], ["--state", "delayed", "--state", "waiting"]):
        rows = _lines(invoke("jobs", "list", "order", *words))
        assert rows[0][:3] == ["job", "state", "emitted"]
        assert [row[:2] for row in rows[1:]] == [[*delayed, "delayed"], [*waiting, "waiting"]]
    wrong = invoke("jobs", "list", "order", "--state", "delayed,odd")
    assert (wrong.exit_code, "got: 'odd'" in wrong.stderr) == (2, True)
    none = invoke("jobs", "list", "order", "--state", "failed,cancelled")
    assert (none.stdout, none.stderr[:6]) == ("no job is failed or cancelled\n", "asked ")
