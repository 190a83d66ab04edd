"""Every error that the package raises, in one tree.

    EventBusError
    ├── UsageError                  the program is wrong; nothing was sent
    │   ├── ConfigError             a setting or a URL
    │   └── DefinitionError         an event, a handler, a name, an option
    ├── PayloadError                a value does not fit its event's type, or is too large
    ├── StoreError                  the server answered with an error, or not at all
    │   ├── StoreUnavailable        not reachable, or the connection broke before the answer
    │   ├── StoreRefused            reachable, and it said no (password, rights, read-only, memory)
    │   └── StoreCorrupt            a record in the server is not one that this package wrote
    ├── EmitError                   an emission was not accepted, or it is not known whether it was
    │   ├── QueueFull               the queue is at its `max_waiting`
    │   └── NoWorker                no worker serves it, and the emission requires one
    ├── UnknownJob                  the server has no record of the job (any more), or the id is not a job's
    ├── ResponseTimeout             no outcome within `reply_timeout`; the job goes on
    ├── SignalRefused               a job did not take a signal
    ├── CountChanged                a bulk operation would be about another number of jobs than was expected
    ├── ProviderStopped             the provider stopped while the caller waited
    ├── ProcessDied                 the process that ran a handler ended before its handler did
    └── JobError                    the recorded outcome of a job that did not complete
        ├── HandlerError            its handler raised
        ├── EmissionExpired         not started within its `ttl`
        ├── JobCancelled            cancelled on request
        └── StalledError            its workers died more often than `max_stalls`, and it may be the cause

`Unrecoverable` is not in the tree, nor is `Later`: handlers raise them, the package never does.
A class exists only where a caller would act differently on it. It carries its
facts as attributes. No error of the Redis client leaves `eventbus.store`.
"""

from __future__ import annotations

from typing import Literal

__all__ = [
    "ConfigError",
    "CountChanged",
    "DefinitionError",
    "EmissionExpired",
    "EmitError",
    "EventBusError",
    "HandlerError",
    "JobCancelled",
    "JobError",
    "NoWorker",
    "PayloadError",
    "ProcessDied",
    "ProviderStopped",
    "QueueFull",
    "ResponseTimeout",
    "SignalRefused",
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
    """The base class of all errors of this package."""


class UsageError(EventBusError):
    """The calling program is wrong; nothing was sent and nothing changed."""


class ConfigError(UsageError):
    """A setting or a URL cannot be used. `setting` is its name, or None."""

    def __init__(self, message: str, *, setting: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting


class DefinitionError(UsageError):
    """An event, a handler, a name or an option cannot be used as given."""


class PayloadError(EventBusError):
    """A payload or a result does not fit its event, or is too large or too deep.

    `event` is the event's name, or None. `path` is the place inside the value as a JSON path
    (`$` is the root), or None. `role` says which value it was.
    """

    def __init__(
        self,
        message: str,
        *,
        event: str | None = None,
        path: str | None = None,
        role: Literal["payload", "result", "meta", "progress", "saved value"] = "payload",
    ) -> None:
        super().__init__(message)
        self.event = event
        self.path = path
        self.role = role


class StoreError(EventBusError):
    """The server answered with an error that has no class of its own, or did not answer.

    `sent` is True when the server may have carried the command out all the same.
    """

    sent = False


class StoreUnavailable(StoreError):
    """The server cannot be reached, or the connection broke before an answer came.

    `sent` is False when the command certainly did not reach the server, True when it
    may have. `address` is the server's address, without a password.
    """

    def __init__(self, message: str, *, address: str = "", sent: bool = False) -> None:
        super().__init__(message)
        self.address = address
        self.sent = sent


class StoreRefused(StoreError):
    """The server is reachable and refused the command; repeating it alone will not help.

    `code` is the first word of the server's answer, such as `NOAUTH`, `READONLY` or `OOM`.
    """

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class StoreCorrupt(StoreError):
    """A record in the server is damaged, or this package did not write it."""


class EmitError(EventBusError):
    """An emission was not accepted, or it is unknown whether it was.

    `enqueued` is False when the job is certainly not in the server. It is None when the
    server's answer was lost: then ask with `provider.result(error.job_id)`.
    """

    def __init__(
        self, message: str, *, event: str = "", job_id: str = "", enqueued: Literal[False] | None = False
    ) -> None:
        super().__init__(message)
        self.event = event
        self.job_id = job_id
        self.enqueued: Literal[False] | None = enqueued


class QueueFull(EmitError):
    """A queue already holds `max_waiting` jobs; the emission was enqueued for no group.

    `queue` is the full queue: that of the event, or of one of its groups, `event.<name>@<group>`.
    """

    def __init__(self, message: str, *, event: str, job_id: str, queue: str) -> None:
        super().__init__(message, event=event, job_id=job_id, enqueued=False)
        self.queue = queue


class NoWorker(EmitError):
    """No worker serves the event, or one of its groups, and the emission has `require_worker`; it was
    enqueued for no group.

    `queue` is the queue that nobody serves: that of the event, or of one of its groups,
    `event.<name>@<group>`.
    """

    def __init__(self, message: str, *, event: str, job_id: str, queue: str) -> None:
        super().__init__(message, event=event, job_id=job_id, enqueued=False)
        self.queue = queue


class UnknownJob(EventBusError):
    """The server has no record of this job.

    It never existed, its retention is over, the server lost it, or `job_id` is not the id of a job. An
    emission of an event with `default=False` makes no job while the event has no group: `emission.groups` is
    0 then. `why` replaces the message where another reason is known.
    """

    def __init__(self, job_id: str, why: str = "") -> None:
        super().__init__(
            why
            or f"no record of job {job_id!r}: it never existed, its retention is over, the server lost it, "
            "or its event had no default handler and no group when it was emitted; raise keep_completed or "
            "keep_failed to ask for outcomes later"
        )
        self.job_id = job_id


class SignalRefused(EventBusError):
    """A job did not take a signal, and nothing has changed.

    `reason` is `ended` (the job), `stopping` (its tree is being cancelled or rolled back), `full` (it has
    1,000 signals, or 1 MiB of them, that it has not taken yet), `foreign` (another program's value stands in
    the place of its inbox) or `unwanted` (it accepts no such trigger now: that of a state machine at another
    place, or one that another trigger came before).
    """

    def __init__(
        self, job_id: str, name: str, reason: str, detail: str = "", *, is_trigger: bool = False
    ) -> None:
        """`detail` says why, in place of the text for `reason`. A trigger is sent to the flow of a state
        machine.
        """
        what, owner = ("trigger", "flow") if is_trigger else ("signal", "job")
        super().__init__(
            f"{what} {name} was not sent to {owner} {job_id}: {detail or _UNTAKEN.get(reason, reason)}"
        )
        self.job_id = job_id
        self.reason = reason


class CountChanged(EventBusError):
    """A bulk operation was not begun: by now it would be about `count` jobs, and not about some `expected`
    ones.
    """

    def __init__(self, count: int, expected: int) -> None:
        super().__init__(f"{count} jobs are meant by now, and not {expected}; look at them again")
        self.count = count
        self.expected = expected


_UNTAKEN = {
    "ended": "the job has ended",
    "stopping": "its tree is being cancelled or rolled back",
    "full": "it has 1,000 signals, or 1 MiB of them, that it has not taken yet; try again later",
    "foreign": "another program's value stands in the place of its inbox",
    "unwanted": "the job accepts no such trigger now",
}


class ResponseTimeout(EventBusError):
    """No outcome came within `reply_timeout` seconds after the job became due.

    The job is not cancelled: `provider.result(error.job_id)` waits for it again.
    `timeout` is in seconds. `state` is the job's state at that moment (`"waiting"`, `"active"`,
    `"delayed"`, ...), or `"unknown"` if the server did not answer. If the server has no record
    of the job, UnknownJob is raised instead.
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
    "waiting": " (no worker took it yet: is one running for this event, and is the event paused or limited?)",
    "active": " (a handler is running it)",
    "delayed": " (not due yet: it backs off before a retry, or was put off or delayed)",
}


class ProviderStopped(EventBusError):
    """The provider stopped, or was not started. A job that is enqueued goes on without it."""

    def __init__(self, message: str, *, job_id: str = "") -> None:
        super().__init__(message)
        self.job_id = job_id


class ProcessDied(EventBusError):
    """The process that ran a handler with `pool="process"` ended before its handler did.

    Or the worker killed it, because the handler wrote into the process's channel to the worker or
    closed it. This counts as a failed attempt. Emitters get a HandlerError whose `type_name` is this
    class. `exit_code` is negative for the signal that ended the process (-9: perhaps the system ran
    out of memory), or None.
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
    """The handler raised, and no attempt is left.

        try:
            await provider.emit(OrderPlaced, order)
        except HandlerError as error:
            print(error.type_name, error.remote_message)

    `type_name` is the remote exception's class (with its module unless built in),
    `remote_message` its text, `remote_traceback` its traceback as text (may be cut),
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
    """The job was cancelled. `reason` is the text that the caller of `cancel` gave, or empty."""

    def __init__(self, message: str, *, event: str = "", job_id: str = "", reason: str = "") -> None:
        super().__init__(message, event=event, job_id=job_id)
        self.reason = reason


class StalledError(JobError):
    """The job's workers died or lost their leases, and the job was blamed more than `max_stalls` times.

    Nothing else could be blamed the last time, unless it was blamed more than four times as often. `stalls`
    counts all stalls, also those that it was not blamed for.
    """

    def __init__(self, message: str, *, event: str = "", job_id: str = "", stalls: int = 0) -> None:
        super().__init__(message, event=event, job_id=job_id)
        self.stalls = stalls


class Unrecoverable(Exception):
    """Raised by a handler to fail its job at once, without the attempts that are left.

    Example: `raise Unrecoverable(f"no such customer: {order.customer}")`.
    """
