"""Ctrl-C in a program under `asyncio.run`: it stops in order, and a second Ctrl-C ends it soon."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable

import pytest

from eventbus import EventProvider

MakeProvider = Callable[..., EventProvider]

_PROGRAM = """
import asyncio, signal, sys
from eventbus import EventProvider

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins with it ignored

provider = EventProvider(sys.argv[1], prefix=sys.argv[2], grace=sys.argv[3], lease=1)

@provider.on("ask")
async def ask(n):
    print("runs", flush=True)
    await asyncio.Event().wait()

async def main():
    async with provider, provider.worker():
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("times", [1, 2])
async def test_ctrl_c_ends_a_program_in_order_and_a_second_one_soon(
    make_provider: MakeProvider, server_url: str, prefix: str, times: int
) -> None:
    provider = make_provider(lease=1)
    provider.on("ask")(lambda n: n)
    grace = "0.2s" if times == 1 else "10m"
    async with provider:
        emission = provider.emit("ask", 7)
        await emission.enqueued()
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _PROGRAM, server_url, prefix, grace),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert program.stdout is not None
        assert await program.stdout.readline() == b"runs\n"
        program.send_signal(signal.SIGINT)
        if times == 2:
            await asyncio.sleep(0.3)  # the stop has begun, and waits for the handler
            assert program.returncode is None
            program.send_signal(signal.SIGINT)
        _, errors = await asyncio.wait_for(program.communicate(), 240)
        assert errors.rstrip().endswith(b"KeyboardInterrupt")
        page = await provider.inspector.jobs.get(emission.job_id)
        assert page.state == ("waiting" if times == 1 else "active"), "given back, or left to its lease"
        async with provider.worker():
            assert await emission == 7
