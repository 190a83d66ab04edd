"""The names and keys that users choose."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus.errors import DefinitionError
from eventbus.model.names import check_event_name, check_group, check_key, queue_name, shown

_BAD_NAMES = ["", " ", "a b", "a{b}", "a:b", "a@b", "a*", "é", "a\n", "-a", ".a", "_a", "a/b", 5, None, b"a"]


@pytest.mark.parametrize("name", ["a", "order.placed", "Order_Placed-2", "0", "a" * 128])
def test_plain_names_are_event_names(name: str) -> None:
    assert check_event_name(name) == name


@pytest.mark.parametrize("name", [*_BAD_NAMES, "a" * 129, "a" * 10_000])
def test_other_names_are_refused_with_a_short_message(name: Any) -> None:
    with pytest.raises(DefinitionError, match=r"expected an event name of 1 to 128 .* got: ") as caught:
        check_event_name(name)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("group", ["default", "billing", "a" * 64])
def test_plain_names_are_groups(group: str) -> None:
    assert check_group(group) == group


@pytest.mark.parametrize("group", [*_BAD_NAMES, "a" * 65])
def test_other_names_are_no_groups(group: Any) -> None:
    with pytest.raises(DefinitionError, match="expected a group name of 1 to 64 "):
        check_group(group)


def test_the_default_group_does_not_show_in_the_queue_name() -> None:
    assert queue_name("order.placed") == queue_name("order.placed", "default") == "event.order.placed"
    assert queue_name("order.placed", "billing") == "event.order.placed@billing"


@pytest.mark.parametrize("key", ["a", "o-1", "schlüssel {1}: *", "😀" * 512])
def test_text_is_an_idempotency_key(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize("key", ["", "a" * 513, "a\0b", "\ud800", 5, None, b"a"])
def test_other_values_are_no_idempotency_keys(key: Any) -> None:
    with pytest.raises(DefinitionError, match="expected an idempotency key to be text of 1 to 512"):
        check_key(key)


@given(st.text())
def test_every_key_that_passes_can_be_sent(key: str) -> None:
    try:
        check_key(key)
    except DefinitionError:
        return
    assert key.encode().decode() == key


@given(st.one_of(st.text(), st.binary(), st.lists(st.integers())))
def test_shown_values_are_short(value: object) -> None:
    assert len(shown(value)) <= 60


def test_a_short_value_is_shown_whole() -> None:
    assert shown("a b") == "'a b'"
    assert shown(10**5000) == "<int>"
    assert shown("x" * 100) == "'" + "x" * 56 + "..."
