"""Every error that leaves the package, in one tree.

    EventBusError
    ├── UsageError                  the program is wrong; nothing was sent
    │   ├── ConfigError             a setting or a URL
    │   └── DefinitionError         an event, a handler, a name, an option
    ├── PayloadError                a value does not fit its event's type, or is too large
    ├── StoreError                  the server answered with an error, or not at all
    │   ├── StoreUnavailable        not reachable, or the connection broke before the answer
    │   ├── StoreRefused            reachable, and it said no (password, rights, read-only, memory)
    │   └── StoreCorrupt            what lies in the server is not what this package wrote
    ├── EmitError                   an emission was not accepted, or it is not known whether it was
    │   └── QueueFull               the queue is at its `max_waiting`
    ├── UnknownJob                  never existed, or its retention is over
    ├── ResponseTimeout             no outcome within `reply_timeout`; the job goes on
    ├── ProviderStopped             the provider stopped while the caller waited
    ├── ProcessDied                 the process that ran a handler ended before its handler did
    └── JobError                    the recorded outcome of a job that did not complete
        ├── HandlerError            its handler raised
        ├── EmissionExpired         not started within its `ttl`
        ├── JobCancelled            cancelled on request
        └── StalledError            its workers died more often than `max_stalls`

`Unrecoverable` stands outside: handlers raise it, the package never does.
A class exists only where a caller would act differently on it, and carries its
facts as attributes. No error of the Redis client leaves `eventbus.store`.
"""

from __future__ import annotations

from typing import Literal

__all__ = [
    "ConfigError",
    "DefinitionError",
    "EmissionExpired",
    "EmitError",
    "EventBusError",
    "HandlerError",
    "JobCancelled",
    "JobError",
    "PayloadError",
    "ProcessDied",
    "ProviderStopped",
    "QueueFull",
    "ResponseTimeout",
    "StalledError",
    "StoreCorrupt",
    "StoreError",
    "StoreRefused",
    "StoreUnavailable",
    "UnknownJob",
    "Unrecoverable",
    "UsageError",
]


class EventBusError(Exception):
    """The root of all errors of this package."""


class UsageError(EventBusError):
    """The calling program is wrong; nothing was sent and nothing changed."""


class ConfigError(UsageError):
    """A setting or a URL cannot be used. `setting` names it."""

    def __init__(self, message: str, *, setting: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting


class DefinitionError(UsageError):
    """An event, a handler, a name or an option is not usable as given."""


class PayloadError(EventBusError):
    """A payload or a result does not fit its event, or is too large or too deep.

    `event` is the event's name where it is known, `path` the place inside the value
    (JSON path, `$` the root), `role` says which of the two values it was.
    """

    def __init__(
        self,
        message: str,
        *,
        event: str | None = None,
        path: str | None = None,
        role: Literal["payload", "result", "meta", "progress"] = "payload",
    ) -> None:
        super().__init__(message)
        self.event = event
        self.path = path
        self.role = role


class StoreError(EventBusError):
    """The server answered with an error that has no class of its own, or not at all.

    `sent` is True when a command may have been carried out all the same.
    """

    sent = False


class StoreUnavailable(StoreError):
    """The server cannot be reached, or the connection broke before an answer came.

    `sent` is False when the command certainly did not reach the server, True when it
    may have. `address` is where it was tried, without a password.
    """

    def __init__(self, message: str, *, address: str = "", sent: bool = False) -> None:
        super().__init__(message)
        self.address = address
        self.sent = sent


class StoreRefused(StoreError):
    """The server is there and said no; repeating alone will not help.

    `code` is the first word of its answer, such as `NOAUTH`, `READONLY` or `OOM`.
    """

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class StoreCorrupt(StoreError):
    """A record in the server cannot be read as what this package wrote there."""


class EmitError(EventBusError):
    """An emission was not accepted, or it is unknown whether it was.

    `enqueued` is `False` when it certainly was not. It is `None` when the answer was
    lost: then `provider.result(job_id)` tells, with this error's `job_id`.
    """

    def __init__(
        self,
        message: str,
        *,
        event: str = "",
        job_id: str = "",
        enqueued: Literal[False] | None = False,
    ) -> None:
        super().__init__(message)
        self.event = event
        self.job_id = job_id
        self.enqueued: Literal[False] | None = enqueued


class QueueFull(EmitError):
    """The queue holds `max_waiting` jobs already; nothing was enqueued."""

    def __init__(self, message: str, *, event: str, job_id: str, queue: str) -> None:
        super().__init__(message, event=event, job_id=job_id, enqueued=False)
        self.queue = queue


class UnknownJob(EventBusError):
    """No record of this job: it never existed, or its retention is over."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"no record of job {job_id!r}: it never existed, or its retention is over; "
            "raise keep_completed or keep_failed to ask for outcomes later"
        )
        self.job_id = job_id


class ResponseTimeout(EventBusError):
    """No outcome within `reply_timeout` seconds after the job became due.

    The job is not cancelled: `provider.result(job_id)` waits for it again.
    `state` is the job's state at that moment (`"waiting"`, `"active"`, `"delayed"`, ...),
    or `"unknown"` if the server could not be asked.
    """

    def __init__(self, *, event: str, job_id: str, timeout: float, state: str) -> None:
        super().__init__(
            f"no outcome of {event or 'job'} within {timeout:g} s; job {job_id} is {state}"
            f"{_TIMEOUT_HINTS.get(state, '')}; await provider.result({job_id!r}) to wait again"
        )
        self.event = event
        self.job_id = job_id
        self.timeout = timeout
        self.state = state


_TIMEOUT_HINTS = {
    "waiting": " (no worker took it yet: is one running for this event?)",
    "active": " (a handler is running it)",
    "delayed": " (backing off before a retry)",
}


class ProviderStopped(EventBusError):
    """The provider stopped, or was not started. An enqueued job goes on without it."""

    def __init__(self, message: str, *, job_id: str = "") -> None:
        super().__init__(message)
        self.job_id = job_id


class ProcessDied(EventBusError):
    """The process that ran a handler with `pool="process"` ended before its handler did.

    It counts as a failed attempt; an emitter sees a HandlerError with this name. `exit_code` is
    negative for the signal that ended it (-9: perhaps the system had no memory left).
    """

    def __init__(self, message: str, *, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class JobError(EventBusError):
    """The recorded outcome of a job that did not complete."""

    def __init__(self, message: str, *, event: str = "", job_id: str = "") -> None:
        super().__init__(message)
        self.event = event
        self.job_id = job_id


class HandlerError(JobError):
    """The handler raised and no attempt is left.

    `type_name` is the remote exception's class (with module unless built in),
    `remote_message` its text, `remote_traceback` the traceback as text (may be cut),
    `attempts` the number of attempts that ended in an error, `causes` the chain of
    causes, nearest first, each as `(type_name, message)`.
    """

    def __init__(
        self,
        *,
        event: str,
        job_id: str,
        type_name: str,
        remote_message: str,
        remote_traceback: str = "",
        attempts: int = 1,
        causes: tuple[tuple[str, str], ...] = (),
    ) -> None:
        times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        text = f"{type_name}: {remote_message}" if remote_message else type_name
        super().__init__(f"{text} (in the handler of {event}, after {times})", event=event, job_id=job_id)
        self.type_name = type_name
        self.remote_message = remote_message
        self.remote_traceback = remote_traceback
        self.attempts = attempts
        self.causes = causes


class EmissionExpired(JobError):
    """No handler started the job within its `ttl` after it became due."""


class JobCancelled(JobError):
    """The job was cancelled. `reason` is what the canceller said, or empty."""

    def __init__(self, message: str, *, event: str = "", job_id: str = "", reason: str = "") -> None:
        super().__init__(message, event=event, job_id=job_id)
        self.reason = reason


class StalledError(JobError):
    """The job's workers died or lost their leases more often than `max_stalls`. `stalls` counts them."""

    def __init__(self, message: str, *, event: str = "", job_id: str = "", stalls: int = 0) -> None:
        super().__init__(message, event=event, job_id=job_id)
        self.stalls = stalls


class Unrecoverable(Exception):
    """Raised by a handler: fail now, whatever attempts are left."""
