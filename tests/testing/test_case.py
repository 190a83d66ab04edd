"""The test case of unittest, run as unittest runs it."""

from __future__ import annotations

import unittest

from eventbus import Event, EventProvider, UsageError
from eventbus.testing import EventBusTestCase, TestBus

provider = EventProvider(name="shop")
remind = Event("remind", payload=str, result=str)


@provider.on(remind)
async def run(name: str) -> str:
    return f"reminded {name}"


def _run(case: type[EventBusTestCase]) -> unittest.TestResult:
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    return result


def _make(**attributes: object) -> type[EventBusTestCase]:
    """Make a class inside of a function, so that pytest does not collect it."""

    async def wait(self: EventBusTestCase) -> None:
        began = self.bus.now
        emission = provider.emit(remind, "ada", delay="3 days")
        await self.bus.advance("3 days")
        assert (self.bus.now - began).days == 3
        assert await emission == "reminded ada"

    async def again(self: EventBusTestCase) -> None:
        assert self.bus.ran == []

    async def fails(self: EventBusTestCase) -> None:
        await provider.emit(remind, "ada")
        self.fail("as asked")

    names = {"test_wait": wait, "test_again": again, "test_fails": fails}
    return type("Case", (EventBusTestCase,), {"providers": (provider,), **names, **attributes})


def test_each_test_of_a_case_has_a_bus_of_its_own() -> None:
    result = _run(_make())
    assert (result.testsRun, result.errors) == (3, [])
    ((_, text),) = result.failures
    assert "as asked" in text
    assert provider._life.emitter is None


def test_a_case_may_make_its_own_bus_and_set_up_behind_it() -> None:
    seen: list[int] = []

    def make_bus(self: EventBusTestCase) -> TestBus:
        return TestBus(*self.providers, seed=7)

    async def set_up(self: EventBusTestCase) -> None:
        await EventBusTestCase.asyncSetUp(self)
        seen.append(len(await provider.emit(remind, "ada")))
        self.bus.ran.clear()

    result = _run(_make(make_bus=make_bus, asyncSetUp=set_up))
    assert (result.errors, seen) == ([], [12, 12, 12])


def test_a_case_without_providers_says_so() -> None:
    result = _run(_make(providers=()))
    assert len(result.errors) == 3
    assert UsageError.__name__ in result.errors[0][1]
