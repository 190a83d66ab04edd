"""The loggers of this package: structlog's, but never on standard output.

What must hold: a program that configures structlog gets our events as it configured; in one that
does not, those from info on are lines on standard error. There structlog alone would write to standard output,
which belongs to the program.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, cast

import structlog

__all__ = ["Logger", "get_logger"]

Logger = structlog.typing.FilteringBoundLogger

_FROM_INFO = structlog.make_filtering_bound_logger(logging.INFO)


def get_logger(name: str) -> Logger:
    """Return the logger of one area, such as `eventbus.worker`. It may be made before structlog is configured."""
    return cast("Logger", _Logger(name))


class _Logger:
    """Decides at each use, for programs configure when they like."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        if structlog.is_configured():
            return getattr(structlog.get_logger(self._name), method)
        return getattr(
            structlog.wrap_logger(structlog.PrintLogger(sys.stderr), wrapper_class=_FROM_INFO), method
        )
