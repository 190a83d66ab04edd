"""The check 18 of the dashboard's acceptance: a bulk action whose browser is closed and whose dashboard is
killed.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable

import httpx2
import pytest
from drivers.program import Program

from eventbus import EventProvider

MakeProvider = Callable[..., EventProvider]

_COUNT = 20_000


@pytest.mark.once
@pytest.mark.slow
def test_check_18_a_worker_goes_on_with_what_a_killed_dashboard_began(
    make_provider: MakeProvider, start: Callable[..., Program]
) -> None:
    dashboard = start("dashboard", "--port", "0")
    url = re.findall(r"http\S+", dashboard.wait_for("/sign-in?code="))[0]

    async def lose() -> None:
        async with make_provider() as provider:
            provider.emit_many("order", range(_COUNT), delay="1h", reply=False)
            await provider.flush()
            asked = provider.inspector
            with httpx2.Client(base_url=url.partition("/sign-in")[0], timeout=60) as browser:
                browser.get(url)
                headers = {"sec-fetch-site": "same-origin"}
                order = {"action": "promote", "state": "delayed", "expected": 10_100, "id": "lost"}
                browser.post(
                    "/api/v1/queues/order/operations", json=order, headers=headers
                ).raise_for_status()
            while not (await asked.operations.get("lost")).done > 0:
                pass
            dashboard.send(signal.SIGKILL)
            dashboard.wait()
            left = await asked.operations.get("lost")
            assert (left.state, left.done < _COUNT) == ("running", True)

    async def go_on() -> None:
        provider = make_provider()

        @provider.on("elsewhere")
        async def other(_: int) -> None: ...

        async with provider, provider.worker():
            while (found := await provider.inspector.operations.get("lost")).state == "running":
                pass
            assert (found.state, found.done, found.failed, found.total) == ("completed", _COUNT, 0, _COUNT)
            assert await provider.inspector.queues.count("order", states=["waiting", "delayed"]) == {
                "waiting": _COUNT,
                "delayed": 0,
            }

    asyncio.run(lose())
    asyncio.run(go_on())
