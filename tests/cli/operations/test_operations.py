"""`eventbus operations`, `--background` and `eventbus audit`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from typer.testing import Result

from eventbus import EventProvider

Invoke = Callable[..., Result]
MakeProvider = Callable[..., EventProvider]


def _ask(make_provider: MakeProvider, do: Callable[[EventProvider], Any]) -> Any:
    async def ask() -> Any:
        async with make_provider() as provider:
            return await do(provider)

    return asyncio.run(ask())


def _delay(make_provider: MakeProvider, count: int) -> None:
    async def delay(provider: EventProvider) -> None:
        emissions = [provider.emit("order", n, delay="1h", reply=False) for n in range(count)]
        await asyncio.gather(*(each.enqueued() for each in emissions))

    _ask(make_provider, delay)


def test_a_purge_in_the_background_is_shown_and_done_by_who_works(
    make_provider: MakeProvider, invoke: Invoke
) -> None:
    _delay(make_provider, 3)
    begun = invoke("jobs", "purge", "order", "--state", "delayed", "--background", "--yes").stdout
    assert begun.startswith("workers do it: eventbus operations show ")
    operation = begun.split()[-1]
    shown = invoke("operations", "show", operation).stdout
    assert "what        remove delayed jobs of event.order" in shown
    assert "state       running" in shown
    assert "of          3" in shown
    _ask(make_provider, lambda provider: provider.inspector.operations.run())
    (row,) = [json.loads(line) for line in invoke("operations", "list", "--json").stdout.splitlines()]
    assert (row["id"], row["state"], row["done"]) == (operation, "completed", 3)
    cells = invoke("operations", "list").stdout.splitlines()[1].split()
    assert cells[:8] == [operation, "remove", "delayed", "event.order", "completed", "3", "0", "3"]
    refused = invoke("operations", "stop", operation)
    assert (refused.exit_code, "is completed; there is nothing to stop" in refused.stderr) == (1, True)
    missing = invoke("operations", "show", "none")
    assert missing.exit_code != 0
    assert "there is no operation 'none'" in missing.stderr


def test_an_operation_is_stopped_before_anybody_works_at_it(
    make_provider: MakeProvider, invoke: Invoke
) -> None:
    _delay(make_provider, 2)
    begun = invoke("jobs", "purge", "order", "--state", "delayed", "--background", "--yes").stdout
    operation = begun.split()[-1]
    assert invoke("operations", "stop", operation, "--by", "ann").stdout == (
        f"operation {operation} does no more\n"
    )
    assert "stopped by  ann" in invoke("operations", "show", operation).stdout
    _ask(make_provider, lambda provider: provider.inspector.operations.run())
    assert "delayed" in invoke("jobs", "count", "order").stdout
    counts = json.loads(invoke("jobs", "count", "order", "--json").stdout)
    assert counts["delayed"] == 2


def test_the_audit_is_listed(make_provider: MakeProvider, invoke: Invoke) -> None:
    assert invoke("audit").stdout == "nobody did anything of this kind on a dashboard\n"
    fields = {"actor": "ann", "action": "job.retry", "target": "j1", "outcome": "refused", "detail": "no"}
    _ask(make_provider, lambda provider: provider.inspector.audit.note({**fields, "reason": "\x1b[31mred"}))
    shown = invoke("audit", "--actor", "ann").stdout
    assert "ann    job.retry  j1      refused: no" in shown
    assert "\x1b" not in shown
    assert json.loads(invoke("audit", "--json").stdout)["target"] == "j1"
    assert "nobody did anything" in invoke("audit", "--actor", "bob").stdout
