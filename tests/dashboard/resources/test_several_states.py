"""Lists of jobs in several states: in the inspector and the API, a page at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from eventbus import DefinitionError, EventProvider, HandlerError, Unrecoverable


async def _fill(provider: EventProvider) -> dict[str, list[str]]:
    """Make two failed jobs, a cancelled one, a completed one and two that wait for their time; return them
    by state.
    """

    @provider.on("order")
    async def handle(number: int) -> None:
        if number < 0:
            raise Unrecoverable("below zero")

    made: dict[str, list[str]] = {"failed": [], "completed": [], "delayed": [], "cancelled": []}
    async with provider.worker():
        for number, state in ((-1, "failed"), (-2, "failed"), (1, "completed")):
            emission = provider.emit("order", number)
            with suppress(HandlerError):
                await emission
            made[state].insert(0, emission.job_id)
    for delay, state in (("1 hour", "delayed"), ("2 hours", "delayed"), ("3 hours", "cancelled")):
        emission = provider.emit("order", 1, delay=delay)
        await emission.enqueued()
        made[state].append(emission.job_id)
    assert await provider.cancel(made["cancelled"][0])
    return made


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 50])
async def test_a_list_of_several_states_has_one_after_the_other_whatever_a_page_holds(
    provider: EventProvider, limit: int
) -> None:
    made = await _fill(provider)
    states: list[Any] = ["failed", "cancelled", "active", "delayed"]
    found: list[tuple[str, str]] = []
    cursor: str | None = None
    while True:
        page = await provider.inspector.jobs.list("order", state=states, limit=limit, cursor=cursor)
        assert len(page.jobs) <= limit
        found += [(job.state, job.id) for job in page.jobs]
        if (cursor := page.cursor) is None:
            break
    assert found == [(state, job) for state in states for job in made.get(state, [])]
    alone = await provider.inspector.jobs.list("order", state="failed", since="1 hour")
    assert [(job.state, job.id) for job in alone.jobs] == [("failed", job) for job in made["failed"]]
    ended = await provider.inspector.jobs.list("order", state=("failed", "completed"), since="1 hour")
    assert [job.id for job in ended.jobs] == made["failed"] + made["completed"]


async def test_states_that_are_none_are_refused(provider: EventProvider) -> None:
    inspector, wrong = provider.inspector, [
        (["failed", "odd"], None, "one of waiting"),
        ([], None, "got none"),
        (["failed", "waiting"], "1 hour", "since with state"),
    ]  # fmt: skip
    for states, since, told in wrong:
        with pytest.raises(DefinitionError, match=told):
            await inspector.jobs.list("order", state=states, since=since)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="cursor of a list"):
        await inspector.jobs.list("order", state=["failed", "cancelled"], cursor="waiting~")


async def test_the_api_lists_several_states_and_links_to_the_next_page(
    provider: EventProvider, open_dashboard: Callable[..., Any]
) -> None:
    made = await _fill(provider)
    client = open_dashboard(provider)
    place = "/api/v1/queues/event.order/jobs?state=failed&state=cancelled&limit=2"
    first = await client.get(place)
    assert (first.status_code, [each["id"] for each in first.json()["jobs"]]) == (200, made["failed"])
    assert first.json()["state"] == "failed,cancelled"
    following = first.headers["link"].partition(">")[0].lstrip("<")
    second = (await client.get(following)).json()
    assert [(each["state"], each["id"]) for each in second["jobs"]] == [("cancelled", made["cancelled"][0])]
    assert (await client.get("/api/v1/queues/event.order/jobs?state=failed&state=odd")).status_code == 422


async def test_the_api_runs_a_completed_job_again_if_that_is_asked_for(
    provider: EventProvider, open_dashboard: Callable[..., Any]
) -> None:
    made = await _fill(provider)
    client = open_dashboard(provider)
    (job,) = made["completed"]
    assert (await client.act(f"/jobs/{job}/retry")).json()["changed"] is False
    assert (await client.act(f"/jobs/{job}/retry", rerun=True)).json()["changed"] is True
    assert (await provider.inspector.jobs.get(job)).state == "waiting"
