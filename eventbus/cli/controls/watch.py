"""`eventbus watch`: prints what happens to jobs and queues, as it happens, until it is interrupted."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Annotated

import typer

from eventbus.admin.queue_name import queue_of
from eventbus.cli.controls.known_queues import note_unknown_queue
from eventbus.cli.failures import CommandError
from eventbus.cli.output import say, write_json
from eventbus.cli.signals import Interrupts
from eventbus.cli.toolkit import UrlOption, ask_server, moment, printable
from eventbus.provider import EventProvider
from eventbus.telemetry.change import CHANGE_KINDS, Change

_WIDTH = max(map(len, CHANGE_KINDS))


def watch(
    event: Annotated[
        str | None,
        typer.Argument(metavar="[EVENT]", help="An event, NAME@GROUP, or a queue; without it all queues."),
    ] = None,
    *,
    kinds: Annotated[
        list[str] | None, typer.Option("--kind", help="These kinds alone, such as failed; may be repeated.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="POSITION", help="Go on behind this position.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", min=1, help="End after so many lines.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print an object on a line for each.")] = False,
    url: UrlOption = None,
) -> None:
    """Print what happens to jobs and queues, from now on or from a position on, until it is interrupted."""
    unknown = [kind for kind in kinds or () if kind not in CHANGE_KINDS]
    if unknown:
        raise CommandError(
            f"there are no changes of kind {unknown[0]!r}; there are: {', '.join(CHANGE_KINDS)}"
        )
    wanted = {*(kinds or CHANGE_KINDS), "missed"}

    async def follow(provider: EventProvider) -> None:
        left = count
        changes = provider.watch(event, since=since)
        if event is not None:
            await note_unknown_queue(provider, queue_of(event))
        async with aclosing(changes):
            async for change in changes:
                if change.what in wanted:
                    _print(change, as_json=as_json)
                    left = None if left is None else left - 1
                    if left == 0:
                        return

    async def follow_until_interrupted(provider: EventProvider) -> int:
        with Interrupts() as interrupts:
            try:
                await follow(provider)
            except asyncio.CancelledError:
                if not interrupts.count:
                    raise
            return interrupts.code

    raise typer.Exit(ask_server(url, follow_until_interrupted, reads_only=True))


def _print(change: Change, *, as_json: bool) -> None:
    if as_json:
        fields = {
            name: value
            for name in Change.__struct_fields__
            if name != "error" and (value := getattr(change, name)) not in ("", 0, None)
        }
        write_json(fields)
    else:
        say(_line(change), flush=True)


def _line(change: Change) -> str:
    at = datetime.fromtimestamp(change.at_ms / 1000, UTC).astimezone() if change.at_ms else None
    clock = "-" * 12 if at is None else at.strftime("%H:%M:%S.%f")[:-3]
    facts = [f"attempt {change.attempt}"] if change.attempt > 1 or change.what == "retried" else []
    if change.due_ms:
        facts.append(f"due {moment(change.due_ms)}")
    facts += [f"by {change.worker}"] if change.worker else []
    facts += [printable(change.note)] if change.note else []
    return "  ".join(
        filter(None, (clock, change.what.ljust(_WIDTH), change.queue, change.job_id, ", ".join(facts)))
    )
