"""A program that executes flows of `flow_app`, and is killed meanwhile.

python -m apps.caller execute WORKFLOW JSON [KEY [COUNT]]    prints a line of ids, then a line of results
python -m apps.caller cancel FLOW_ID                         prints whether the cancel stopped the flow
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec
from apps import flow_app

from eventbus import EventBusError, EventProvider
from workflows import FlowHandle, WorkflowProvider

_WORKFLOWS = {each.name: each for each in flow_app.WORKFLOWS}


def _say(value: Any) -> None:
    print(msgspec.json.encode(value).decode(), flush=True)  # noqa: T201


async def _outcome(handle: FlowHandle[Any]) -> Any:
    try:
        return await handle.result()
    except EventBusError as error:
        return repr(error)


async def _execute(
    flows: WorkflowProvider, name: str, order: str, key: str | None = None, count: str = "1"
) -> None:
    given = msgspec.json.decode(order, type=flow_app.Order)
    calls = [flows.execute(_WORKFLOWS[name], given, idempotency_key=key) for _ in range(int(count))]
    handles = await asyncio.gather(*calls)
    _say([each.id for each in handles])
    _say(await asyncio.gather(*(_outcome(each) for each in handles)))


async def main(what: str, *words: str) -> None:
    async with EventProvider() as provider:
        flows = WorkflowProvider(provider)
        for each in _WORKFLOWS.values():
            flows.register(each)
        if what == "execute":
            await _execute(flows, *words)
        else:
            _say(await flows.handle(words[0]).cancel("no more"))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
