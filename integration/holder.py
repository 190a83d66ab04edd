"""A program that emits and waits, to be killed meanwhile: `python -m holder EVENT JSON`.

Prints the id of the job once the server has it, then the result.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec

from eventbus import EventProvider


async def main(event: str, payload: str) -> None:
    async with EventProvider() as provider:
        emission = provider.emit(event, msgspec.json.decode(payload))
        await emission.enqueued()
        print(msgspec.json.encode(emission.job_id).decode(), flush=True)  # noqa: T201
        print(msgspec.json.encode(await emission).decode(), flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
