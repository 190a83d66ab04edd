"""After each test: no key stays in the server for ever that should not.

`KINDS` says for each kind when it goes. What goes "after" something has an expiry;
what goes "with" its record has a record; a key pointer has an expiry once its job ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import redis

from eventbus.store.keys import KINDS

__all__ = ["find_leaks", "no_leaks", "planted"]

_BY_HAND = ("never", "with its last job", "by retention")
_ENDED = {"completed", "failed", "cancelled"}


@pytest.fixture
def planted() -> set[str]:
    """Names of keys that the test itself wrote; the leak checker does not judge them."""
    return set()


@pytest.fixture(autouse=True)
def no_leaks(server_url: str, prefix: str, planted: set[str]) -> Iterator[None]:
    """Fail a test that leaves keys behind which nothing will remove."""
    yield
    with redis.Redis.from_url(server_url, decode_responses=True, encoding_errors="replace") as client:
        leaks = find_leaks(client, prefix, planted)
    assert leaks == [], "keys that nothing will remove"


def find_leaks(client: Any, prefix: str, planted: Iterable[str] = ()) -> list[str]:
    """List the keys under `prefix` that have no expiry and should, but for `planted` ones."""
    names = sorted(set(client.scan_iter(match=f"{prefix}:*", count=1000)).difference(planted))
    lifetimes = client.pipeline(transaction=False)
    for name in names:
        lifetimes.ttl(name)
    pairs = zip(names, lifetimes.execute(), strict=True)
    return [name for name, lifetime in pairs if lifetime == -1 and _is_leak(client, name)]


def _is_leak(client: Any, name: str) -> bool:
    root, _, rest = name.partition("}:")
    kind, _, what = rest.partition(":")
    if kind not in KINDS:
        return True
    goes = KINDS[kind][3]
    if goes in _BY_HAND:
        return False
    record = f"{root}}}:job:{what}"
    if goes == "with the record":
        return not client.exists(record)
    if kind == "key":  # without an expiry while its job is open
        pointed = client.hget(name, "job")
        return pointed is None or client.hget(f"{root}}}:job:{pointed}", "state") in _ENDED
    return True
