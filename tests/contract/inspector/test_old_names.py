"""The names that calls of the inspector had before there were namespaces: each warns, and does the same."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from eventbus import DefinitionError, EventProvider

MakeProvider = Callable[..., EventProvider]

_NEW = {
    "job": "jobs.get",
    "jobs": "jobs.list",
    "why": "jobs.why",
    "find": "jobs.find",
    "find_by_field": "jobs.find_by_field",
    "cancel": "jobs.cancel",
    "promote": "jobs.promote",
    "delay": "jobs.delay",
    "prioritize": "jobs.prioritize",
    "replace_payload": "jobs.replace_payload",
    "edit": "jobs.edit",
    "retry": "jobs.retry",
    "remove": "jobs.remove",
    "tree": "trees.get",
    "remove_tree": "trees.remove",
    "queues": "queues.list",
    "queue_names": "queues.names",
    "counts": "queues.count",
    "history": "queues.history",
    "controls": "queues.controls",
    "groups": "queues.groups",
    "failures": "queues.failures",
    "retry_all": "queues.retry_all",
    "purge": "queues.purge",
    "workers": "workers.list",
    "preview_operation": "operations.preview",
    "begin_operation": "operations.begin",
    "operation": "operations.get",
    "operations": "operations.list",
    "stop_operation": "operations.stop",
    "run_operations": "operations.run",
    "audit": "audit.list",
    "note_audit": "audit.note",
    "server": "server.report",
    "check_server": "server.check",
    "event": "events.get",
    "events": "events.list",
}
_GIVEN: dict[str, tuple[Any, ...]] = {
    "job_id": ("unknown",),
    "root_id": ("unknown",),
    "operation_id": ("unknown",),
    "event_or_queue": ("charge",),
    "event": ("charge",),
    "name": ("charge",),
    "field": ("order:7",),
    "action": ("retry",),
    "fields": ({"actor": "ann", "action": "retry"},),
    "delay": ("5s",),
    "priority": (3,),
    "payload": (8,),
}
_OPTIONS = {"find": {"idempotency_key": "k"}, "begin_operation": {"operation_id": "mine"}}


def _arguments(call: Any) -> list[Any]:
    """Return an argument for each parameter that needs one."""
    needed = inspect.signature(call).parameters.values()
    return [_GIVEN[each.name][0] for each in needed if each.default is each.empty]


async def _outcome(call: Any, given: list[Any], **options: Any) -> object:
    try:
        found = call(*given, **options)
        return await found if inspect.isawaitable(found) else found
    except Exception as error:  # noqa: BLE001  (it is compared)
        return type(error), str(error)


def _without_numbers(found: object) -> str:
    """Return what two looks one after the other have in common: all but times, sizes and ids of entries."""
    return re.sub(r"[\d.]+", "#", str(found))


@pytest.mark.parametrize(("old", "new"), _NEW.items(), ids=_NEW)
async def test_an_old_name_warns_and_gives_the_same_as_the_new_one(
    old: str, new: str, make_provider: MakeProvider
) -> None:
    space, method = new.split(".")
    async with make_provider() as provider:
        job = provider.emit("charge", 7, reply=False, idempotency_key="k")
        await job.enqueued()
        call = getattr(getattr(provider.inspector, space), method)
        given = [job.job_id] if old in ("job", "why", "tree") else _arguments(call)
        options = _OPTIONS.get(old, {})
        fresh = await _outcome(call, given, **options)
        with pytest.warns(DeprecationWarning, match="is deprecated") as warned:
            former = await _outcome(getattr(provider.inspector, old), given, **options)
        await provider.inspector.operations.run()
    assert _without_numbers(former) == _without_numbers(fresh)
    assert [str(each.message) for each in warned] == [
        f"inspector.{old}(...) is deprecated: use inspector.{new}(...)"
    ]
    assert warned[0].filename == __file__, "the warning is of the line that calls it"


async def test_a_namespace_that_was_a_method_can_be_called_as_before(make_provider: MakeProvider) -> None:
    async with make_provider() as provider:
        job = provider.emit("charge", 7, reply=False)
        await job.enqueued()
        with pytest.warns(DeprecationWarning, match=r"inspector\.jobs\(.*use inspector\.jobs\.list\("):
            page = await provider.inspector.jobs("charge", state="waiting", limit=5)
        assert [each.id for each in page.jobs] == [job.job_id]
        with pytest.warns(DeprecationWarning, match=r"use inspector\.queues\.list\("):
            assert [each.name for each in await provider.inspector.queues()] == ["event.charge"]


async def test_a_mere_look_at_an_old_name_does_not_warn(make_provider: MakeProvider) -> None:
    inspector = make_provider().inspector
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert callable(inspector.job)
        assert callable(inspector.jobs)
    assert not callable(inspector.trees), "it was no method"


async def test_an_old_name_takes_the_call_timeout_that_it_had(make_provider: MakeProvider) -> None:
    async with make_provider() as provider:
        for call in (provider.inspector.counts, provider.inspector.jobs):
            with pytest.warns(DeprecationWarning, match="use inspector"):
                assert await call("charge", call_timeout="2s")
            refused = pytest.raises(DefinitionError, match="call_timeout")
            with pytest.warns(DeprecationWarning, match="use inspector"), refused:
                await call("charge", call_timeout=0)


async def test_an_inspector_within_a_time_is_another_one(make_provider: MakeProvider) -> None:
    async with make_provider() as provider:
        job = provider.emit("charge", 7, reply=False)
        await job.enqueued()
        hasty = provider.inspector.within("2s")
        assert (await hasty.jobs.get(job.job_id)).state == "waiting"
        assert (await hasty.within(None).queues.count("charge"))["waiting"] == 1
        with pytest.raises(DefinitionError, match="call_timeout"):
            provider.inspector.within(0)
