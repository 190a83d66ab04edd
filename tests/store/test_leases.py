"""The lease thread's store: one blocking connection, closed whenever its answers cannot be trusted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from drivers.fakes import CLOSE, FakeServer

from eventbus.errors import StoreError, StoreRefused, StoreUnavailable
from eventbus.store.calls.lease_store import LeaseStore
from eventbus.store.connection.connector import Connector
from eventbus.store.scripting.script_rows import LeaseRow
from eventbus.store.store import Store

_LEASES = [LeaseRow("a", "w:1")]


def _leases(server: FakeServer, timeout: float = 5.0) -> LeaseStore:
    return Store(Connector(server.url), prefix="p", name="test").open_leases(timeout=timeout)


def _renew(leases: LeaseStore) -> list[str]:
    """The ids that are lost."""
    return leases.renew(_LEASES, worker="w", calls=(0, 0), lease_ms=1000, lag_ms=0)[0]


def _in_turn(*answers: bytes | None) -> Callable[[list[str]], bytes | None]:
    left = iter(answers)
    return lambda _: next(left)


@pytest.mark.parametrize("first", [CLOSE, None, b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_after_a_lost_a_missing_or_a_foreign_answer_the_next_renewal_connects_again(
    first: bytes | None,
) -> None:
    async with FakeServer(_in_turn(first, b"*3\r\n*1\r\n$1\r\na\r\n*0\r\n*0\r\n")) as server:
        leases = _leases(server, timeout=5.0 if first is not None else 0.5)
        with pytest.raises(StoreError) as caught:
            await asyncio.to_thread(_renew, leases)
        assert not isinstance(caught.value, StoreRefused)
        assert await asyncio.to_thread(_renew, leases) == ["a"]
        assert server.connections == 2
        leases.close()


async def test_a_refusal_keeps_the_connection() -> None:
    async with FakeServer(_in_turn(b"-STALE an older call\r\n", b"*3\r\n*0\r\n*0\r\n*0\r\n")) as server:
        leases = _leases(server)
        with pytest.raises(StoreRefused):
            await asyncio.to_thread(_renew, leases)
        assert await asyncio.to_thread(_renew, leases) == []
        assert server.connections == 1
        leases.close()
        leases.close()


async def test_a_renewal_is_tried_once() -> None:
    async with FakeServer(lambda _: CLOSE) as server:
        leases = _leases(server)
        with pytest.raises(StoreUnavailable) as caught:
            await asyncio.to_thread(_renew, leases)
        assert caught.value.sent
        assert len(server.received) == 1
        leases.close()
