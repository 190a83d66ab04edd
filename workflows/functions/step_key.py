"""What runs here: the code of a durable function, or a step of one with its key, for the services that it calls."""

from __future__ import annotations

from contextvars import ContextVar

from eventbus import UsageError

__all__ = ["running_code", "set_step_key", "step_key"]

running_code: ContextVar[str] = ContextVar("workflows_running_code", default="")
"""The id of the flow whose code runs here; empty in its steps, and outside of flows."""

_key: ContextVar[str] = ContextVar("workflows_step_key", default="")


def step_key() -> str:
    """Return the idempotency key of the step of a durable function that the caller runs in.

    It is `<flow id>/<run>/<position>`: the same in every attempt of this call, and no other call has it. Give it to the
    service that the step calls, so that an attempt whose worker died does not act twice. Raises UsageError elsewhere.
    """
    key = _key.get()
    if not key:
        raise UsageError(
            "step_key() was called outside of a step of a durable function; call it in the task itself"
        )
    return key


def set_step_key(key: str) -> None:
    """Set the key for the caller's asyncio task, and for the threads that it starts."""
    _key.set(key)
