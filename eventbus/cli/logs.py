"""Logs of the command line: structlog and the standard library's, in one form, on standard error."""

from __future__ import annotations

import logging
import sys
from enum import StrEnum
from typing import Any

import structlog

__all__ = ["LogFormat", "configure_logs"]


_FIRST = ("timestamp", "level", "logger", "event")


class LogFormat(StrEnum):
    """How a log event is written."""

    json = "json"
    console = "console"


def configure_logs(chosen: LogFormat | None, *, level: int = logging.INFO) -> None:
    """Write log events of `level` and above to standard error.

    Without a choice: for people on a terminal, else as JSON lines. A program that has set
    up structlog or the root logger itself keeps its own, unless the format is chosen.
    """
    root = logging.getLogger()
    if chosen is None and (structlog.is_configured() or root.handlers):
        return
    is_console = sys.stderr.isatty() if chosen is None else chosen is LogFormat.console
    before: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=not is_console),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *before,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=before,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(is_console)],
        )
    )
    root.handlers = [handler]
    root.setLevel(level)


def _renderers(is_console: bool) -> list[Any]:
    if is_console:
        # Plain: the colourful tracebacks print local variables, and with them payloads.
        plain = structlog.dev.plain_traceback
        return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    return [structlog.processors.format_exc_info, _order, structlog.processors.JSONRenderer()]


def _order(_logger: object, _method: str, event: dict[str, Any]) -> dict[str, Any]:
    """What every line has comes first."""
    return {name: event.pop(name) for name in _FIRST if name in event} | event
