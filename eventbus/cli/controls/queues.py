"""`eventbus queues`: lists all queues, pauses, resumes and limits them, and lists these controls.

The commands need no program, because the controls of a queue are kept in the server.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from eventbus.admin.controls import QueueControls
from eventbus.admin.queue_name import queue_of
from eventbus.admin.queues import QueueReport
from eventbus.cli.controls.history import history
from eventbus.cli.controls.known_queues import check_known
from eventbus.cli.controls.watching import look
from eventbus.cli.listing import Listing, Row
from eventbus.cli.options import GroupOption, LinesOption, UrlOption, WatchOption
from eventbus.cli.output import say, tell_old_name
from eventbus.cli.times import span
from eventbus.cli.toolkit import CommandError, ask_server, moment
from eventbus.model.durations import milliseconds, text_of_ms
from eventbus.model.keep import Keep
from eventbus.model.limit import Limit, read_rates, show_rate
from eventbus.model.url_redaction import redact
from eventbus.provider import EventProvider

app: typer.Typer = typer.Typer(help="Pause queues, resume, limit and list them.", invoke_without_command=True)

_Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="An event, NAME@GROUP, or a queue: workflow.checkout, workflow.checkout.steps/charge.",
    ),
]


def _queue_row(each: QueueReport) -> Row:
    is_neglected = not each.workers and each.waiting + each.delayed > 0
    workers = Text(str(each.workers), "bold red" if is_neglected else "")
    if each.silent:
        workers.append(f" ({len(each.silent)} silent)", "bold red")
    paused = "-" if each.paused is None else f"{moment(each.paused.since_ms)} by {each.paused.by or '?'}"
    paused = f"{paused} ({each.unreadable})" if each.unreadable else paused
    oldest = "-" if each.oldest is None else span(1, 1 + round(each.oldest * 1000))
    counts = (each.waiting, each.delayed, each.active, each.parked, each.failed, each.cancelled)
    rates = (_show_rate(rate) for rate in (each.completed_per_minute, each.failed_per_minute))
    return each.name, oldest, *counts, each.completed, workers, *rates, paused, _show_limit(each.limit)


def _show_rate(rate: float) -> Text:
    return Text(f"{rate:.1f}" if 0 < rate < 10 else f"{rate:.0f}")


QUEUES: Listing[QueueReport] = Listing(
    _queue_row,
    "queue, >oldest, >waiting, >delayed, >active, >parked, >failed, >cancelled, >completed, >workers, "
    ">completed/min, >failed/min, paused, limit",
    none="no queue is known: nothing was emitted, and no worker serves anything",
)


def _show_limit(order: Limit | None) -> str:
    """Return a limit as text, `-` for none."""
    if order is None:
        return "-"
    at_once = [] if order.at_once is None else [f"{order.at_once} at once"]
    each = [] if order.each is None else [f"{order.each} of each key"]
    own = [f"{rate} of each key" for rate in _list_rates(order.each_rate, "each_rate")]
    return ", ".join([*at_once, *_list_rates(order.rate, "rate"), *each, *own])


def _list_rates(given: str | Sequence[str], name: str) -> list[str]:
    return [show_rate(rate) for rate in read_rates(given, name)]


app.command("history")(history)


@app.callback()
def list_unless_asked(
    context: typer.Context, *, as_json: LinesOption = False, watch: WatchOption = False, url: UrlOption = None
) -> None:
    """Without a command: list."""
    if context.invoked_subcommand is None:
        list_all(None, as_json=as_json, watch=watch, url=url)


@app.command("list")
def list_all(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="This one alone.")] = None,
    *,
    as_json: LinesOption = False,
    watch: WatchOption = False,
    url: UrlOption = None,
) -> None:
    """List all queues: how many jobs are in each state, since when the oldest waits, workers, pause and
    limit.
    """

    async def ask(provider: EventProvider) -> list[QueueReport]:
        found = await provider.inspector.queues.list(name)
        if name is not None and not any(_has_anything(each) for each in found):
            await check_known(provider, queue_of(name))
        return found

    look(url, ask, QUEUES.print, as_json=as_json, watch=watch)


def _has_anything(queue: QueueReport) -> bool:
    counts = (queue.waiting, queue.delayed, queue.active, queue.completed, queue.failed, queue.cancelled)
    return any((*counts, queue.parked, queue.workers)) or queue.paused is not None or queue.limited


@app.command("controls")
def list_controls(*, as_json: LinesOption = False, url: UrlOption = None) -> None:
    """List the controls of queues: limits; what they keep; paused by whom, since when and why."""
    look(url, lambda provider: provider.inspector.queues.controls(), _CONTROLS.print, as_json=as_json)


@app.command("orders", hidden=True)
def list_orders(*, as_json: LinesOption = False, url: UrlOption = None) -> None:
    """Do what `controls` does; the old name, for one release."""
    tell_old_name("eventbus queues orders", "eventbus queues controls")
    list_controls(as_json=as_json, url=url)


@app.command("pause")
def pause(
    name: _Name,
    *,
    group: GroupOption = None,
    reason: Annotated[str, typer.Option("--reason", help="Kept and shown.")] = "",
    url: UrlOption = None,
) -> None:
    """Let no worker claim its jobs until it is resumed. What runs ends, and emissions are taken."""
    by = _user()

    async def order(provider: EventProvider) -> str:
        await provider.pause(name, group=group, reason=reason, by=by)
        return await _doubt(provider, name, group)

    doubt = ask_server(url, order)
    say(f"{_label(name, group)} is paused")
    _tell(doubt)


@app.command("resume")
def resume(name: _Name, *, group: GroupOption = None, url: UrlOption = None) -> None:
    """Let workers claim its jobs again."""
    ask_server(url, lambda provider: provider.resume(name, group=group))
    say(f"{_label(name, group)} goes on")


@app.command("limit")
def limit(
    name: _Name,
    *,
    group: GroupOption = None,
    at_once: Annotated[int | None, typer.Option("--at-once", help="So many jobs run at a time.")] = None,
    rate: Annotated[list[str] | None, typer.Option("--rate", help="Such as 100/1s; may be repeated.")] = None,
    each: Annotated[
        int | None, typer.Option("--each", help="So many of each limit key, such as a tenant.")
    ] = None,
    each_rate: Annotated[
        list[str] | None, typer.Option("--each-rate", help="As --rate, for each limit key.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take back what was set here.")] = False,
    url: UrlOption = None,
) -> None:
    """Limit its jobs in the whole fleet, over what programs declare, until it is removed.

    It replaces the whole limit of the program. Jobs have limit keys if the Limit of the program has `by`.
    """
    parts = (at_once, rate, each, each_rate)
    if remove == any(part is not None for part in parts):
        raise CommandError("expected --at-once, --rate, --each or --each-rate; or --remove alone")
    limit = None if remove else Limit(at_once=at_once, rate=rate or (), each=each, each_rate=each_rate or ())

    async def order(provider: EventProvider) -> tuple[str, str]:
        (before,) = await provider.inspector.queues.controls(queue_of(name, group))
        await provider.set_limit(name, limit, group=group)
        return (
            ("", "")
            if limit is None
            else (_gone(before, limit), await _doubt(provider, name, group, limits=True))
        )

    gone, doubt = ask_server(url, order)
    say(
        f"{_label(name, group)} "
        + ("has no limit of its own now" if remove else f"is limited: {_show_limit(limit)}")
    )
    _tell(gone)
    _tell(doubt)


def _gone(before: QueueControls, now: Limit) -> str:
    """Return what bounded the queue before, and no longer does."""
    names = [
        name
        for name in ("at_once", "rate", "each", "each_rate")
        if before.limit is not None and getattr(before.limit, name) and not getattr(now, name)
    ]
    if not names:
        return ""
    gone = _show_limit(Limit(**{name: getattr(before.limit, name) for name in names}))
    return f"this replaces the whole limit; no longer: {gone}"


async def _doubt(provider: EventProvider, name: str, group: str | None, *, limits: bool = False) -> str:
    """Return why a control may be of no use: nobody serves that queue, and nothing waits there."""
    queue = queue_of(name, group)
    (found,) = await provider.inspector.queues.controls(queue)
    if found.workers or found.waiting:
        return ""
    home, _, step = queue.partition("/")
    if step and (await provider.inspector.queues.controls(home))[0].workers:
        # Who serves a workflow asks for pauses of its steps; a limit needs a queue that is served.
        return f"step {step} is defined without a limit, so this one bounds nothing" if limits else ""
    doubt = f"no worker serves {queue} of {redact(provider.settings.url)} now, and no job waits there"
    if group is None and not name.startswith("workflow."):
        flows = f"workflow.{name}"
        if (await provider.inspector.queues.controls(flows))[0].workers:
            return f"{doubt}; the workflow of this name is the queue {flows}"
    return f"{doubt}; is the name right, and the server?"


def _tell(doubt: str) -> None:
    if doubt:
        say(f"note: {doubt}", err=True)


def _show_kept(kept: QueueControls) -> str:
    """Return how many finished jobs are kept, and for how long; `-` where no definition says it."""
    told = [
        f"{state} {_show_keep(keep)}"
        for state, keep in (("completed", kept.keep_completed), ("failed", kept.keep_failed))
        if keep is not None
    ]
    return ", ".join(told) or "-"


def _show_keep(keep: Keep) -> str:
    count = [] if keep.count is None else [str(keep.count)]
    age = [] if keep.age is None else [text_of_ms(milliseconds(keep.age, setting="age"))]
    return " within ".join([*count, *age])


def _label(name: str, group: str | None) -> str:
    return name if group is None else f"{name}@{group}"


def _user() -> str:
    """Return who sets the control, for whoever reads the list."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container may know no name for its user
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


def _row(each: QueueControls) -> Row:
    running = each.running if each.limit else "-"
    since = moment(each.paused_ms) if each.is_paused else "-"
    controls = (_show_limit(each.limit), _show_kept(each), since, Text(each.paused_by))
    return each.queue, each.waiting, running, *controls, Text(each.reason or each.unreadable)


_CONTROLS = Listing(
    _row,
    "queue, >waiting, >running, limit, keeps, paused, by, reason",
    none="no queue is paused or limited, or has a retention of its own",
)
