"""A test case of unittest whose tests run in virtual time; Django's own runner takes it, too.

    class TrialTest(EventBusTestCase):
        providers = (provider,)

        async def test_trial(self) -> None:
            await provider.emit(remind, "ada", delay="3 days").enqueued()
            await self.bus.advance("3 days")

What must always hold: the bus is entered before `asyncSetUp` of the test, and left behind its `asyncTearDown`
and the clean-ups that it adds.
"""

from __future__ import annotations

import unittest
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from eventbus.provider import EventProvider
from eventbus.testing.bus import TestBus


class EventBusTestCase(unittest.IsolatedAsyncioTestCase):
    """Enters a TestBus around each test.

    A class that overrides `asyncSetUp` calls the one of its parent first. A test that needs other options
    than the others overrides `make_bus`.
    """

    providers: ClassVar[Sequence[EventProvider]] = ()
    """The providers of the programs under test."""
    bus_options: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """The options of `TestBus`, such as `{"schedules": True}`."""
    bus: TestBus
    """The bus of the running test."""

    def make_bus(self) -> TestBus:
        """Return the bus of the next test. Raises UsageError without `providers`."""
        return TestBus(*self.providers, **self.bus_options)

    async def asyncSetUp(self) -> None:
        """Enter the bus."""
        await super().asyncSetUp()
        self.bus = await self.enterAsyncContext(self.make_bus())
