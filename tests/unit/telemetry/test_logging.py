"""Where the package's log events go, without any configuration and with one."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import sys, structlog
from eventbus.telemetry.logging import get_logger

early = get_logger("eventbus.worker")
if sys.argv[1] == "configured":
    structlog.configure(processors=[structlog.processors.add_log_level, structlog.processors.JSONRenderer()])
early.debug("not told unless asked for")
early.info("ready", queues=3)
early.bind(job_id="j").warning("stalled")
try:
    raise LookupError("nothing in stock")
except LookupError:
    early.exception("failed")
"""


def _run(how: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", _PROGRAM, how], capture_output=True, text=True, check=True)


def test_without_a_configuration_standard_output_belongs_to_the_program() -> None:
    ran = _run("bare")
    assert ran.stdout == ""
    assert "unless asked for" not in ran.stderr
    for told in ("ready", "queues=3", "stalled", "job_id=j", "LookupError", "nothing in stock"):
        assert told in ran.stderr


def test_a_programs_own_configuration_is_followed_also_when_it_comes_later() -> None:
    ran = _run("configured")
    assert ran.stderr == ""
    assert ran.stdout.splitlines()[1:3] == [
        '{"queues": 3, "event": "ready", "level": "info"}',
        '{"job_id": "j", "event": "stalled", "level": "warning"}',
    ]
