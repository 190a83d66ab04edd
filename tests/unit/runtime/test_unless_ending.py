"""What is done a moment after a cancellation from outside, unless the event loop ends."""

from __future__ import annotations

import asyncio

import pytest

from eventbus.runtime import clean_up

called: list[str] = []


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    called.clear()
    monkeypatch.setattr(clean_up, "_MOMENT", 0.001)


async def _wait(clean_up_takes: float) -> None:
    """Wait for ever; when this is cancelled, ask for the call, and tidy up."""
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        clean_up.call_unless_ending(called.append, "called")
        await asyncio.sleep(clean_up_takes)


async def test_a_program_that_goes_on_is_called() -> None:
    task = asyncio.create_task(_wait(0))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    while not called:  # noqa: ASYNC110  (nothing tells of it)
        await asyncio.sleep(0.001)


def test_a_loop_that_ends_is_not_however_long_its_clean_up_takes() -> None:
    async def main() -> None:
        begun.append(asyncio.create_task(_wait(0.02)))  # many moments, of which it waits 100
        await asyncio.sleep(0)

    begun: list[asyncio.Task[None]] = []
    asyncio.run(main())
    assert begun[0].cancelled()
    assert called == []


def test_a_program_that_cancels_all_its_tasks_and_goes_on_is_called_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        task = asyncio.create_task(_wait(0))
        await asyncio.sleep(0)
        for each in asyncio.all_tasks():
            each.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(60)
        await asyncio.wait([task])
        while not called:  # noqa: ASYNC110  (nothing tells of it)
            await asyncio.sleep(0.001)

    monkeypatch.setattr(clean_up, "_LOOKS", 3)
    asyncio.run(main())
