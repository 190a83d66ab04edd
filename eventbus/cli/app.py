"""The command line as a whole: its commands, those of plug-ins, `--version`, and the border for errors."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from eventbus._version import __version__
from eventbus.cli.output import say
from eventbus.cli.plugins import OwnCommand, PluginGroup

_COMMANDS = {
    "worker": OwnCommand(
        "eventbus.cli.commands.worker:worker",
        "Run the handlers of a provider until told to end by SIGTERM or SIGINT.",
    ),
    "emit": OwnCommand("eventbus.cli.commands.emit:emit", "Emit an event, or one for each line of a file."),
    "check": OwnCommand(
        "eventbus.cli.commands.check:check",
        "Check the installation, the settings, the server, its rights, and the handlers of a program.",
    ),
    "groups": OwnCommand(
        "eventbus.cli.commands.groups:groups",
        "List the groups of events beside `default`, with what waits for them and who serves them; "
        "or remove one.",
    ),
    "top": OwnCommand(
        "eventbus.cli.controls.overview:top",
        "Show the queues whose jobs wait longest and the workers that run most, again every 2 seconds.",
    ),
    "workers": OwnCommand(
        "eventbus.cli.controls.overview:workers",
        "List the workers: host, process, version, load, event loop's lag, when they were heard, queues.",
    ),
    "demo": OwnCommand(
        "eventbus.cli.dashboard.demo:demo",
        "Show the main job: an embedded server, a worker in a second process, and orders to it.",
    ),
    "watch": OwnCommand(
        "eventbus.cli.controls.watch:watch",
        "Print what happens to jobs and queues, from now on or from a position on, until it is interrupted.",
    ),
    "audit": OwnCommand(
        "eventbus.cli.controls.audit:audit",
        "List the actions that were asked for on a dashboard, newest first.",
    ),
    "dashboard": OwnCommand(
        "eventbus.cli.dashboard.command:dashboard",
        "Serve the dashboard, and print the link that opens it: it signs in once, within five minutes.",
    ),
    "jobs": OwnCommand(
        "eventbus.cli.controls.job_commands:app", "Look at jobs, change those that wait, cancel one."
    ),
    "queues": OwnCommand("eventbus.cli.controls.queues:app", "Pause queues, resume, limit and list them."),
    "operations": OwnCommand(
        "eventbus.cli.controls.operations:app", "Bulk operations: one action for many jobs, done by workers."
    ),
    "schedules": OwnCommand("eventbus.cli.commands.schedules:app", "List schedules and change them."),
    "server": OwnCommand("eventbus.cli.commands.server:app", "The embedded server."),
}
"""The order is that of the help. A test compares the texts with those of the commands."""
_OLD = {"tail": "watch"}


class _Commands(PluginGroup):
    """All commands: ours, and those of plug-ins."""

    own = _COMMANDS
    old = _OLD


app: typer.Typer = typer.Typer(
    name="eventbus",
    cls=_Commands,
    help="Typed events with awaited results on Redis or Valkey.",
    epilog="--debug, anywhere on the line, shows the traceback of an error.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(value: bool) -> None:
    if value:
        say(f"eventbus {__version__}")
        raise typer.Exit


@app.callback()
def eventbus(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and end.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Show the help if no command is given."""
    if context.invoked_subcommand is None:
        sys.stderr.write(context.get_help() + "\n")
        raise typer.Exit(2)
