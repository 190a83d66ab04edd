"""Worker processes that are started again whenever they have ended, as an init system would."""

from __future__ import annotations

from collections.abc import Callable

from harness.programs import Program

__all__ = ["Supervisor"]


class Supervisor:
    """One worker at a time; `look` starts the next one if the current one has died."""

    def __init__(self, start: Callable[[], Program]) -> None:
        self._start = start
        self.workers = [start()]

    @property
    def current(self) -> Program:
        return self.workers[-1]

    @property
    def deaths(self) -> int:
        return len(self.workers) - 1

    def look(self) -> None:
        if self.current.has_ended:
            self.workers.append(self._start())

    def story(self) -> str:
        return self.current.story()
