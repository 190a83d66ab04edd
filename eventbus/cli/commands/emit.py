"""`eventbus emit`: one emission, or one for each JSON line."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Annotated, Any, cast

import msgspec
import typer

from eventbus.cli.commands.lines import LineReader, open_lines, read_all
from eventbus.cli.commands.meter import Meter
from eventbus.cli.commands.relay import Relay
from eventbus.cli.controls.known_queues import doubt_event
from eventbus.cli.failures import CommandError, is_debugging, leave_broken_pipe, one_line, tell
from eventbus.cli.loading import load_provider
from eventbus.cli.logs import configure_logs
from eventbus.cli.loop import run
from eventbus.cli.output import clean_json, say
from eventbus.cli.server_choice import choose_server
from eventbus.cli.session import started
from eventbus.cli.signals import Interrupts
from eventbus.emit.emission import Emission
from eventbus.emit.route import Routes
from eventbus.errors import EventBusError
from eventbus.model import clock
from eventbus.model.event import Event
from eventbus.model.names import check_event_name, shown
from eventbus.provider import EventProvider, known_event
from eventbus.settings.keywords import EmitKeywords

_SETTLE_WITHIN = 2.0
"""Seconds that the lines under way have after an interrupt."""


def emit(
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The event's name.")],
    payload: Annotated[
        str | None, typer.Argument(metavar="[JSON | -]", help="The payload; - reads it; without: null.")
    ] = None,
    *,
    lines: Annotated[
        str | None, typer.Option(metavar="FILE | -", help="Emit one event for each JSON line of it.")
    ] = None,
    is_awaited: Annotated[
        bool, typer.Option("--await", help="Wait for results; print them as JSON lines, in order.")
    ] = False,
    in_flight: Annotated[
        int, typer.Option(min=1, metavar="N", help="Lines under way at most, from the oldest unprinted.")
    ] = 1000,
    url: Annotated[
        str | None, typer.Option(help="The server; default EVENTBUS_URL, else ./.eventbus.")
    ] = None,
    app: Annotated[
        str | None, typer.Option(metavar="MODULE:PROVIDER", help="Use its types, keys and settings.")
    ] = None,
    delay: Annotated[str | None, typer.Option(metavar="DURATION", help="Due after this: 2s, 5m.")] = None,
    priority: Annotated[int, typer.Option(metavar="N", help="-4000 to 4000; lower runs first.")] = 0,
    key: Annotated[str | None, typer.Option(metavar="TEXT", help="The idempotency key.")] = None,
    meta: Annotated[list[str] | None, typer.Option(metavar="K=V", help="Meta data; repeatable.")] = None,
    reply_timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Wait this long at most for each; 0: no limit.")
    ] = None,
) -> int:
    """Emit an event, or one for each line of a file.

    Without --await it ends when everything is in the server. Exit code 1 if anything failed;
    failed lines are told on standard error, and so is an event that nobody in the server knows.
    """
    if lines is not None and payload is not None:
        raise CommandError("expected either a payload or --lines, got both")
    if lines is not None and key is not None:
        raise CommandError(
            "--key would be the same for all lines; give the event a key function and use --app"
        )
    configure_logs(None, level=logging.DEBUG if is_debugging() else logging.WARNING)
    provider = choose_server(load_provider(app) if app is not None else EventProvider(), url)
    options = EmitKeywords(reply=is_awaited, priority=priority)
    if delay is not None:
        options["delay"] = delay
    if key is not None:
        options["idempotency_key"] = key
    if meta:
        options["meta"] = _read_meta(meta)
    if reply_timeout is not None:
        options["reply_timeout"] = reply_timeout
    emitting = _Emitting(provider, _find_event(provider, event, app), options)
    if lines is None:
        return run(emitting.emit_one(read_all() if payload == "-" else (payload or "null").encode()))
    return run(emitting.emit_lines(lines, in_flight))


class _Emitting:
    """One run of the command: the event, its options, and the provider that emits it."""

    def __init__(self, provider: EventProvider, event: Event[Any, Any], options: EmitKeywords) -> None:
        self._provider = provider
        self._event = event
        self._options = options
        self._is_awaited = bool(options.get("reply"))
        route = Routes(provider.settings).find(event)
        self._decode: Callable[[bytes], Any] = route.payload.decode
        self._encode = route.result.encode

    def _render(self, result: Any) -> bytes:
        """Return a result as JSON that a terminal may show."""
        return clean_json(self._encode(result))

    async def emit_one(self, text: bytes) -> int:
        """Emit one payload; print its result, or without --await the id of its job. Return the exit code."""
        try:
            msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            given = shown(text.decode("utf-8", "replace"))
            raise CommandError(
                f"expected the payload to be JSON, such as '{{\"n\": 1}}' in quotes, got: {given}: {error}"
            ) from None
        with Interrupts() as interrupts:
            try:
                async with started(self._provider):
                    doubt = await doubt_event(self._provider, self._event.name)
                    emission = self._emit(text)
                    _note(doubt)
                    result = await _outcome(emission)
                    if emission.groups == 0:
                        _note("nobody took it: the event has no default handler, and no group yet")
            except asyncio.CancelledError:
                if not interrupts.count:
                    raise
                return interrupts.code
        say(self._render(result).decode() if self._is_awaited else emission.job_id, flush=True)
        return 0

    async def emit_lines(self, place: str, limit: int) -> int:
        """Emit a payload for each line. Print the results in the order of the lines, or a summary."""
        source = open_lines(place)
        with Interrupts() as interrupts, Meter(source.size, prints=self._is_awaited) as meter:
            render = self._render if self._is_awaited else None
            relay = Relay(self._emit, render, limit=limit, output=sys.stdout.buffer, meter=meter)
            try:
                async with started(self._provider):
                    _note(await doubt_event(self._provider, self._event.name))
                    reader = LineReader(source)
                    interrupts.act = lambda: _interrupt(interrupts, relay, reader)
                    await relay.run(reader)
            except asyncio.CancelledError:
                if not interrupts.count:
                    raise
            except BrokenPipeError:
                await relay.abandon()
                return leave_broken_pipe()
            left = await relay.abandon()
        return self._tell(relay, left, meter.began, interrupts.code)

    def _emit(self, line: bytes) -> Emission[Any]:
        return self._provider.emit(self._event, self._decode(line), **self._options)

    def _tell(self, relay: Relay, left: int, began: float, code: int) -> int:
        """Print a summary on standard error, and return the exit code."""
        seconds = clock.monotonic() - began
        verb = "answered" if self._is_awaited else "enqueued"
        noun = "emission" if relay.answered == 1 else "emissions"
        text = f"{relay.answered} {noun} of {self._event.name} {verb}"
        text += f" in {seconds:.1f} s ({relay.answered / max(seconds, 0.001):.0f}/s)"
        if relay.failed:
            text += f", {relay.failed} failed"
        if code:
            text += f"; interrupted after line {relay.read}"
            text += f", {left} lines without an answer" if left else ""
        if code or relay.failed or not self._is_awaited or sys.stderr.isatty():
            tell(text)
        return code or (1 if relay.failed else 0)


def _note(doubt: str) -> None:
    if doubt:
        tell(f"note: {doubt}")


async def _outcome(emission: Emission[Any]) -> Any:
    """Await the emission. A declared error of the event becomes a CommandError, because it is no bug."""
    try:
        return await emission
    except EventBusError:
        raise
    except Exception as error:
        raise CommandError(one_line(error), exit_code=1) from error


def _interrupt(interrupts: Interrupts, relay: Relay, reader: LineReader) -> None:
    relay.stop(reader)
    if interrupts.count > 1:
        interrupts.cancel()
    else:
        tell(f"interrupted; lines under way have {_SETTLE_WITHIN:g} s, interrupt again to leave them")
        asyncio.get_running_loop().call_later(_SETTLE_WITHIN, interrupts.cancel)


def _find_event(provider: EventProvider, name: str, app: str | None) -> Event[Any, Any]:
    """Return the event that the provider or its module defines; without an app, one with a name only."""
    check_event_name(name)
    if app is None:
        return Event[Any, Any](name)
    found = known_event(provider, name)
    if found is not None:
        return found
    for value in vars(sys.modules[app.partition(":")[0]]).values():
        if isinstance(value, Event):
            event = cast("Event[Any, Any]", value)
            if event.name == name:
                return event
    raise CommandError(
        f"{app} knows no event {name!r}; check the name, or leave --app out to emit it untyped"
    )


def _read_meta(pairs: list[str]) -> dict[str, Any]:
    meta: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise CommandError(f"expected --meta to be NAME=VALUE, got: {shown(pair)}")
        meta[name] = value
    return meta
