"""Celery's application with the no-op task; the emitter uses it too. Run by `celery worker`."""

from __future__ import annotations

import os

from celery import Celery

from benchmarks.calls import calls

app = Celery("bench", broker=os.environ["BENCH_URL"], backend=os.environ["BENCH_URL"])


@app.task(name="noop")
def noop(n: int) -> int:
    calls.note()
    return n + 1
