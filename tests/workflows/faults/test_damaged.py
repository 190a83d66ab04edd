"""Flows with damaged records: what can be read is reported, the rest is named, and no foreign error
appears.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from drivers.records import change_record

from eventbus import EventBusError, EventProvider, PayloadError, Retry, StoreCorrupt
from workflows import FlowCancelled, FlowHandle, StepContext, StepError, Workflow, WorkflowProvider

pytestmark = pytest.mark.virtual

MakeProvider = Callable[..., EventProvider]
Admin = Callable[..., Any]

_FOREIGN = ["x", '{"r":', "[1,2]", "-1e999", "\ufffd"]


class Depot:
    """A workflow with a sub-workflow, run by a worker; and its keys."""

    def __init__(self, provider: EventProvider, admin: Admin, *, spread: bool = True) -> None:
        self.provider = provider
        self.admin = admin
        self.undone: list[str] = []
        self.is_broken = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.began = asyncio.Event()
        inner = Workflow[Any, Any]("inner", retry=Retry(attempts=1), spread=spread)
        inner.step(self._work, name="inside").rollback(self._undo)
        self.workflow = Workflow[Any, Any]("depot", output=int, retry=Retry(attempts=1), spread=spread)
        self.workflow.step(self._work, name="first").rollback(self._undo)
        self.workflow.flow(inner, name="nested")
        self.workflow.step(self._work, name="last").rollback(self._undo)
        self.workflow.step(self._end, name="end")
        self.workflow.completed(self._finish)
        self.flows = WorkflowProvider(provider)
        self.flows.register(self.workflow)

    async def _work(self, ctx: StepContext[Any]) -> str:
        return "worked"

    async def _undo(self, ctx: StepContext[Any], result: Any) -> None:
        self.undone.append(f"{ctx.step} {result}")

    async def _end(self, ctx: StepContext[Any]) -> None:
        self.began.set()
        await self.gate.wait()
        if self.is_broken:
            raise ValueError("broken")

    async def _finish(self, ctx: StepContext[Any]) -> int:
        return 7

    async def run(self) -> FlowHandle[Any]:
        handle = await self.flows.execute(self.workflow, None)
        try:
            await handle.result()
        except StepError:
            pass
        return handle

    def key(self, kind: str, name: str) -> str:
        return self.provider._life.running("look").store.keys.of(kind, name)

    def job(self, flow_id: str, step: str = "") -> str:
        return self.key("job", f"{flow_id}/1/{step}/0" if step else flow_id)

    def asks(self, handle: FlowHandle[Any]) -> dict[str, Callable[[], Awaitable[Any]]]:
        other = WorkflowProvider(self.provider)  # does not know the workflow
        return {
            "report": handle.report,
            "untyped report": lambda: other.report(handle.id),
            "tree": lambda: self.flows.tree(handle.id),
            "status": handle.status,
            "flows": self.flows.flows,
            "pending flows": lambda: self.flows.flows(state="pending"),
            "result": lambda: self.flows.handle(handle.id).result(timeout=0.05),
            "job": lambda: self.provider.inspector.jobs.get(handle.id),
            "members": lambda: self.provider.inspector.trees.get(handle.id),
        }


@pytest.fixture
def depot(make_provider: MakeProvider, admin: Admin) -> Depot:
    return Depot(make_provider(), admin)


async def test_a_step_whose_result_is_cut_is_damaged_and_the_rest_is_told(depot: Depot) -> None:
    async with depot.provider, depot.provider.worker():
        handle = await depot.run()
        depot.admin(*change_record(depot.job(handle.id, "first"), result='{"r":"wor'))
        depot.admin("DEL", depot.key("result", f"{handle.id}/1/first/0"))
        report = await handle.report()
        assert {each.step: each.state for each in report.steps.values()} == {
            "first": "damaged",
            "nested": "completed",
            "last": "completed",
            "end": "completed",
        }
        assert report.steps["first"].result is None
        assert report.steps["first"].error.startswith("its record cannot be read: ")
        assert report.steps["last"].result == "worked"
        assert report.order == ["first", "nested", "last", "end"]
        tree = await depot.flows.tree(handle.id)
        assert tree.report == report
        assert [each.report.state for each in tree.nested["nested"]] == ["completed"]


async def test_a_step_without_a_record_is_damaged(depot: Depot, planted: set[str]) -> None:
    async with depot.provider, depot.provider.worker():
        handle = await depot.run()
        name = depot.job(handle.id, "last")
        depot.admin("DEL", name)
        gone = (await handle.report()).steps["last"]
        depot.admin("SET", name, "foreign")
        planted.add(name)
        foreign = (await handle.report()).steps["last"]
        for step in (gone, foreign):
            assert (step.state, step.result) == ("damaged", None)
            assert "no record of its job" in step.error


async def test_a_result_of_another_type_is_told_as_such(make_provider: MakeProvider, admin: Admin) -> None:
    depot = Depot(make_provider(), admin)
    async with depot.provider, depot.provider.worker():
        handle = await depot.run()
        depot.admin(*change_record(depot.job(handle.id, "first"), result='{"r":5}'))
        step = (await handle.report()).steps["first"]
        assert (step.state, step.result) == ("completed", None)
        assert "depot.first" in step.error
        assert (await WorkflowProvider(depot.provider).report(handle.id)).steps["first"].result == 5


async def test_a_flow_whose_own_record_cannot_be_read_is_corrupt_but_its_state_is_told(depot: Depot) -> None:
    async with depot.provider, depot.provider.worker():
        handle = await depot.run()
        depot.admin(*change_record(depot.job(handle.id), body='{"i":'))
        depot.admin("DEL", depot.key("body", handle.id))
        for ask in (handle.report, lambda: depot.flows.tree(handle.id), lambda: depot.flows.retry(handle.id)):
            with pytest.raises(StoreCorrupt, match=f"the message of flow {handle.id} cannot be read"):
                await ask()
        assert (await handle.status()).state == "completed"
        assert [each.flow_id for each in await depot.flows.flows()] == [handle.id]


async def test_a_sub_workflow_that_cannot_be_read_is_named_in_the_tree(depot: Depot) -> None:
    async with depot.provider, depot.provider.worker():
        handle = await depot.run()
        nested = (await depot.flows.tree(handle.id)).nested["nested"][0].report.flow_id
        depot.admin(*change_record(depot.job(nested), body="[]"))
        depot.admin("DEL", depot.key("body", nested))
        (inner,) = (await depot.flows.tree(handle.id)).nested["nested"]
        assert (inner.report.flow_id, inner.report.state, inner.report.steps) == (nested, "completed", {})
        assert "cannot be read" in inner.report.error


async def test_an_output_that_cannot_be_read_is_no_foreign_error(depot: Depot) -> None:
    async with depot.provider, depot.provider.worker():
        handle = await depot.run()
        depot.admin(*change_record(depot.job(handle.id), result='{"r":'))
        with pytest.raises(PayloadError):
            await depot.flows.handle(handle.id).result()


@pytest.mark.slow
@pytest.mark.real  # works, and never waits
@pytest.mark.parametrize("spread", [False, True], ids=["local", "spread"])
@pytest.mark.parametrize("is_broken", [False, True], ids=["completed", "failed"])
async def test_no_damage_of_any_key_of_a_flow_lets_a_foreign_error_out(
    make_provider: MakeProvider, admin: Admin, is_broken: bool, spread: bool, planted: set[str]
) -> None:
    """Each key of the flow in turn: gone, of a foreign type, and each of its values cut or foreign."""
    depot = Depot(make_provider(), admin, spread=spread)
    depot.is_broken = is_broken
    async with depot.provider, depot.provider.worker():
        handle = await depot.run()
    async with depot.provider:
        every = admin("KEYS", f"{depot.provider.settings.prefix}:*")
        names = [name for name in every if handle.id in name or ":workflow." in name]
        assert len(names) > (12 if spread else 9)
        planted.update(names)
        for name in names:
            kind, kept = admin("TYPE", name), _read(admin, name)
            for damage in _damages(kind, kept):
                admin("DEL", name)
                for command in damage:
                    admin(command[0], name, *command[1:])
                await _ask_all(depot, handle, f"{name}: {damage}")
            admin("DEL", name)
            await _ask_all(depot, handle, f"{name} is gone")
            for command in _writes(kind, kept):
                admin(command[0], name, *command[1:])
        assert (await handle.report()).state == ("failed" if is_broken else "completed")


async def _ask_all(depot: Depot, handle: FlowHandle[Any], damage: str) -> None:
    for name, ask in depot.asks(handle).items():
        try:
            await ask()
        except EventBusError:
            pass
        except Exception as error:
            raise AssertionError(f"{name} let {error!r} out, after {damage}") from error


def _read(admin: Admin, name: str) -> Any:
    kind = admin("TYPE", name)
    commands = {"hash": ["HGETALL", name], "string": ["GET", name]}
    commands |= {"list": ["LRANGE", name, 0, -1], "set": ["SMEMBERS", name]}
    commands["zset"] = ["ZRANGE", name, 0, -1, "WITHSCORES"]
    return admin(*commands[kind])


def _writes(kind: str, content: Any) -> list[list[Any]]:
    """The commands that make a key of such a content."""
    if kind == "hash":
        pairs = (
            content.items() if isinstance(content, dict) else zip(content[::2], content[1::2], strict=True)
        )
        return [["HSET", field, value] for field, value in pairs]
    if kind == "zset":
        flat = (
            [each for row in content for each in row] if content and isinstance(content[0], list) else content
        )
        return [["ZADD", score, job] for job, score in zip(flat[::2], flat[1::2], strict=True)]
    command = {"string": "SET", "list": "RPUSH", "set": "SADD"}[kind]
    if kind == "string":
        return [[command, content.encode("utf-8", "surrogateescape")]]
    return [[command, each] for each in content]


def _damages(kind: str, content: Any) -> list[list[list[Any]]]:
    whole = _writes(kind, content)
    found: list[list[list[Any]]] = [[["RPUSH", "foreign"]] if kind == "string" else [["SET", "foreign"]]]
    for place, command in enumerate(whole):
        text = str(command[-1])
        values = {*_FOREIGN, text[: len(text) // 2], json.dumps({"type": "StepError"})} - {"", text}
        found += [[*whole[:place], [*command[:-1], each], *whole[place + 1 :]] for each in sorted(values)]
    return found


# Damage while the flow still runs.


async def test_a_stopped_flow_whose_step_has_a_damaged_record_ends_and_says_incomplete(depot: Depot) -> None:
    depot.gate.clear()
    async with depot.provider, depot.provider.worker():
        handle = await depot.flows.execute(depot.workflow, None)
        await depot.began.wait()
        depot.admin(*change_record(depot.job(handle.id, "first"), result='{"r":'))
        assert await handle.cancel("enough")
        with pytest.raises(FlowCancelled) as caught:
            await handle.result()
    error = caught.value
    assert (error.reason, error.rollback) == ("enough", "incomplete")
    assert [each.step for each in error.rollback_errors] == ["first"]
    assert "cannot be read, so it was not undone" in str(error.rollback_errors[0])
    assert depot.undone == ["last worked", "inside worked"]


@pytest.mark.parametrize("cause", ["cancelled", "failed"])
async def test_a_stopped_flow_whose_message_is_damaged_ends(depot: Depot, cause: str) -> None:
    depot.gate.clear()
    depot.is_broken = True
    async with depot.provider, depot.provider.worker():
        handle = await depot.flows.execute(depot.workflow, None)
        await depot.began.wait()
        depot.admin(*change_record(depot.job(handle.id), body='{"i":'))
        depot.admin("DEL", depot.key("body", handle.id))
        if cause == "cancelled":
            assert await handle.cancel("enough")
        depot.gate.set()
        with pytest.raises(EventBusError) as caught:
            await handle.result(timeout=240)
        assert isinstance(caught.value, FlowCancelled) == (cause == "cancelled")
        assert "cannot be read" in str(caught.value)
        status = await handle.status()
        assert (status.state, status.rollback) == (cause, "incomplete")
