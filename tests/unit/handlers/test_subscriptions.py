"""Which handler answers which event and group."""

from __future__ import annotations

from typing import Any

import pytest

from eventbus import DefinitionError, Event
from eventbus.emit.route import Routes
from eventbus.handlers.handler import make_handler
from eventbus.handlers.subscriptions import Subscription, Subscriptions
from eventbus.settings.settings import Settings


def _subscribe(routes: Routes, event: Any, group: str = "default") -> Subscription:
    route = routes.find(event)
    handler = make_handler(lambda payload: payload, route.event, group=group)
    return Subscription(route, handler)


def test_subscriptions_are_kept_in_order_one_for_each_event_and_group() -> None:
    routes, registry = Routes(Settings()), Subscriptions()
    for event, group in (("b", "default"), ("a", "default"), ("b", "mail")):
        registry.add(_subscribe(routes, event, group))
    assert [each.queue for each in registry] == ["event.b", "event.a", "event.b@mail"]
    assert len(registry) == 3
    with pytest.raises(DefinitionError, match="'b' has a handler for group 'mail' already"):
        registry.add(_subscribe(routes, "b", "mail"))


def test_what_could_not_be_served_is_forgotten_and_may_come_again() -> None:
    routes, registry = Routes(Settings()), Subscriptions()
    first, second = _subscribe(routes, "a"), _subscribe(routes, "a")
    registry.add(first)
    registry.discard(second)
    assert len(registry) == 1
    registry.discard(first)
    registry.add(second)
    assert list(registry) == [second]


def test_a_name_finds_the_definition_that_was_seen_and_a_definition_replaces_a_name() -> None:
    routes = Routes(Settings())
    bare = routes.find("a")
    assert routes.find("a") is bare
    typed = Event("a", payload=int)
    assert routes.find(typed).event is typed
    assert routes.find("a").event is typed
    with pytest.raises(DefinitionError, match="'a' is defined twice"):
        routes.find(Event("a", payload=str))


@pytest.mark.parametrize("event", [5, None, object(), b"a", Event])
def test_what_is_no_event_is_refused(event: Any) -> None:
    with pytest.raises(DefinitionError, match="expected an Event or the name of one"):
        Routes(Settings()).find(event)


def test_a_type_that_cannot_travel_is_an_error_of_the_event_that_names_it() -> None:
    class Odd:
        pass

    with pytest.raises(DefinitionError, match=r'payload type of "a".*Odd'):
        Routes(Settings()).find(Event("a", payload=Odd))
    with pytest.raises(DefinitionError, match='result type of "b"'):
        Routes(Settings()).find(Event("b", result=Odd))
