"""The health port of a worker: it answers `/livez` and `/readyz` for supervisors of the process.

The answers have facts about the worker and nothing of its jobs' content.

The status is 200 with `"ok"`, or 503 with the problems. A starting worker is alive and not ready.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import msgspec
import structlog

from eventbus.cli.http_port import HttpPort, HttpResponse
from eventbus.engine.reporting.health import Health

_log = structlog.get_logger("eventbus.worker")

_PATHS = ("/livez", "/readyz")


class Probes(HttpPort):
    """Answers probes on a port inside its block."""

    def __init__(self, host: str, port: int, health: Callable[[], Health | None]) -> None:
        """Listen at once. Raises CommandError if that fails. `health` is called in other threads."""
        self._health = health
        super().__init__(host, port, self._answer, name="probes", option="--health")

    def __enter__(self) -> Self:
        super().__enter__()
        _log.info("answering probes", host=self.host, port=self.port, paths=_PATHS)
        return self

    def _answer(self, path: str, _: Mapping[str, str]) -> HttpResponse:
        code, said = _read(path, self._health()) if path in _PATHS else (404, {"paths": _PATHS})
        return HttpResponse(code, "application/json", msgspec.json.encode(said) + b"\n")


def _read(path: str, health: Health | None) -> tuple[int, dict[str, Any]]:
    """Return the status and the body for one of the two paths."""
    if health is None:
        return (200 if path == "/livez" else 503), {"status": "the worker starts"}
    found = health.liveness_problems if path == "/livez" else health.readiness_problems
    facts = msgspec.to_builtins(health)
    for name in ("lag", "answered"):
        facts[name] = None if facts[name] is None else round(facts[name], 3)
    return 503 if found else 200, {"status": "; ".join(found) or "ok", **facts}
