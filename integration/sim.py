"""Simulation: the real engine in virtual time, under faults that a seed decides; each run can be repeated.

    python integration/sim.py --seeds 20                     (or: tox -e sim -- --seeds 20)
    python integration/sim.py --seconds 60 --kind calm       as many seeds as go into a minute
    python integration/sim.py --first 17 --seeds 1 --tape f  one seed again; its whole history goes into a
    file
    python integration/sim.py --seeds 20 --flows 24          flows instead of jobs

Workers, an emitter and an operator run in one event loop, with one real server behind a network that loses,
delays and refuses (`sim.world`); they do jobs (`sim.simulation`) or flows (`sim.flow_simulation`). The same
seed gives the same history; its hash is printed. Ends with status 1 unless each seed is clean.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import structlog
from harness.backends import KINDS as SERVERS
from harness.backends import Backend
from sim.kinds import KINDS, kind_of

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # records are read as the tests read them

from sim.runner import Verdict, run_seed

__all__ = ["main"]


def _seeds(first: int, kind: str) -> Iterator[int]:
    """Return the seeds from `first` on; those of a kind, if one is given."""
    return (seed for seed in itertools.count(first) if not kind or kind_of(seed) == kind)


def _cpu_of(server: Backend) -> float:
    """Return the seconds of the processor that a server took."""
    assert server._process is not None
    fields = Path(f"/proc/{server._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _lines(verdicts: list[Verdict], server: Backend, seconds: float) -> list[str]:
    faults: Counter[str] = Counter()
    for each in verdicts:
        faults.update(each.faults)
    cpu, jobs = sum(each.cpu for each in verdicts), sum(each.jobs for each in verdicts)
    kills = sum(each.kills for each in verdicts)
    unit = "flows" if verdicts[0].is_of_flows else "jobs"
    hits = kills + sum(faults.values())
    flawed = [each.seed for each in verdicts if not each.is_clean]
    return [
        f"{'seeds':<26} {len(verdicts)}, with flaws: {', '.join(map(str, flawed)) or 'none'}",
        f"{'kinds':<26} {_shown(Counter(each.kind for each in verdicts))}",
        f"{unit:<26} {jobs}, {jobs / max(cpu, 0.01):.0f} for each second of CPU",
        f"{'faults and kills':<26} {hits}, {hits / max(cpu, 0.01):.0f} for each second of CPU",
        f"{'kills':<26} {kills}",
        f"{'faults':<26} {_shown(faults)}",
        f"{'virtual time':<26} {sum(each.seconds for each in verdicts):.0f} s",
        f"{'CPU':<26} {cpu:.1f} s, and {_cpu_of(server):.1f} s of the server",
        f"{'duration':<26} {seconds:.1f} s",
    ]


def _shown(counts: Counter[str]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items())) or "0"


def main() -> int:
    parser = argparse.ArgumentParser(
        description="The engine in virtual time, under faults that a seed decides."
    )
    parser.add_argument("--seeds", type=int, default=None, help="how many, by default 20")
    parser.add_argument("--seconds", type=float, default=None, help="as many as this takes")
    parser.add_argument("--hours", type=float, default=None)
    parser.add_argument(
        "--first", type=int, default=None, help="the first seed, by default 1, or any with a time"
    )
    parser.add_argument("--kind", choices=list(KINDS), default="", help="seeds of this kind alone")
    parser.add_argument("--jobs", type=int, default=200, help="of each seed")
    parser.add_argument("--flows", type=int, default=0, help="of each seed, instead of jobs: flows")
    parser.add_argument("--server", choices=list(SERVERS), default=next(iter(SERVERS)))
    parser.add_argument(
        "--tape", type=Path, default=None, help="write the whole history of a seed to this file"
    )
    parser.add_argument("--stop", action="store_true", help="end at the first seed with flaws")
    asked = parser.parse_args()
    # Each fault that the product notices is logged; here that is no news.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    limit = asked.seconds or (3600 * asked.hours if asked.hours else None)
    first = asked.first or (1 if limit is None else random.randrange(1 << 32))
    count = asked.seeds or (20 if limit is None else None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # not without the end of the server
    server = Backend(asked.server)
    began = time.monotonic()
    verdicts: list[Verdict] = []
    try:
        server.start()
        for seed in itertools.islice(_seeds(first, asked.kind), count):
            verdict = run_seed(seed, server, jobs=asked.jobs, flows=asked.flows, tape=asked.tape)
            verdicts.append(verdict)
            print(verdict.line(), flush=True)  # noqa: T201
            if not verdict.is_clean:
                size = f"--flows {asked.flows}" if asked.flows else f"--jobs {asked.jobs}"
                again = f"--first {seed} --seeds 1 {size} --server {asked.server}"
                again = f"python integration/sim.py {again}"
                print("\n".join(verdict.story), f"again: {again}", sep="\n", flush=True)  # noqa: T201
            is_late = limit is not None and time.monotonic() - began > limit
            if is_late or (asked.stop and not verdict.is_clean):
                break
        print("\n".join(_lines(verdicts, server, time.monotonic() - began)))  # noqa: T201
    finally:
        server.close()
    return 0 if all(each.is_clean for each in verdicts) else 1


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of a set of texts must be the same each time
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    raise SystemExit(main())
