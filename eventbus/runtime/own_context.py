"""The context in which a part runs what it schedules, if several callers share the part.

Otherwise a flush, a timer or a reconnection runs in the context of whoever called first. Then its log lines
carry the facts of that job, and in the test kit it ends with the worker that is killed, although others wait
for it.
"""

from __future__ import annotations

from contextvars import Context, ContextVar

PROCESS: ContextVar[object] = ContextVar("process", default=None)
"""To which process of the test kit the running code belongs. Nothing sets it in production."""


def own_context() -> Context:
    """Return a context that has nothing of the running one but its process."""
    context = Context()
    context.run(PROCESS.set, PROCESS.get())
    return context
