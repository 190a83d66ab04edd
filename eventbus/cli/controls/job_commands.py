"""`eventbus jobs`: all of its commands."""

from __future__ import annotations

import typer

from eventbus.cli.controls import failures, finding, jobs, retrials

app: typer.Typer = jobs.app
app.command("failures")(failures.failures)
app.command("find")(finding.find)
app.command("retry")(retrials.retry)
app.command("remove")(retrials.remove)
app.command("retry-all")(retrials.retry_all)
app.command("purge")(retrials.purge)
