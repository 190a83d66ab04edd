"""The plugin of pytest: the fixtures `bus` and `eventbus_server`, and the seed in the report of a failed
test.

    @pytest.fixture
    def bus_providers():
        return [provider]

    async def test_trial(bus):
        await bus.advance("3 days")

The fixture `bus` is async, so what runs the test must run it as well: anyio's plugin, or pytest-asyncio, in
its strict mode, too. Other runners, and tests that need no fixture, write `async with TestBus(provider) as
bus:`.

What must always hold: a project that does not use it pays for a small file, and meets none of its names.
Pytest is no dependency of the package, and this file is imported by it alone.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from eventbus import EventProvider
    from eventbus.testing.bus import TestBus
    from eventbus.testing.server import TestServer


_BUS = "eventbus.testing.bus"


@pytest.fixture(scope="session")
def eventbus_server() -> Generator[TestServer]:
    """The private server of this test process: one for the session, one for each worker of xdist.

    A test that enters a bus gets it without this fixture. Raises UsageError as `TestBus` does without one.
    """
    from eventbus.testing.server import TestServer  # noqa: PLC0415  (a project may not use it)

    server = TestServer.get()
    yield server
    server.close()


@pytest.fixture
def bus_providers() -> Sequence[EventProvider]:
    """The providers of the fixture `bus`; a project overrides it."""
    from eventbus import UsageError  # noqa: PLC0415  (a project may not use it)

    raise UsageError(
        "the fixture `bus` needs the providers of your programs; define a fixture in conftest.py: "
        "@pytest.fixture / def bus_providers(): return [provider]"
    )


@pytest.fixture
def bus_options() -> dict[str, Any]:
    """The options of the fixture `bus`, such as `{"schedules": True}`; a project or a test overrides it."""
    return {}


@pytest.fixture
async def bus(
    eventbus_server: TestServer, bus_providers: Sequence[EventProvider], bus_options: dict[str, Any]
) -> AsyncGenerator[TestBus]:
    """A TestBus around the test, with the providers of the fixture `bus_providers`."""
    from eventbus.testing.bus import TestBus  # noqa: PLC0415  (a project may not use it)

    del eventbus_server  # it ends with the session
    async with TestBus(*bus_providers, **bus_options) as entered:
        yield entered


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """Say of the fixture `bus` that pytest-asyncio is meant, unless anyio runs the test.

    In its strict mode pytest-asyncio takes only fixtures that bear this mark.
    """
    function: Any = fixturedef.func
    if fixturedef.argname == "bus" and getattr(function, "__module__", "") == __name__:
        function._force_asyncio_fixture = "anyio_backend" not in request.fixturenames  # noqa: SLF001
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Forget the buses of the test before."""
    if (bus_module := sys.modules.get(_BUS)) is not None:
        bus_module.seeds_used.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the seed to the report of a failed test that entered a bus."""
    report = yield
    bus_module = sys.modules.get(_BUS)
    if report.failed and bus_module is not None and bus_module.seeds_used:
        seeds = ", ".join(f"TestBus(..., seed={seed})" for seed in dict.fromkeys(bus_module.seeds_used))
        report.sections.append(("eventbus", f"the same history again: {seeds}"))
    return report
