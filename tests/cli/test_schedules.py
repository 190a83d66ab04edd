"""`eventbus schedules`: lists and changes schedules, and previews an expression."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from typer.testing import Result

from eventbus import EventProvider

Invoke = Callable[..., Result]


def test_a_schedule_is_listed_paused_resumed_run_and_removed(
    invoke: Invoke, environment: dict[str, str]
) -> None:
    assert invoke("schedules").stdout == "no schedules\n"

    async def plant() -> None:
        async with EventProvider(
            environment["EVENTBUS_URL"], prefix=environment["EVENTBUS_PREFIX"]
        ) as provider:
            await provider.schedules.add("tick", id="nightly", cron="0 3 * * *", payload=1)

    asyncio.run(plant())
    assert "nightly" in invoke("schedules").stdout
    assert invoke("schedules", "list").stdout == invoke("schedules").stdout
    assert invoke("schedules", "list", "--json").stdout == invoke("schedules", "--json").stdout
    assert (
        invoke("schedules", "pause", "nightly", "--reason", "audit").stdout == "schedule nightly is paused\n"
    )
    report = json.loads(invoke("schedules", "--json").stdout)
    assert (report["paused"], report["cron"], report["next"]) == ("audit", "0 3 * * *", 0)
    assert invoke("schedules", "resume", "nightly").exit_code == 0
    assert json.loads(invoke("schedules", "--json").stdout)["next"] > 0
    assert invoke("schedules", "run", "nightly").stdout.startswith("nightly~")
    old = invoke("schedules", "trigger", "nightly")
    assert old.stdout.startswith("nightly~")
    assert old.stderr == "note: eventbus schedules trigger is deprecated: use eventbus schedules run\n"
    told = invoke("schedules", "show", "nightly").stdout
    assert [
        word for word in ("0 3 * * * UTC", "waits for its next slot", "03:00:00 +0000") if word not in told
    ] == []
    since, until = "2026-03-01T03:00", "2026-03-03T03:00+01:00"
    filled = invoke("schedules", "backfill", "nightly", since, until).stdout.splitlines()
    assert [job.rpartition(".")[2] for job in filled] == ["1772334000000", "1772420400000"]
    assert invoke("schedules", "backfill", "nightly", "2026-03-01", "2026-03-01").stdout == "no slots\n"
    turned = invoke("schedules", "backfill", "nightly", until, since)
    assert "expected the begin of a backfill before its end" in turned.stderr
    refused = invoke("schedules", "backfill", "nightly", "yesterday", until)
    assert refused.exit_code != 0
    assert "'yesterday'" in refused.stderr
    assert invoke("schedules", "remove", "nightly").stdout == "schedule nightly is removed\n"
    for word in ("pause", "remove", "show"):
        refused = invoke("schedules", word, "nightly")
        assert refused.exit_code == 1
        assert "there is no schedule nightly on the server" in refused.stderr


def test_the_list_says_why_slots_were_skipped_if_any_were(
    invoke: Invoke, environment: dict[str, str]
) -> None:
    async def skip() -> None:
        provider = EventProvider(environment["EVENTBUS_URL"], prefix=environment["EVENTBUS_PREFIX"])
        provider.on("other")(lambda _: None)
        async with provider, provider.worker():
            await provider.schedules.add("forgotten", id="rare", cron="0 0 1 1 *")
            often = await provider.schedules.add("forgotten", id="often", every="0.1s", immediately=True)
            report = await often.report()
            while not report.skipped:
                report = await often.report()
            await often.pause("enough")

    asyncio.run(skip())
    lines = invoke("schedules").stdout.splitlines()
    told = {line.split()[0]: line for line in lines}
    assert told["schedule"].rstrip().endswith("skipped for")
    why = "the job of the slot before was open (overlap=skip), and no worker serves event.forgotten now"
    assert why in told["often"]
    assert "enough" in told["often"]
    assert "overlap" not in told["rare"]


def test_a_preview_needs_no_server(invoke: Invoke) -> None:
    lines = invoke(
        "schedules", "preview", "30 2 * * *", "--tz", "Europe/Berlin", "-n", "400"
    ).stdout.splitlines()
    assert len([line for line in lines if not line.startswith("--")]) == 400
    assert {line for line in lines if line.startswith("--")} == {
        "-- the clock goes forward here",
        "-- the clock goes back here",
    }
    refused = invoke("schedules", "preview", "61 * * * *")
    assert refused.exit_code != 0
    assert "'61 * * * *'" in refused.stderr
