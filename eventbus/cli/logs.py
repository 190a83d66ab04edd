"""The logs of the command line: structlog's and the standard library's, in one format, on standard error."""

from __future__ import annotations

import logging
import sys
from enum import StrEnum
from typing import Any

import structlog

from eventbus.cli.texts import visible

_FIRST = ("timestamp", "level", "logger", "event")


class LogFormat(StrEnum):
    """The formats of log events."""

    json = "json"
    console = "console"


class LogLevel(StrEnum):
    """The lowest level that is written."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"

    @property
    def number(self) -> int:
        """The number of this level in the standard library."""
        return logging.getLevelNamesMapping()[self.name.upper()]


def configure_logs(
    chosen: LogFormat | None, *, level: int = logging.INFO, is_level_chosen: bool = False
) -> None:
    """Write log events of `level` and above to standard error.

    Without a `chosen` format, events are text for people on a terminal, otherwise JSON lines. A program that
    has configured structlog or the root logger keeps its configuration, unless a format was chosen. A level
    that was chosen is set on its root logger.
    """
    root = logging.getLogger()
    if chosen is None and (structlog.is_configured() or root.handlers):
        if is_level_chosen:
            root.setLevel(level)
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
        # Plain tracebacks, because the colourful ones print local variables, and with them payloads.
        plain = structlog.dev.plain_traceback
        colors = sys.stderr.isatty()
        # sort_keys=False keeps the facts in the order of the event, where the job comes first.
        return [
            _clean,
            structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain, sort_keys=False),
        ]
    return [structlog.processors.format_exc_info, _order, structlog.processors.JSONRenderer()]


def _clean(_logger: object, _method: str, event: dict[str, Any]) -> dict[str, Any]:
    """Return the event without characters that would move the cursor or change colours of a terminal.

    A traceback keeps its lines: they stand below the line of the event, each with an indent of its own.
    """
    return {
        name: _clean_lines(value)
        if name == "exception"
        else visible(value)
        if isinstance(value, str)
        else value
        for name, value in event.items()
    }


def _clean_lines(value: Any) -> Any:
    return "\n".join(map(visible, value.split("\n"))) if isinstance(value, str) else value


def _order(_logger: object, _method: str, event: dict[str, Any]) -> dict[str, Any]:
    """Return the event with the keys first that every line has."""
    return {name: event.pop(name) for name in _FIRST if name in event} | event
