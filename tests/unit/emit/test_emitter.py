"""What an emit checks before it sends anything; that needs no server."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventbus import DefinitionError, EventBusError
from eventbus.emit.emitter import Emitter
from eventbus.emit.job_tree import Member, Tree
from eventbus.emit.route import Routes
from eventbus.emit.uplink import Uplink
from eventbus.settings.keywords import EmitOptions
from eventbus.settings.settings import Settings

_JSON_AND_MORE: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.datetimes(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    payload=_JSON_AND_MORE,
    name=st.text(),
    key=st.text() | st.none(),
    priority=st.integers() | st.floats() | st.none(),
)
def test_whatever_is_given_the_answer_is_an_error_of_ours_or_an_emission(
    payload: Any, name: str, key: Any, priority: Any
) -> None:
    asyncio.run(_try_to_emit(payload, name, EmitOptions(idempotency_key=key, priority=priority)))


async def _try_to_emit(payload: Any, name: str, options: EmitOptions) -> None:
    given = Settings(url="redis://127.0.0.1:1")
    emitter = Emitter(Uplink(given), given)
    routes = Routes(Settings())
    for event in (name, "fine"):
        with contextlib.suppress(EventBusError):
            emitter.emit(routes.find(event), payload, options)
    emitter.tracker.deadlines.close()  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("job", ["#a", "a!1", "a!1!20"])
def test_a_tree_refuses_ids_that_the_server_could_not_tell_from_its_own(job: str) -> None:
    for make in (lambda: Member(job, "q"), lambda: Tree(job, "q", "{}")):
        with pytest.raises(DefinitionError, match=f"does not begin with # .* got: '{job}'"):
            make()


@pytest.mark.parametrize("job", ["a!", "a!b", "!1a", "a#"])
def test_a_tree_takes_ids_that_only_look_like_those(job: str) -> None:
    assert (Member(job, "q").id, Tree(job, "q", "{}").id) == (job, job)


@pytest.mark.parametrize(
    ("job", "queue"), [("a", ""), ("a", "*"), ("a", "q" * 256), ("a", "й" * 128), ("й" * 32768, "q")]
)
def test_a_tree_refuses_what_a_record_has_no_room_for(job: str, queue: str) -> None:
    for make in (lambda: Member(job, queue), lambda: Tree(job, queue, "{}")):
        with pytest.raises(DefinitionError, match=r"1 to 255 bytes|less than 65,536 bytes"):
            make()
