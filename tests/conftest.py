"""One embedded server for the whole run; each test has a key prefix of its own."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import re
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, MutableMapping
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from typing import Any

import leaks
import pytest
import structlog
from drivers.collecting import begin_elsewhere, put_in_order
from drivers.hanging import pytest_pyfunc_call, pytest_timeout_set_timer
from drivers.virtual import is_virtual, virtual, virtual_by_mark
from hypothesis import HealthCheck, settings

from eventbus import EventProvider
from eventbus.engine.wake_listener import WakeListener
from eventbus.store.connection.connector import make_connector
from eventbus.store.embedded.server import EmbeddedServer
from eventbus.store.store import Store
from eventbus.testing.server import TestServer

__all__ = ["pytest_pyfunc_call", "pytest_timeout_set_timer", "virtual", "virtual_by_mark"]

_numbers = itertools.count(1)

# CI runs a small search, the same each time. `--hypothesis-profile=long` searches for minutes, each time
# anew. How long an example takes says nothing here: the machine has other things to do.
_UNTIMED: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("same", max_examples=50, derandomize=True, **_UNTIMED)
settings.load_profile("same")
settings.register_profile("long", max_examples=1000, stateful_step_count=80, derandomize=False, **_UNTIMED)


_SLOW = 5.0
"""Seconds from which on a test without the mark `slow` is listed; more than the 2 s that the mark
stands for.
"""


def pytest_configure(config: pytest.Config) -> None:
    """Let programs that tests start be interrupted, also where a shell began the tests in the background,
    deaf to that.
    """
    begin_elsewhere(config)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_QUICK = re.compile(r"tests/(unit|workflows/(graphs|local|machines|pipelines|unit))/")
"""The folders with tests of code that needs no server."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the quick tests. Begin with the slow ones, so that none of them is the last one to run, alone."""
    put_in_order(items)
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    for item in items:
        if _QUICK.search(item.path.as_posix()) and _is_quick(item):
            item.add_marker(pytest.mark.quick)


def _is_quick(item: pytest.Item) -> bool:
    """Tell whether a test takes no server and no long time."""
    asks = {"server_url", "test_url"} & set(getattr(item, "fixturenames", ()))
    return not asks and not any(map(item.get_closest_marker, ("slow", "once", "again")))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests that miss the mark `slow`. A busy machine makes any test slow, so none fails for it."""
    reports = [
        report
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        if isinstance(report, pytest.TestReport) and report.when == "call"
    ]
    unmarked = [report for report in reports if report.duration > _SLOW and "slow" not in report.keywords]
    if unmarked:
        terminalreporter.section(f"took more than {_SLOW:g} s without the mark `slow`")
        for report in sorted(unmarked, key=lambda report: -report.duration):
            terminalreporter.line(f"{report.duration:6.1f} s  {report.nodeid}")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """The URL of a temporary server that the whole run shares."""
    server = EmbeddedServer(None)
    path = server.start()
    yield f"unix://{path}"
    server.stop()


@pytest.fixture
def prefix() -> str:
    """A key prefix that no other test of this run has."""
    return f"t{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def test_url(request: pytest.FixtureRequest, prefix: str) -> str:
    """The URL of the server for one test: the shared one, or the virtual one of a test with that mark."""
    if is_virtual(request):
        return f"virtual://{prefix}"
    return request.getfixturevalue("server_url")


@pytest.fixture
async def store(test_url: str, prefix: str) -> AsyncIterator[Store]:
    """A started store on the server of the test."""
    store = Store(make_connector(test_url), prefix=prefix, name="test")
    await store.start(deadline=None)
    yield store
    await store.aclose()


@pytest.fixture
def make_provider(test_url: str, prefix: str) -> Callable[..., EventProvider]:
    """Make a provider on the server of the test, not yet started. All of one test share a key prefix."""

    def make(**settings: Any) -> EventProvider:
        settings.setdefault("prefix", prefix)
        return EventProvider(settings.pop("url", test_url), **settings)

    return make


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """Contexts that the test enters; they are left when the test ends."""
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def unused_tcp_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def logs() -> Iterator[list[MutableMapping[str, Any]]]:
    """The structlog entries that are logged during the test."""
    with structlog.testing.capture_logs() as entries:
        yield entries


@pytest.fixture
def admin(test_url: str) -> Iterator[Callable[..., Any]]:
    """Send commands to the server of the test over a separate connection; answers are text."""
    connection: Any = make_connector(test_url).open_blocking(name="admin", timeout=240)

    def call(*command: Any) -> Any:
        # What was read may be no text: then it is written as the bytes that it was.
        values = [
            each.encode("utf-8", "surrogateescape") if isinstance(each, str) else each for each in command[1:]
        ]
        connection.send_command(command[0], *values)
        return connection.read_response()

    yield call
    connection.disconnect()


@pytest.fixture
def until(request: pytest.FixtureRequest) -> Callable[..., Awaitable[None]]:
    """Wait until a condition holds, which may be async; fails with its name after `within` seconds."""
    world = request.getfixturevalue("virtual") if is_virtual(request) else None

    async def wait_until(condition: Callable[[], Any], what: str, *, within: float = 240.0) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        while True:
            due = None if world is None else await world.settle()
            holds = condition()
            if await holds if inspect.isawaitable(holds) else holds:
                return
            assert loop.time() < end, f"not within {within:g} s: {what}"
            await asyncio.sleep(0.005 if world is None else world.pause(due, end))

    return wait_until


@pytest.fixture
def standstill(
    request: pytest.FixtureRequest, admin: Callable[..., Any]
) -> Callable[[], AbstractContextManager[None]]:
    """Let the server of the test do nothing, as one that is reached by nobody, until the context is left."""
    if is_virtual(request):
        return request.getfixturevalue("virtual").network.stand_still
    facts = dict(line.partition(":")[::2] for line in admin("INFO", "server").splitlines())

    @contextmanager
    def stand() -> Generator[None]:
        os.kill(int(facts["process_id"]), signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(int(facts["process_id"]), signal.SIGCONT)

    return stand


@pytest.fixture
def wakes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers find work by what wakes them, and never by their look at all queues each 4 s: where a wake
    is missing, a test waits in vain.
    """
    monkeypatch.setattr(WakeListener, "_look_everywhere", lambda _: None)


@pytest.fixture
def planted() -> set[str]:
    """Names of keys that the test itself wrote; the leak check ignores them."""
    return set()


@pytest.fixture(scope="session")
def watchers() -> Iterator[dict[str, Any]]:
    """The connections of the leak check, one for each shared server."""
    clients: dict[str, Any] = {}
    yield clients
    for client in clients.values():
        client.close()


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest, watchers: dict[str, Any]) -> Iterator[None]:
    """Fail a test that leaves something behind (see `leaks`). It is set up first, so it checks last."""
    client: Any = None
    url = ""
    if is_virtual(request):
        url = f"unix://{TestServer.get().address}"
    elif "server_url" in request.fixturenames or "test_url" in request.fixturenames:
        url = request.getfixturevalue("server_url")
    if url:
        client = watchers[url] = watchers.get(url) or leaks.connect(url)
    keys = (request.getfixturevalue("prefix"), request.getfixturevalue("planted"))
    watch = leaks.Watch(client)
    if inspect.iscoroutinefunction(request.function):
        request.getfixturevalue("no_task_is_left")
    yield
    assert leaks.wait_gone(watch.find_new) == set(), "left behind"
    if client is not None:
        assert watch.forget_keys(*keys) == [], "keys that nothing will remove"


@pytest.fixture
async def no_task_is_left() -> AsyncIterator[None]:
    """Fail a test whose event loop still runs a task of ours."""
    before = leaks.find_tasks()
    yield
    end = time.monotonic() + 60
    while (left := leaks.find_tasks() - before) and time.monotonic() < end:  # noqa: ASYNC110  (any task)
        await asyncio.sleep(0.002)
    assert left == set(), "left behind"
