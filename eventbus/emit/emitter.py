"""The emitter of a running provider: makes ids and messages, and owns the senders and the completion tracker.

There is one emitter for one start; a provider that starts again gets a new emitter. Its name in the server,
its reply stream and its command connection belong to the uplink, which other providers of the event loop may
share.

Not here: batches (`send_buffer`, `tree_sender`), outcomes (`completion`), what is shared (`uplink`), and the
checks of single options (`settings.keywords`).
"""

from __future__ import annotations

import asyncio
import contextlib
from operator import attrgetter, is_
from typing import Any

import msgspec

from eventbus.emit.completion import CompletionTracker
from eventbus.emit.emission import OutcomeDecoder, PendingEmission
from eventbus.emit.emission_check import check_keyless
from eventbus.emit.job_tree import Tree, chunks_of
from eventbus.emit.route import Route
from eventbus.emit.send_buffer import SendBuffer
from eventbus.emit.tree_sender import TreeSender
from eventbus.emit.uplink import Uplink
from eventbus.errors import PayloadError, ProviderStopped, StoreError, StoreUnavailable
from eventbus.model import clock
from eventbus.model.codec import Codec
from eventbus.model.containment import contained, original
from eventbus.model.durations import Duration, milliseconds, seconds
from eventbus.model.message import NOT_HIDDEN, EventMessage, encode_bare, encode_message
from eventbus.model.names import check_key
from eventbus.settings.keywords import EmitOptions, check_priority
from eventbus.settings.merging import option_beside, read_merging
from eventbus.settings.settings import Settings
from eventbus.settings.terms import keep_text, read_due, read_ttl
from eventbus.store.keys import EVENT_KEY, key_digest, payload_digest
from eventbus.store.scripting.script_rows import DEBOUNCE, JOIN, KEEP_LAST, REUSE, SUPERSEDE, THROTTLE, AddRow
from eventbus.store.store import Store
from eventbus.telemetry.logging import get_logger
from eventbus.telemetry.propagation import Ambient, current
from eventbus.telemetry.spans import baggage_around, send_context

_log = get_logger("eventbus.provider")

_START_PATIENCE = 2.0  # seconds that the server has to answer at the start; emissions wait longer
_STOP_PATIENCE = 5.0  # seconds for the unsent emissions and trees at the stop
_MEETINGS = {"throttle": THROTTLE, "debounce": DEBOUNCE, "keep_last": KEEP_LAST, "supersede": SUPERSEDE}
_DEFAULT_DEADLINE = 30.0  # seconds; for an unsent emission without a reply timeout
_OF_ONE_EMISSION = frozenset(
    {"idempotency_key", "correlation_id", "meta", "retry", "reply", "timeout", "ttl"}
)
"""The options that no plan depends on."""
_asked_by = attrgetter(*(name for name in EmitOptions.__struct_fields__ if name not in _OF_ONE_EMISSION))


class _Plan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The values that follow from an emission's options alone; `delay` and `due` in ms, `''` if absent."""

    delay: int | str
    due: int | str
    wait: float
    """Seconds until the job is due."""
    timeout: float | None
    """Seconds until the reply is overdue, counted from when the job is due; None for no limit."""
    patience: float
    """Seconds after which an emission that is not in the server is given up."""
    priority: int
    lifo: int
    meeting: int
    """What happens if a job has the key (header of `add.lua`)."""
    span: int | str
    """In ms: the window of a throttle, or how long a debounced job waits at most; `''` if absent."""
    keep: str
    """How long the job is kept once it has ended (`AddRow`)."""
    keyed_by: str
    """The option that needs a key, or `''`."""
    is_plain: bool
    """Whether the options ask for nothing but a reply, and not for another queue row than the event's own."""


class Emitter:
    """Everything that one started provider needs to emit."""

    def __init__(self, uplink: Uplink, settings: Settings) -> None:
        """The emitter leaves `uplink` in `aclose`."""
        self._uplink = uplink
        self.store: Store = uplink.store.share(replicated=settings.durability == "replicated")
        store = self.store
        self._settings = settings
        self.tracker: CompletionTracker = CompletionTracker(store, uplink, settings=settings)
        self._tree_sender = TreeSender(store, self.tracker, uplink.id)
        self.buffer: SendBuffer = SendBuffer(store, self.tracker, uplink.id, trees=self._tree_sender)
        self._meta = Codec(dict[str, Any], role="meta", owner="meta", max_bytes=settings.max_payload)
        self._make_job_id = uplink.make_job_id
        self._planned = EmitOptions()
        self._asked: tuple[Any, ...] = ()
        """The values of the options that `_plan` depends on."""
        self._plan = self._make_plan(self._planned)
        self._refusal = ""
        """Why nothing new is taken."""
        self._has_left = False

    async def start(self, *, reads_only: bool = False) -> None:
        """Connect and start sending. With `reads_only` nothing is written to the server, and no emission is
        taken.

        An unreachable server is not an error here: emissions wait for it within their own deadlines.
        Raises StoreRefused if the server is reachable but cannot be used.
        """
        allows = self._settings.allow_eviction
        deadline = clock.monotonic() + _START_PATIENCE
        availability = self.store.availability
        # Others that use the uplink already want to know of an outage, whoever notices it.
        with contextlib.nullcontext() if self._uplink.is_reading else availability.quiet():
            try:
                await self.store.start(deadline=deadline, allow_eviction=allows, reads_only=reads_only)
                if not reads_only:
                    await self._uplink.reader.keeper.open(deadline=deadline)
            except StoreUnavailable as error:
                availability.note_failure(error)  # so that its return is logged
                _log.warning("started without a server, trying on", error=str(error))
        if reads_only:
            self._refusal = "the provider only reads"
            return
        self._uplink.start_roles()

    async def stop(self) -> None:
        """Fail all waiters, and send the emissions that are not sent yet. Takes 5 s at most."""
        self._refusal = "the provider is stopping"  # from here on, nothing new is taken
        stopped = ProviderStopped("the provider stopped before the outcome came")
        self.tracker.dismiss(stopped)
        try:
            async with asyncio.timeout(_STOP_PATIENCE):
                await self.buffer.flush()
                await self._tree_sender.aclose(_STOP_PATIENCE)
        except (TimeoutError, StoreError) as error:
            _log.warning("stopping without the server", error=str(error) or "no answer in time")
        self.buffer.abandon()
        await self.buffer.aclose()
        self.tracker.close(stopped)

    async def aclose(self) -> None:
        """End the calls of this provider, and leave the uplink; also if the start failed. Idempotent.

        Takes 1 s at most.
        """
        if self._has_left:
            return
        self._has_left = True  # before the first wait, so that it is counted once
        await self.store.aclose()
        try:
            await self._uplink.leave()
        except StoreError as error:
            _log.warning("stopping without the server", error=str(error))

    def emit(
        self, route: Route, payload: Any, options: EmitOptions, *, is_bounded: bool = True
    ) -> PendingEmission[Any]:
        """Emit one event; see `EventProvider.emit`. Only with `is_bounded` a full send buffer refuses it."""
        if self._refusal:
            raise ProviderStopped(f"cannot emit {route.name}: {self._refusal}")
        if is_bounded:
            self.buffer.check_room(route.name)
        # By identity, for speed: `emit_options` returns the same object for the usual options.
        plan = self._plan if options is self._planned else self._plan_for(options)
        event = route.event
        reply = event.reply if options.reply is None else options.reply and event.default
        data = route.encode_payload(payload)
        job_id = self._make_job_id()
        key = self._key_of(route, payload, options)
        digest = key_digest(key) if key else ""
        if plan.keyed_by and not key:
            check_keyless(plan.keyed_by, route.name, payload)
            digest = EVENT_KEY
        ambient = current()
        body, correlation_id = self._message(route, data, job_id, key, options, ambient)
        emission: PendingEmission[Any] = PendingEmission(
            route,
            self.tracker,
            job_id,
            correlation_id,
            plan.timeout,
            reply=reply,
            causation_id=ambient.job_id,
        )
        deadline = clock.monotonic() + plan.patience
        row: AddRow | None = None
        limit = "" if route.limit_by is None else route.limit_key(payload)
        if key or limit or not plan.is_plain:
            row = _row(job_id, body, digest, data, plan, reply=reply)._replace(limit=limit)
        if reply:  # registered before it can be sent, so that no outcome finds it missing
            if self._uplink.why_broken:
                raise ProviderStopped(f"cannot await {route.name}: {self._uplink.why_broken}")
            self.tracker.register(emission, delay=plan.wait)
        if row is None:
            self.buffer.put_plain(emission, route, body, reply=int(reply), deadline=deadline)
        else:
            self.buffer.put(emission, route, row, options.require_worker, deadline=deadline)
        return emission

    def _plan_for(self, options: EmitOptions) -> _Plan:
        """Return the plan for options. The last one is kept, because the next emission mostly has the same
        options, or others that no plan depends on, such as a key.
        """
        # By identity: equal values may be of other types, which are refused.
        if self._asked and all(map(is_, _asked_by(options), self._asked)):
            self._planned = options
            return self._plan
        return self._make_plan(options)

    def _make_plan(self, options: EmitOptions) -> _Plan:
        """Return the plan for options, and keep it."""
        delay, due, wait = read_due(options)
        timeout = self._reply_timeout(options)
        priority, merging = check_priority(options.priority), read_merging(options)
        keep = keep_text(options.keep_completed, options.keep_failed)
        keyed_by = option_beside(merging, options)
        meeting = _MEETINGS.get(keyed_by, REUSE if options.reuse_failure else JOIN)
        if merging is not None and merging.delay:
            delay, wait = merging.delay, (merging.span or merging.delay) / 1000
        plan = _Plan(
            delay=delay,
            due=due,
            wait=wait,
            timeout=timeout,
            patience=timeout or _DEFAULT_DEADLINE,
            priority=priority,
            lifo=int(options.lifo),
            meeting=meeting,
            span=merging.span if merging is not None and merging.span else "",
            keep=keep,
            keyed_by=keyed_by,
            is_plain=options.require_worker is None
            and (delay, due, priority, options.lifo, meeting, keep) == ("", "", 0, False, JOIN, ""),
        )
        if options.at is None:  # with `at`, the wait is shorter at each emission
            self._planned, self._asked, self._plan = options, _asked_by(options), plan
        return plan

    def add_tree(
        self,
        tree: Tree,
        reading: OutcomeDecoder,
        *,
        correlation_id: str,
        call_timeout: Duration | None = None,
    ) -> PendingEmission[Any]:
        """Add a tree. The returned emission stands for the outcome of the tree's root."""
        patience = self._settings.call_timeout(call_timeout)
        if refusal := self._refusal or self._uplink.why_broken:
            raise ProviderStopped(f"cannot start {reading.name}: {refusal}")
        emission: PendingEmission[Any] = PendingEmission(
            reading, self.tracker, tree.id, correlation_id, None, reply=True, causation_id=current().job_id
        )
        emission.keep_quiet()
        if tree.is_lone:
            self.tracker.register(emission, delay=0.0)  # before it can be sent
            self.buffer.put_root(emission, tree, deadline=clock.monotonic() + patience)
        else:
            self._tree_sender.put(emission, chunks_of(tree, reply=True), patience=patience)
        return emission

    async def result(self, route: OutcomeDecoder, job_id: str, reply_timeout: float | None) -> Any:
        """Wait for the outcome of any job; see `EventProvider.result`."""
        # The waiters were failed already, so nothing would end a new wait.
        if refusal := self._refusal or self._uplink.why_broken:
            raise ProviderStopped(f"cannot wait for a result: {refusal}", job_id=job_id)
        emission: PendingEmission[Any] = PendingEmission(
            route, self.tracker, job_id, job_id, reply_timeout, reply=True
        )
        deadline = clock.monotonic() + (reply_timeout or self._settings.call_timeout())
        try:
            # Before the look, so that an outcome which arrives during it is not missed.
            self.tracker.watch(emission)
            await self.tracker.lookup.look_up([job_id], deadline=deadline)
            if reply_timeout is not None and not emission.done():
                emission.bucket = self.tracker.deadlines.add(emission, reply_timeout)
            return await emission
        except StoreUnavailable as error:
            if self._refusal:  # the stop closed the connection under the look
                raise ProviderStopped(
                    "the provider stopped before the outcome came", job_id=job_id
                ) from error
            raise
        finally:
            self.tracker.waits.drop(emission)

    def _message(
        self, route: Route, data: bytes, job_id: str, key: str, options: EmitOptions, ambient: Ambient
    ) -> tuple[str, str]:
        """Return the job's body and the emission's correlation id."""
        chain = options.correlation_id or ambient.correlation_id
        correlation_id = chain or job_id
        traceparent, tracestate = send_context(
            route.name, job_id, ambient, correlation_id, self._settings.name, self._settings.url
        )
        baggage = baggage_around()
        is_bare = options.timeout is None and options.ttl is None
        if is_bare and not (
            chain or ambient.meta or traceparent or key or options.meta or options.retry or baggage
        ):
            return encode_bare(data, route.hidden), job_id  # the payload alone, which is faster and shorter
        message = EventMessage(
            payload=msgspec.Raw(data),
            meta=self._merged_meta(ambient.meta, options.meta),
            correlation_id=chain,
            causation_id=ambient.job_id,
            traceparent=traceparent,
            tracestate=tracestate,
            key=key,
            retry=None if options.retry is None else options.retry.to_wire(),
            baggage=baggage,
            timeout=None if options.timeout is None else milliseconds(options.timeout, setting="timeout"),
            ttl=None if options.ttl is None else read_ttl(options.ttl),
            hidden=msgspec.Raw(route.hidden) if route.hidden else NOT_HIDDEN,
        )
        return encode_message(message), correlation_id

    def _merged_meta(self, outer: Any, inner: dict[str, Any] | None) -> dict[str, Any] | None:
        """Merge the meta of the surrounding job with that of the options, which wins. Raises as its codec."""
        meta: dict[str, Any] = {**(outer or {}), **(inner or {})}
        if not meta:
            return None
        self._meta.encode(meta)  # only to check it; the message encodes it again
        return meta

    def _reply_timeout(self, options: EmitOptions) -> float | None:
        """Return the reply timeout in seconds, None for no limit."""
        given = options.reply_timeout
        if given is msgspec.UNSET:
            return self._settings.reply_timeout
        return None if given is None else seconds(given, setting="reply_timeout") or None  # 0: no limit

    def _key_of(self, route: Route, payload: Any, options: EmitOptions) -> str:
        """Return the idempotency key: of the options, or from the event's key function, `""` for none."""
        if options.idempotency_key is not None:
            return check_key(options.idempotency_key)
        if route.key is None:
            return ""
        try:
            key = contained(route.key, payload)
        except Exception as error:  # noqa: BLE001  (whatever a function of the user's raises)
            own = original(error)
            raise PayloadError(
                f"the key function of {route.name} raised {type(own).__name__}: {own}", event=route.name
            ) from own
        return check_key(key)


def _row(job: str, body: str, digest: str, data: bytes, plan: _Plan, *, reply: bool) -> AddRow:
    """Return the row of an emission with options; its queue is for the send buffer to say."""
    return AddRow(
        id=job,
        queue=1,
        body=body,
        key=digest,
        print=payload_digest(data) if digest else "",
        delay=plan.delay,
        due=plan.due,
        priority=plan.priority,
        lifo=plan.lifo,
        reply=int(reply),
        meeting=plan.meeting,
        span=plan.span,
        keep=plan.keep,
    )
