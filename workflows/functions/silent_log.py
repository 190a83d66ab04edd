"""A logger that says nothing: for code that repeats what is recorded, and has logged it before."""

from __future__ import annotations

from typing import Any, cast

from eventbus.lowlevel import Logger


class _Silent:
    """Takes every call of a structlog logger."""

    def bind(self, **_: Any) -> _Silent:
        return self

    unbind = try_unbind = new = bind

    def __getattr__(self, name: str) -> Any:
        return self._ignore

    def _ignore(self, *_: Any, **__: Any) -> None:
        pass


SILENT: Logger = cast("Logger", _Silent())
