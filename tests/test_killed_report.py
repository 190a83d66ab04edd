"""`examples/report_pipeline.py`, whose workers are killed, does what its pages show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parent.parent
_REPORT = _ROOT / "examples" / "report_pipeline.py"


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.parametrize(("page", "kind"), [("pipelines.md", "pipeline"), ("durable.md", "function")])
def test_a_report_whose_worker_is_killed_in_each_stage_repeats_nothing_that_was_recorded(
    page: str, kind: str, server_url: str, prefix: str, tmp_path: Path
) -> None:
    command = re.escape(f"$ python {_REPORT.name} {kind}\n")
    text = (_ROOT / "docs" / page).read_text()
    (shown,) = re.findall(rf"^```console\n{command}(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ran = subprocess.run(
        [sys.executable, str(_REPORT), kind],
        cwd=tmp_path,
        env={**os.environ, "EVENTBUS_URL": server_url, "EVENTBUS_PREFIX": prefix},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    assert ran.stdout.decode() == shown
