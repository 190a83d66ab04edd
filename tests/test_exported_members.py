"""The doors: what they offer is what is meant, and all of it."""

from __future__ import annotations

import inspect
import types

import pytest

import eventbus
from eventbus import errors


def test_the_front_door_offers_just_this() -> None:
    assert eventbus.__all__ == [
        "CallNext",
        "ConfigError",
        "DefinitionError",
        "Emission",
        "EmissionExpired",
        "EmitError",
        "Event",
        "EventBusError",
        "EventContext",
        "EventProvider",
        "HandlerError",
        "JobCancelled",
        "JobError",
        "JobFacts",
        "Keep",
        "PayloadError",
        "ProcessDied",
        "ProviderStopped",
        "QueueFull",
        "ResponseTimeout",
        "Retry",
        "StalledError",
        "StoreCorrupt",
        "StoreError",
        "StoreRefused",
        "StoreUnavailable",
        "SyncContext",
        "UnknownJob",
        "Unrecoverable",
        "UsageError",
    ]


def test_nothing_public_lies_behind_the_door_unlisted() -> None:
    unlisted = [
        name
        for name, value in vars(eventbus).items()
        if not name.startswith("_")
        and not isinstance(value, types.ModuleType)
        and name not in eventbus.__all__
    ]
    assert unlisted == []


def test_every_error_is_offered_and_belongs_to_the_one_tree() -> None:
    assert set(errors.__all__) <= set(eventbus.__all__)
    for name in errors.__all__:
        kind = getattr(errors, name)
        if kind is not errors.Unrecoverable:  # handlers raise it, the package never does
            assert issubclass(kind, eventbus.EventBusError)


def test_the_drawing_of_the_tree_is_the_tree() -> None:
    drawn = _drawn(errors.__doc__ or "")
    real = {
        name: getattr(errors, name).__bases__[0].__name__
        for name in errors.__all__
        if name not in ("EventBusError", "Unrecoverable")
    }
    assert drawn == real


def _drawn(text: str) -> dict[str, str]:
    """Read class -> parent from the lines drawn with `├──` and `└──`."""
    parents = ["EventBusError"]
    found: dict[str, str] = {}
    for line in text.splitlines():
        if "── " in line:
            depth = (line.index("── ") - 1) // 4
            name = line.split("── ")[1].split()[0]
            found[name] = parents[depth - 1]
            parents[depth:] = [name]
    return found


@pytest.mark.parametrize("name", eventbus.__all__)
def test_public_methods_say_what_they_promise(name: str) -> None:
    kind = getattr(eventbus, name)
    members = {
        member: value
        for base in kind.__mro__
        if base.__module__.startswith("eventbus")
        for member, value in vars(base).items()
    }
    silent = [
        member
        for member, value in members.items()
        if not member.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, (property, classmethod, staticmethod)))
        and not inspect.getdoc(value)
    ]
    assert silent == []


@pytest.mark.parametrize("name", eventbus.__all__)
def test_public_names_say_what_they_are_and_have_whole_signatures(name: str) -> None:
    kind = getattr(eventbus, name)
    assert vars(kind).get("__doc__"), f"{name} has no text of its own"
    bare = [
        f"{member}({parameter.name})"
        for member, value in inspect.getmembers(kind, inspect.isfunction)
        if not member.startswith("_") and value.__module__.startswith("eventbus")
        for parameter in inspect.signature(value).parameters.values()
        if parameter.name != "self" and parameter.annotation is inspect.Parameter.empty
    ]
    assert bare == []
