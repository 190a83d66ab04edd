"""A slot that moves between two nodes of a cluster while its shard is busy: nothing is lost, nothing happens
twice.

The load is made of the library's own scripts, called as `eventbus/store/connection/retrying.py` calls them.
Each call declares two keys, one of which never exists; a test that declares only one shows why.

Redis 6 is left out. Its nodes take no port of their own for the cluster (`cluster-port` came with Redis 7),
so they cannot be started on ports that are known to be free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis
from harness.backends import Backend
from harness.cluster.load import Load
from harness.cluster.nodes import Cluster

from eventbus.store.keys import Keys

KEYS = Keys("eb", "0")
BOOK = KEYS.declared[0]
ENOUGH = 200
"""Jobs of each queue that were worked off before the slot moves."""
BATCH = 20
"""Keys that move together."""


@pytest.fixture
def cluster(make_server: Callable[..., Backend]) -> Iterator[Cluster]:
    cluster = Cluster(make_server, BOOK)
    yield cluster
    cluster.close()


class Witness:
    """A job that is added and claimed before the slot moves; after that both calls are made again."""

    def __init__(self, load: Load) -> None:
        self._adder = load.adder("early", ("event.witness",))
        self._worker = load.worker("witness", ("event.witness",))
        self._added = self._adder.add_plain()
        self._claimed = self._worker.turn()
        (lease,) = self._worker.held
        load.history.put_back.add(lease.id)  # so it is settled as completed

    def repeat(self) -> None:
        """Make the calls again, as if their answers had been lost; then settle the job, and this
        twice too.
        """
        self._adder.call_again(self._added)
        self._worker.turn_again(*self._claimed)
        self._worker.turn_again(*self._worker.turn())
        with pytest.raises(redis.ResponseError, match="STALE"):
            self._worker.turn_again(*self._claimed)


def move_all_but_the_book(cluster: Cluster, *, replace: bool = False) -> Iterator[int]:
    """Move the keys that the source has, some at a time; yield how often that was done."""
    count = 0
    while names := [name for name in cluster.left(BATCH + 1) if name != BOOK][:BATCH]:
        cluster.move(names, replace=replace)
        count += 1
        yield count


@pytest.mark.parametrize(
    ("is_book_first", "follows_ask", "refusal"),
    [
        pytest.param(False, False, "TRYAGAIN", id="book-last"),
        pytest.param(True, False, "ASK", id="book-first"),
        pytest.param(True, True, "TRYAGAIN, asking", id="book-first-following-ask"),
    ],
)
def test_a_slot_that_moves_key_by_key_loses_nothing_and_repeats_nothing(
    cluster: Cluster, is_book_first: bool, follows_ask: bool, refusal: str
) -> None:
    source, target = cluster.nodes
    with Load(cluster, KEYS, declared=KEYS.declared, follows_ask=follows_ask) as load:
        load.wait_worked(source.port, ENOUGH)
        witness = Witness(load)
        cluster.begin_move()
        load.wait_refused("TRYAGAIN")
        if is_book_first:
            cluster.move([BOOK])
        for count in move_all_but_the_book(cluster):
            if count in (1, 3):
                load.wait_refused(refusal)
        if not is_book_first:
            cluster.move([BOOK])
        load.wait_refused(refusal if is_book_first else "ASK")
        assert cluster.left(1) == []
        cluster.end_move()
        load.wait_answered(target.port)
        witness.repeat()
        load.end()
    assert load.history.problems(target, KEYS, load.emitter) == {}


@pytest.mark.servers("valkey")
def test_a_slot_that_moves_at_once_loses_nothing_and_repeats_nothing(cluster: Cluster) -> None:
    source, target = cluster.nodes
    with Load(cluster, KEYS, declared=KEYS.declared) as load:
        load.wait_worked(source.port, ENOUGH)
        witness = Witness(load)
        cluster.begin_copy()
        before = load.history.count("acknowledged", source.port)
        cluster.wait_copied()
        assert load.history.count("acknowledged", source.port) > before, (
            "what is added during the copy follows it"
        )
        load.wait_answered(target.port)
        witness.repeat()
        load.end()
    assert set(load.refusals) == {"MOVED", "NOSCRIPT"}
    assert load.history.problems(target, KEYS, load.emitter) == {}


def test_with_one_declared_key_the_same_load_breaks(cluster: Cluster) -> None:
    """The shard falls into two halves, which cannot be put together again without a loss.

    The load is cut off, because a worker of such a shard may never find that there is nothing left to do.
    """
    source, target = cluster.nodes
    source.is_sound = target.is_sound = False
    with Load(cluster, KEYS, declared=KEYS.declared[:1], follows_ask=True) as load:
        load.wait_worked(source.port, ENOUGH)
        cluster.begin_move()
        cluster.move([BOOK])
        load.wait_worked(target.port, 10)
        with pytest.raises(redis.ResponseError, match="BUSYKEY"):
            list(move_all_but_the_book(cluster))
        list(move_all_but_the_book(cluster, replace=True))  # what is left to whoever moves the slot
        cluster.end_move()
        load.wait_answered(target.port)
    problems = load.history.problems(target, KEYS, load.emitter)
    assert "not listed" in problems
