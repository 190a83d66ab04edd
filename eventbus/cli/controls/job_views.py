"""Printing jobs for people: counts, a list as a table, one job with what failed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from eventbus.admin.jobs.attempts import FailureReport
from eventbus.admin.jobs.job_report import JobReport
from eventbus.admin.jobs.jobs import JobSummary
from eventbus.admin.jobs.reasons import StateReason
from eventbus.admin.jobs.timeline import TimelineEntry
from eventbus.cli.listing import Listing, Row
from eventbus.cli.output import say
from eventbus.cli.texts import json_text, printable, visible
from eventbus.cli.times import in_local_time
from eventbus.cli.toolkit import moment, open_console, span

_SHORT = 2000
"""Characters of a payload or a result that are shown."""
_TIMES = {
    "delayed": ("due", "due_ms"),
    "active": ("claimed", "claimed_ms"),
    "completed": ("ended", "ended_ms"),
    "failed": ("ended", "ended_ms"),
    "cancelled": ("ended", "ended_ms"),
}
"""state -> the time that matters there: what it is called, and where it stands."""


def print_counts(counts: Mapping[str, int]) -> None:
    """Print how many jobs there are in each state, also of those that have none."""
    _COUNTS.print(list(counts.items()))


_COUNTS: Listing[tuple[str, int]] = Listing(lambda each: each, "state, >jobs", none="")


def print_jobs(jobs: Sequence[JobSummary], states: Sequence[str]) -> None:
    """Print jobs of one state as a table, or of several, each with its state and the time that matters
    there.
    """
    has_state = len(states) > 1
    time = "since or due" if has_state else _TIMES.get(states[0], ("", ""))[0]

    def row(job: JobSummary) -> Row:
        known = _TIMES.get(job.state if has_state else states[0])
        at = [moment(getattr(job, known[1])) if known else "-"] if time else []
        state = [job.state] if has_state else []
        return job.id, *state, moment(job.created_ms), *at, job.attempts, job.stalls, job.error

    heads = ("job", *(["state"] if has_state else []), "emitted", *([time] if time else []))
    state = " or ".join(states)
    Listing(
        row,
        f"{', '.join(heads)}, >attempts, >stalls, error",
        none=f"no job is {state}" if state != "waiting-children" else "no job waits for children",
    ).print(jobs)


def print_report(job: JobReport, reason: StateReason, *, is_full: bool) -> None:
    """Print one job. Unless `is_full`, long values are cut, and tracebacks left out."""
    console = open_console()
    for name, value in _facts(job, reason, None if is_full else _SHORT):
        console.print(Text(f"{name:9} {visible(value)}"), soft_wrap=True)
    for line in _tell_failures(job.failures, is_full=is_full):
        console.print(Text(line), soft_wrap=True)
    say()
    _print_timeline(job.timeline)
    if job.lines:
        say()
    for line in job.lines:
        console.print(Text(f"{moment(line.at_ms)}  {printable(line.text)}"), soft_wrap=True)


def _facts(job: JobReport, reason: StateReason, most: int | None) -> Iterator[tuple[str, str]]:
    yield "job", job.id
    yield "state", job.state
    if reason.kind not in ("ended", "running"):  # the lines below say these
        yield "why", printable(in_local_time(reason.text))
    yield "queue", job.queue
    yield "emitted", moment(job.created_ms)
    if job.due_ms and job.state in ("waiting", "delayed"):
        yield "due", moment(job.due_ms)
    if job.first_started_ms and job.first_started_ms != job.started_ms:
        yield (
            "first",
            f"started {moment(job.first_started_ms)}, {_after(job.emitted_ms, job.first_started_ms)}",
        )
    if job.started_ms:
        yield "started", ", ".join(_tell_start(job))
    if job.state == "active":
        yield "lease", f"until {moment(job.lease_ms)}"
    if job.ended_ms:
        yield "ended", f"{moment(job.ended_ms)}, {span(job.created_ms, job.ended_ms)} after it was emitted"
    yield "attempts", f"{job.attempts} failed, {job.stalls} stalled"
    if job.tree or job.is_root:
        yield "flow", job.tree or job.id
    if job.run > 1:
        yield "run", str(job.run)
    if job.correlation_id:
        yield "chain", printable(job.correlation_id)
    if job.causation_id:
        yield "caused by", f"job {printable(job.causation_id)}"
    if job.key:
        yield "key", printable(job.key)
    if job.meta:
        yield "meta", json_text(job.meta, most=most)
    if job.progress is not None:
        yield "progress", json_text(job.progress, most=most)
    yield "payload", json_text(job.payload, most=most)
    if job.state == "completed":
        yield "result", json_text(job.result, most=most)
    if job.error:
        yield "error", printable(job.error)


def _tell_start(job: JobReport) -> Iterator[str]:
    yield moment(job.started_ms)
    if job.state == "active":
        yield f"{span(job.started_ms, 0)} ago"
    elif job.first_started_ms == job.started_ms:
        yield _after(job.emitted_ms, job.started_ms)
    if job.worker:
        yield f"by {printable(job.worker)}"


def _after(emitted_ms: int, at_ms: int) -> str:
    return f"{span(emitted_ms, at_ms)} after it was emitted"


def _print_timeline(timeline: Sequence[TimelineEntry]) -> None:
    """Print what happened to a job as a table, and behind it what is due; `after` is the time since it was
    emitted.
    """
    table = Table(box=None, pad_edge=False)
    for head in ("time", "after", "what", "attempt", "worker"):
        table.add_column(head, no_wrap=True)
    table.add_column("note", overflow="fold")
    for entry in timeline:
        cells = (
            moment(entry.at_ms),
            span(timeline[0].at_ms, entry.at_ms) if entry.at_ms else "",
            entry.what.replace("-", " "),
            str(entry.attempt or ""),
            printable(entry.worker),
            printable(entry.note),
        )
        table.add_row(*(Text(each) for each in cells))
    open_console().print(table)


def _tell_failures(failures: Iterable[FailureReport], *, is_full: bool) -> Iterator[str]:
    for each in failures:
        which = f"attempt {each.attempt}" if each.attempt else "an attempt"
        by = f" on {printable(each.worker)}" if each.worker and each.kind == "stalled" else ""
        kind = each.kind.replace("-", " ")
        yield f"{which} {kind}{by}: {printable(str(each))}"
        for line in each.traceback.splitlines() if is_full else ():
            yield f"    {' ' * (len(line) - len(line.lstrip()))}{printable(line)}"
