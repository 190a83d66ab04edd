"""`examples/stages.py` under test: its stages write what they do into a journal outside of the server, and
die on demand.

Run by `eventbus worker apps.stages_app:provider` in `integration/`. A file `die in <stage>` in the test's
folder kills once.
"""

from __future__ import annotations

import importlib
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

from apps.step_actions import die_at
from harness.journal import Journal

from eventbus import EventProvider
from eventbus.lowlevel import Job, OutcomeDecoder

__all__ = ["STAGES", "outcome", "provider"]

sys.path.append(str(Path(__file__).parents[2] / "examples"))
_example: Any = importlib.import_module("stages")

STAGES: tuple[str, ...] = _example.STAGES
provider: EventProvider = _example.provider
outcome: OutcomeDecoder = _example.ReportOutcome()


@cache
def _journal() -> Journal:
    return Journal(Path(os.environ["EVENTBUS_TEST_FOLDER"]) / "journal")


async def _work(stage: str, job: Job) -> str:
    _journal().write("began", job.id, job.attempts + 1, stage)
    die_at(f"in {stage}")
    _journal().write("did", job.id, job.attempts + 1, stage)
    return f"{stage} of {job.body}"


_example.work = _work
