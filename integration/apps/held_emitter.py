"""A program that emits and waits, and is stopped or killed meanwhile.

`python -m apps.held_emitter EVENT JSON [COUNT]` prints four lines: the ids of its jobs, before it sends
anything; its peak memory in KiB, once the server has all jobs; the results, with `null` for each that
it did not get; and its peak memory again.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from typing import Any

import msgspec

from eventbus import EventBusError, EventProvider


def _say(value: Any) -> None:
    print(msgspec.json.encode(value).decode(), flush=True)  # noqa: T201


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def _outcome(emission: Any) -> Any:
    try:
        return await emission
    except EventBusError as error:
        print(f"{emission.job_id}: {error!r}", file=sys.stderr)  # noqa: T201
        return None


async def main(event: str, payload: str, count: str = "1") -> None:
    async with EventProvider() as provider:
        emissions = provider.emit_many(event, [msgspec.json.decode(payload)] * int(count))
        _say([each.job_id for each in emissions])
        for each in emissions:
            await each.enqueued()
        _say(_memory())
        _say([await _outcome(each) for each in emissions])
        _say(_memory())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
