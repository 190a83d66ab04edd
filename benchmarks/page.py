"""Writes the results into `docs/benchmarks.md`, between its markers; the rest of it stays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.rounds import Results
from benchmarks.table import errors, groups, header

BEGIN = "<!-- benchmarks: begin, written by python -m benchmarks -->"
END = "<!-- benchmarks: end -->"

_NEW = f"# Benchmarks\n\n{BEGIN}\n{END}\n"

METHOD = """\
### How it was measured
- One server of its own for each persistence mode, on 127.0.0.1, emptied before each \
measurement. All sides use the same server, one after the other, in rounds (ours, BullMQ, \
floor, ours, ...). The figures are medians of the rounds, ± half of the distance between the \
lowest and the highest; ratios are ratios of medians. *other programs* tells how quiet the \
machine was: above a few percent, run it again.
- Same work on all sides: payload `{"n": n}`, a handler that does nothing and returns `n + 1`. \
Each peer has its default durability, retention and client, from its own registry. \
Our worker runs on uvloop where that is installed (see *packages*), as `eventbus worker` does.
- *enqueue*: one process; each call is awaited until the server has the job; no reply is asked \
for. *bulk*: the whole count in one call, and in calls of 1,000.
- *drain*: a queue filled before, one worker process, concurrency 100, from the first call of \
the handler to the last, taken in the worker process. Start of the process, first claim and \
last settle are outside on every side, which is under 1 % of 50,000 jobs.
- *request-reply*: emitter and worker are two processes; the emitter awaits each result and \
compares it. BullMQ: `add`, then `waitUntilFinished`.
- 5,000 jobs (at most the count) before the clock starts, except in *drain*. *CPU µs*: the server's user and system \
time in `INFO cpu`, all its threads, for each job of the measured part.
- The *floor* is plain redis-py (synchronous): one list for jobs, one for results, one command \
for each job in pipelines (as large as the calls of the other sides), taken 100 at a time. No \
leases, no records, no retries: a job lost there is lost.

### What it does not show
- Short runs: with few jobs Node.js has not compiled its hot code yet, and looks up to twice as \
slow as it is; a `--small` run is no measurement.
- Handlers that do something: with them, all sides come near to each other.
- A network: everything is on one machine, and emitter, worker and server share its cores. With \
fewer cores than processes the figures of *request-reply* are figures of the sum of their CPU.
- Several workers, many queues, large payloads, a server that is full or has many clients.
- Memory: BullMQ keeps every finished job by default, ours at most the last 10,000 for an hour, \
the floor none.
"""


def _markdown(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _tables(results: Results) -> Iterator[str]:
    titles = header(results)
    for mode in results.plan.modes:
        yield f"### {results.server}, {mode}"
        yield _markdown(titles)
        yield _markdown(["---", "---", *(["---:"] * (len(titles) - 2))])
        for group in groups(results, mode):
            yield from map(_markdown, group)
        yield ""


def section(results: Results, facts: dict[str, str], command: str) -> str:
    """Return the text between the markers."""
    listed = [f"- {name}: {value}" for name, value in facts.items()]
    failed = [f"- {line}" for line in errors(results)]
    parts = [
        *listed,
        f"- command: `{command}`",
        "",
        *_tables(results),
        *(["### What could not run", *failed, ""] if failed else []),
        METHOD,
    ]
    return "\n".join(parts)


def write(path: Path, text: str) -> None:
    """Replace what stands between the markers of the page; a page without them gets them."""
    page = path.read_text() if path.exists() else _NEW
    if BEGIN not in page or END not in page:
        page = f"{page.rstrip()}\n\n{BEGIN}\n{END}\n"
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{before}{BEGIN}\n{text}{END}{after}")
