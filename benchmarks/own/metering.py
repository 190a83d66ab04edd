"""What metrics cost a job: emitting and draining without an SDK and with one, in turn, and in another tree of
the code.

    python -m benchmarks.own.metering --rounds 9 --against PATH

Each run is a process of its own that emits jobs, then drains them, beside a server of its own. Its figures
are the process's own CPU, so that other work of the machine matters less. The runs of a round follow each
other, and what is shown are medians of the rounds and of the differences within rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

from eventbus import EventProvider

_COUNT = 10_000
_CHUNK = 1000
_ROOT = Path(__file__).parents[2]


def _set_sdk() -> None:
    from opentelemetry import metrics  # noqa: PLC0415  (the other runs must not load it)
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: PLC0415

    metrics.set_meter_provider(MeterProvider(metric_readers=[InMemoryMetricReader()]))


async def _measure() -> dict[str, float]:
    """Return the CPU of this process for each job in µs: for emitting and for draining."""
    provider = EventProvider("memory:", concurrency=100, keep_completed=0)

    async def handle(value: int) -> int:
        return value + 1

    provider.on("bench")(handle)
    async with provider:
        for first in range(-2 * _CHUNK, _COUNT, _CHUNK):
            if first == 0:
                began = time.process_time()
            for emission in provider.emit_many("bench", range(_CHUNK), reply=False):
                last = emission
            await last.enqueued()
        await provider.flush()
        emitted = time.process_time()
        async with provider.worker() as worker:
            ready = time.process_time()
            await worker.wait_drained(provider.flush)
            drained = time.process_time()
    jobs = _COUNT + 2 * _CHUNK
    return {"emit": (emitted - began) / _COUNT * 1e6, "drain": (drained - ready) / jobs * 1e6}


def _run(mode: str, tree: Path) -> dict[str, float]:
    words = [sys.executable, str(Path(__file__).resolve()), "--mode", mode]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", type=Path, help="a tree of the code from before")
    parser.add_argument("--mode", choices=("plain", "sdk"))
    flags = parser.parse_args()
    if flags.mode:
        if flags.mode == "sdk":
            _set_sdk()
        print(json.dumps(asyncio.run(_measure())))
        return
    runs = {"no SDK": ("plain", _ROOT), "SDK": ("sdk", _ROOT)}
    if flags.against:
        runs["before"] = ("plain", flags.against)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
    for _ in range(flags.rounds):
        for name in random.sample(list(runs), len(runs)):
            found[name].append(_run(*runs[name]))
    for step in ("emit", "drain"):
        base = [each[step] for each in found["before" if flags.against else "no SDK"]]
        for name, lines in found.items():
            values = [each[step] for each in lines]
            apart = [value - other for value, other in zip(values, base, strict=True)]
            print(
                f"{step:6} {name:7} {statistics.median(values):6.2f} µs a job, "
                f"{statistics.median(apart):+6.2f} µs in pairs (from {min(apart):+.2f} to {max(apart):+.2f})"
            )


if __name__ == "__main__":
    main()
