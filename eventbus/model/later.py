"""The way of a handler to put its job off: no error, no attempt.

Not here: what becomes of the job (`engine.job.later`), and who takes this exception for what it is
(`handlers.consumer` for events, `workflows` for steps and tasks).
"""

from __future__ import annotations

from eventbus.model.durations import Duration, seconds


class Later(Exception):
    """Raised by a handler or a step to run its job again after a while.

    Example: `raise Later("5 minutes")`. That is no error and no attempt: the job is delayed, and keeps its
    idempotency key, its priority, and what it saved. `delay` is the time in seconds. Raises DefinitionError
    for a delay that is no duration from 0 to 100 years.
    """

    def __init__(self, delay: Duration) -> None:
        self.delay: float = seconds(delay, setting="delay")
        super().__init__(self.delay)  # so that it can be pickled, as in a process pool of the program

    def __str__(self) -> str:
        return f"to run again in {self.delay:g} s"
