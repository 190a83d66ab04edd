"""The command line as a whole: its commands, those of plug-ins, `--version`, and the border for errors."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from eventbus._version import __version__
from eventbus.cli.commands import check, emit, groups, schedules, server, worker
from eventbus.cli.controls import failures, finding, history, jobs, queues, retrials, tail, top, workers
from eventbus.cli.dashboard import command, demo
from eventbus.cli.operations import audit, operations
from eventbus.cli.plugins import PluginGroup

__all__ = ["app"]

app: typer.Typer = typer.Typer(
    name="eventbus",
    cls=PluginGroup,
    help="Typed events with awaited results on Redis or Valkey.",
    epilog="--debug, anywhere on the line, shows the traceback of an error.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("worker")(worker.worker)
app.command("emit")(emit.emit)
app.command("check")(check.check)
app.command("groups")(groups.groups)
app.command("top")(top.top)
app.command("workers")(workers.workers)
app.command("demo")(demo.demo)
app.command("tail")(tail.tail)
app.command("audit")(audit.audit)
app.command("dashboard")(command.dashboard)
jobs.app.command("failures")(failures.failures)
jobs.app.command("find")(finding.find)
jobs.app.command("retry")(retrials.retry)
jobs.app.command("remove")(retrials.remove)
jobs.app.command("retry-all")(retrials.retry_all)
jobs.app.command("purge")(retrials.purge)
queues.app.command("history")(history.history)
app.add_typer(jobs.app, name="jobs")
app.add_typer(queues.app, name="queues")
app.add_typer(operations.app, name="operations")
app.add_typer(schedules.app, name="schedules")
app.add_typer(server.app, name="server")


def _show_version(value: bool) -> None:
    if value:
        print(f"eventbus {__version__}")
        raise typer.Exit


@app.callback()
def eventbus(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and end.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        sys.stderr.write(context.get_help() + "\n")
        raise typer.Exit(2)
