"""The loggers of this package: structlog's loggers, but never on standard output.

What must always hold: if a program configures structlog, it gets our events as it configured. If it does not,
events from level info up are lines on standard error. structlog's own default would be standard output, which
belongs to the program.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, cast

import structlog

Logger = structlog.typing.FilteringBoundLogger

_FROM_INFO = structlog.make_filtering_bound_logger(logging.INFO)


def get_logger(name: str) -> Logger:
    """Return the logger of one area, such as `eventbus.worker`. structlog may be configured later."""
    return cast("Logger", _Logger(name))


class _Logger:
    """Picks its destination at each use, because a program may configure structlog at any time."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        if structlog.is_configured():
            return getattr(structlog.get_logger(self._name), method)
        return getattr(
            structlog.wrap_logger(structlog.PrintLogger(sys.stderr), wrapper_class=_FROM_INFO), method
        )
