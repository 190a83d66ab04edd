"""A server with something of everything that commands show, and with a user who may only look."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from drivers.program import Program
from drivers.servers import Server, free_port

from eventbus import Emission, Event, EventProvider, Limit, Retry
from workflows import FlowContext, Signal, StepContext, StepError, Workflow, WorkflowProvider, durable, task

_PAGE = Path(__file__).parents[3] / "docs" / "operations.md"
_PREFIX = "viewed"
_WITHIN = 240.0

approval = Signal("approval", int)
keyed = Event("keyed", payload=str, limit=Limit(by=lambda tenant: tenant, each=1, each_rate=["1/1h"]))


@task
async def prepare() -> int:
    return 1


@durable("paper", signals=[approval])
async def paper(ctx: FlowContext[Any]) -> int:
    await ctx.step(prepare)
    return await ctx.wait_for(approval)


@durable("torn")
async def torn(ctx: FlowContext[Any]) -> int:
    raise ValueError("torn")


async def _charge(ctx: StepContext[Any]) -> str:
    return "x" * 9000


class Planting:
    """Makes something of everything, with the right to do so. `ids` are those of what was made."""

    def __init__(self, url: str, prefix: str) -> None:
        self.ids: dict[str, str] = {}
        self._provider = EventProvider(url, prefix=prefix)
        self._flows = WorkflowProvider(self._provider)
        inner = Workflow[Any, Any]("inner")
        inner.step(_charge, name="flat")
        self._local = Workflow[Any, Any]("checkout")
        self._spread = Workflow[Any, Any]("spread", spread=True)
        for each in (self._local, self._spread):
            each.step(_charge, name="charge")
            each.flow(inner, name="pack")
        self._asking = Workflow[Any, Any]("asking", spread=True)
        self._asking.wait(approval, timeout="1 day", name="decision")
        for each in (self._local, self._spread, self._asking, paper, torn):
            self._flows.register(each)
        self._provider.on("order", retry=Retry(attempts=1))(self._order)
        self._provider.on("order", group="audit")(lambda payload: None)
        self._provider.on(keyed)(lambda payload: None)

    async def run(self) -> None:
        """Make it all; the worker has ended then."""
        async with self._provider as provider:
            async with provider.worker():
                await self._run_jobs()
                await self._run_flows()
            await self._leave_jobs()
            await provider.schedules.add("tick", id="nightly", cron="0 3 * * *")
            self.ids["operation"] = (await provider.inspector.operations.begin("retry", "order", "failed")).id
            await provider.inspector.audit.note({"actor": "ann", "action": "job.retry", "outcome": "changed"})

    async def _order(self, payload: Any) -> str:
        if payload == "bad":
            raise ValueError("bad " * 200)
        return "x" * 9000

    async def _run_jobs(self) -> None:
        emit = self._provider.emit
        done = emit("order", {"n": 1}, idempotency_key="k")
        bad = [emit("order", "bad") for _ in range(3)]
        await asyncio.gather(done, *bad, return_exceptions=True)
        self.ids |= {"done": done.job_id, "failed": bad[0].job_id}
        await emit(keyed, "ann")
        await self._keep("keyed", emit(keyed, "ann", reply=False))

    async def _run_flows(self) -> None:
        execute, inspector = self._flows.execute, self._provider.inspector
        for name, workflow in (("flow", self._local), ("spread", self._spread)):
            handle = await execute(workflow, None)
            await handle.result()
            self.ids[name] = handle.id
        with pytest.raises(StepError):
            await (await execute(torn, None)).result()
        sleeping, asking = await execute(paper, None), await execute(self._asking, None)
        self.ids |= {"sleeping": sleeping.id, "asking": asking.id}

        async def is_asleep() -> bool:
            return any(each.state == "waiting" for each in (await sleeping.report()).steps.values())

        async def waits() -> bool:
            return (await inspector.jobs.get(asking.id)).state == "waiting-children"

        await _until(is_asleep)
        await _until(waits)

    async def _leave_jobs(self) -> None:
        provider = self._provider
        await provider.pause("urgent", by="ann", reason="audit")
        await provider.set_limit("limited", Limit(at_once=1, rate=["1/1h"]))
        for name, event in (
            ("waiting", "order"),
            ("gone", "order"),
            ("limited", "limited"),
            ("urgent", "urgent"),
        ):
            await self._keep(name, provider.emit(event, 1, reply=False, priority=-5 * (name == "urgent")))
        await self._keep("delayed", provider.emit("order", 1, reply=False, delay="1 day"))
        assert await provider.cancel(self.ids["gone"])

    async def _keep(self, name: str, emission: Emission[Any]) -> None:
        await emission.enqueued()
        self.ids[name] = emission.job_id


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(_WITHIN):
        while not await holds():  # noqa: ASYNC110  (nobody tells)
            await asyncio.sleep(0.02)


def _leave_running(url: str, prefix: str) -> str:
    """Leave a job that runs on a worker which was killed; return its id."""
    worker = Program("worker", "shop:provider", environment={"EVENTBUS_URL": url, "EVENTBUS_PREFIX": prefix})
    worker.wait_for("worker ready")

    async def emit() -> str:
        async with EventProvider(url, prefix=prefix) as provider:
            emission = provider.emit("wait", "/nowhere", reply=False)
            await emission.enqueued()
            return emission.job_id

    job = asyncio.run(emit())
    worker.wait_for("waiting for a file")
    worker.process.kill()
    worker.close()
    return job


class Viewed:
    """The server, and the one who looks at it. `rule` is that of the page, as words."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._server = server
        self.whole_url = server.url
        self.prefix = _PREFIX
        planting = Planting(server.url, _PREFIX)
        self.ids = planting.ids
        self.ids |= {"running": _leave_running(server.url, _PREFIX), "folder": str(folder)}
        asyncio.run(planting.run())
        _, rule = re.findall(r"^```acl\n(.*?)^```$", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
        self.rule: list[str] = rule.replace("\\\n", " ").split()[1:]
        self.ask("ACL", "SETUSER", *(word.replace("~eb:", f"~{_PREFIX}:") for word in self.rule))
        self.environment = {
            "EVENTBUS_URL": f"redis://viewer:secret@{server.place}",
            "EVENTBUS_PREFIX": _PREFIX,
        }

    def ask(self, *command: str) -> Any:
        """Run a command with all rights."""
        found: list[Any] = []
        self._server.wait(lambda client: found.append(client.execute_command(*command)) or True)
        return found[0]

    def used(self) -> set[str]:
        """Return the commands that were carried out since `CONFIG RESETSTAT`, without those of this class."""
        stats = self.ask("INFO", "commandstats")
        names = {name.removeprefix("cmdstat_") for name, told in stats.items() if int(told["calls"]) > 0}
        return names - {"config|resetstat", "dump", "keys", "ping"}

    def content(self) -> dict[bytes, bytes]:
        """Return all that is in the server."""
        return {name: self.ask("DUMP", name) for name in sorted(self.ask("KEYS", "*"))}

    def lines(self, commands: Iterable[tuple[str, list[str]]]) -> Iterator[list[str]]:
        """Return command lines, as words, of commands and of what stands behind them."""
        for command, rests in commands:
            yield from ([*command.split(), *rest.format(**self.ids).split()] for rest in rests)


@pytest.fixture(scope="module")
def viewed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewed]:
    """The server. No test of the module changes it."""
    server = Server(port=free_port())
    server.start()
    try:
        yield Viewed(server, tmp_path_factory.mktemp("viewed"))
    finally:
        server.stop()


@pytest.fixture
def environment(viewed: Viewed) -> dict[str, str]:
    """All command lines of these tests are those of the viewer."""
    return viewed.environment
