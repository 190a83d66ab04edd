"""Changes of jobs that wait: when they are due, their priority, their payload.

What must always hold: a job that somebody runs, or that has ended, is never changed; a payload that does not
fit its event is refused before anything is sent; a payload that somebody else has changed meanwhile is read
again, not overwritten blindly.

Crash windows of an edit: `answer-lost` (the call is sent again, and the record knows it: it is made once),
`changed-between` (the body that was read is another one by now: it is read and compared anew),
`claimed-between` (the record is active: nothing is changed).
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from eventbus.admin.jobs.revision import differences_of, revision_of
from eventbus.emit.route import Route, Routes
from eventbus.errors import PayloadError, StoreCorrupt, UnknownJob, UsageError
from eventbus.lifecycle import Lifecycle
from eventbus.model import chance
from eventbus.model.durations import Duration, milliseconds
from eventbus.model.event import Event
from eventbus.model.message import decode_message, encode_message
from eventbus.model.names import EVENT_QUEUES, check_job_id, split_group
from eventbus.model.redaction.hidden_values import HiddenValues, mark_guessed
from eventbus.model.redaction.redacting import Names, find_hidden, is_secret_name
from eventbus.settings.keywords import check_priority
from eventbus.settings.settings import Settings
from eventbus.store.calls.control_store import Edit
from eventbus.store.calls.queries import JobLook

__all__ = ["JobEdit", "JobEdits"]

_PLACED = ("waiting", "delayed")
_READS = 5
"""How often a payload is read again that others change at the same time."""


class JobEdit(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an edit: whether it was made, and the state and the revision of the job now.

    `differences` says what has changed since the revision that was given; then nothing was edited.
    """

    changed: bool
    state: str
    revision: str
    differences: list[str] = []


class JobEdits:
    """The methods of the inspector that change a job which waits.

    Each returns False, and changes nothing, if the job runs, has ended, or is in another state that the
    method does not name. Each raises UnknownJob; UsageError for a step of a flow and for a flow that has
    begun; ProviderStopped; and StoreError.
    """

    def __init__(self, life: Lifecycle, settings: Settings, routes: Routes) -> None:
        self._life = life
        self._settings = settings
        self._routes = routes

    async def promote(self, job_id: str, *, call_timeout: Duration | None = None) -> bool:
        """Make a delayed job due now, also one that waits for its next attempt."""
        return await self._edit(job_id, ("delayed",), due=0, deadline=self._settings.deadline(call_timeout))

    async def delay(self, job_id: str, delay: Duration, *, call_timeout: Duration | None = None) -> bool:
        """Make a waiting or delayed job due in `delay` (seconds, a timedelta or text) from now.

        The `reply_timeout` of an emitter that awaits the job counts from the due time that it asked for.
        """
        due_ms = milliseconds(delay, setting="delay")
        return await self._edit(job_id, _PLACED, due=due_ms, deadline=self._settings.deadline(call_timeout))

    async def prioritize(self, job_id: str, priority: int, *, call_timeout: Duration | None = None) -> bool:
        """Give a waiting or delayed job another priority: -4000..4000, lower first. It goes to the end of
        that.
        """
        deadline = self._settings.deadline(call_timeout)
        return await self._edit(job_id, _PLACED, priority=check_priority(priority), deadline=deadline)

    async def replace_payload(
        self,
        event: Event[Any, Any] | str,
        job_id: str,
        payload: Any,
        *,
        call_timeout: Duration | None = None,
    ) -> bool:
        """Give a waiting, delayed or parked job of `event` another payload. Its meta data and its key stay;
        its limit key is that of the new payload.

        Raises PayloadError for a payload that does not fit the event, or that holds `•••` as a report shows
        it instead of a sensitive value; and UsageError for a job of another event.
        """
        route, deadline = self._routes.find(event), self._settings.deadline(call_timeout)
        encoded, limit = msgspec.Raw(route.encode_payload(payload)), route.limit_key(payload)
        _check_whole(msgspec.json.decode(encoded))
        for _ in range(_READS):
            body = await self._read_body(route, job_id, deadline)
            print_ = hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest()
            new = _with_payload(body, encoded, job_id)
            change = {"print": print_, "body": new, "limit": limit}
            word = await self._ask(job_id, (*_PLACED, "parked"), deadline=deadline, **change)
            if word != "other":
                return _read(word, job_id)
        raise UsageError(f"the payload of job {job_id!r} is changed by others all the time; try again")

    async def edit(
        self,
        job_id: str,
        payload: Any,
        *,
        revision: str | None = None,
        reveal: bool = True,
        names: Names | None = is_secret_name,
        call_timeout: Duration | None = None,
    ) -> JobEdit:
        """Give a waiting, delayed or parked job of an event another payload, given as JSON values.

        With `revision`, that of a report, nothing is changed if somebody has edited or moved the job since,
        or if it was tried. Where this provider defines the event, the payload must fit it, and gives the
        limit key. Meta data and key stay. Without `reveal` the editor may not see what is marked as
        Sensitive, nor fields of which `names` says so. If the job has such values, texts about it, such as
        errors, are from now on hidden as a whole, because the editor could put guesses beside them.

        Raises PayloadError, also for a payload that holds `•••` as a report shows it instead of a sensitive
        value; and UsageError for a job of a flow or a tree.
        """
        deadline = self._settings.deadline(call_timeout)
        _check_whole(payload)
        store = self._life.running("edit a job").store
        for _ in range(_READS):
            look = await store.inspection.job(check_job_id(job_id), deadline=deadline)
            if not look.fields:
                raise UnknownJob(job_id)
            now = revision_of(look.fields)
            differences = [] if revision is None else differences_of(revision, now)
            state = look.fields.get("state", "unknown")
            if differences:
                return JobEdit(changed=False, state=state, revision=now, differences=differences)
            change = self._encode(look, job_id, payload)
            if not reveal and self._hides(look, names):
                change["body"] = _mark_guessed(change["body"])
            word = await self._ask(job_id, (*_PLACED, "parked"), deadline=deadline, **change)
            if word != "other":
                changed = _read(word, job_id)
                look = await store.inspection.job(job_id, deadline=deadline)
                found = look.fields.get("state", word)
                return JobEdit(changed=changed, state=found, revision=revision_of(look.fields))
        raise UsageError(f"the payload of job {job_id!r} is changed by others all the time; try again")

    def _encode(self, look: JobLook, job_id: str, payload: Any) -> dict[str, str]:
        """Return what a change sends: the print of the body that it replaces, the new one, and its
        limit key.
        """
        queue = split_group(look.fields.get("queue", ""))[0]
        if not queue.startswith(EVENT_QUEUES) or look.fields.get("root"):
            raise UsageError(f"job {job_id!r} belongs to a flow or a tree, whose input stays as it is")
        name = queue.removeprefix(EVENT_QUEUES)
        route = Route(self._routes.definition(name) or Event(name), self._settings)
        typed = route.payload.decode(msgspec.json.encode(payload))
        encoded = msgspec.Raw(route.encode_payload(typed))
        print_ = hashlib.sha1(look.body.encode(), usedforsecurity=False).hexdigest()
        return {
            "print": print_,
            "body": _with_payload(look.body, encoded, job_id),
            "limit": route.limit_key(typed),
        }

    def _hides(self, look: JobLook, names: Names | None) -> bool:
        event = self._routes.known(split_group(look.fields["queue"])[0].removeprefix(EVENT_QUEUES))
        return HiddenValues(look.body, event, names=names).may_hide

    async def _read_body(self, route: Route, job_id: str, deadline: float) -> str:
        store = self._life.running("replace a payload").store
        look = await store.inspection.job(check_job_id(job_id), deadline=deadline)
        if not look.fields:
            raise UnknownJob(job_id)
        queue = look.fields.get("queue", "")
        if split_group(queue)[0] != route.queue:
            raise UsageError(f"job {job_id!r} is in queue {queue!r}, and not one of event {route.name!r}")
        return look.body

    async def _edit(self, job_id: str, states: tuple[str, ...], *, deadline: float, **change: Any) -> bool:
        return _read(await self._ask(check_job_id(job_id), states, deadline=deadline, **change), job_id)

    async def _ask(self, job_id: str, states: tuple[str, ...], *, deadline: float, **change: Any) -> str:
        edit = Edit(job_id, chance.token(8), states, **change)
        return await self._life.running("change a job").store.controls.edit(edit, deadline=deadline)


def _check_whole(payload: Any) -> None:
    """Raise PayloadError for what was copied from a report that hides a value: the value itself would be
    lost.
    """
    if (place := find_hidden(payload)) is not None:
        raise PayloadError(
            f"the payload holds at {place} what is only shown instead of a sensitive value; give the value "
            "itself, which a report with reveal=True has (eventbus jobs show ID --reveal)",
            path=place,
        )


def _with_payload(body: str, payload: msgspec.Raw, job_id: str) -> str:
    """Return a message with another payload. Raises StoreCorrupt if `body` is none."""
    try:
        message = decode_message(body)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise StoreCorrupt(f"the message of job {job_id} cannot be read: {error}") from None
    message.payload = payload
    return encode_message(message)


def _mark_guessed(body: str) -> str:
    message = decode_message(body)
    marks = msgspec.json.decode(message.hidden, type=dict[str, Any]) if bytes(message.hidden) else {}
    message.hidden = msgspec.Raw(msgspec.json.encode(mark_guessed(marks)))
    return encode_message(message)


def _read(word: str, job_id: str) -> bool:
    """Return whether the job was changed. Raises UnknownJob, UsageError."""
    if word == "unknown":
        raise UnknownJob(job_id)
    if word == "member":
        raise UsageError(f"job {job_id!r} belongs to a flow or a tree, which alone decides when it runs")
    if word == "begun":
        raise UsageError(
            f"flow {job_id!r} has begun or is stopped, and decides itself when it goes on; signal or cancel "
            "it"
        )
    return word == "changed"
