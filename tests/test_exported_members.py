"""The doors: what they offer is what is meant, and all of it."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable

import pytest

import eventbus
import eventbus.lowlevel
import workflows
import workflows.testing
from eventbus import errors
from workflows import errors as workflow_errors


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


_DOORS = (eventbus, eventbus.lowlevel, workflows, workflows.testing)
_CLASSES = [
    pytest.param(getattr(door, name), id=f"{door.__name__}.{name}")
    for door in _DOORS
    for name in door.__all__
    if isinstance(getattr(door, name), type)
]
_FUNCTIONS = [
    pytest.param(getattr(door, name), id=f"{door.__name__}.{name}")
    for door in _DOORS
    for name in door.__all__
    if inspect.isfunction(getattr(door, name))
]


def _is_ours(value: object) -> bool:
    return getattr(value, "__module__", "").startswith(("eventbus", "workflows"))


@pytest.mark.parametrize("kind", _CLASSES)
def test_public_methods_say_what_they_promise(kind: type) -> None:
    members = {
        member: value for base in kind.__mro__ if _is_ours(base) for member, value in vars(base).items()
    }
    silent = [
        member
        for member, value in members.items()
        if not member.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, (property, classmethod, staticmethod)))
        and not inspect.getdoc(value)
    ]
    assert silent == []


@pytest.mark.parametrize("kind", _CLASSES)
def test_public_names_say_what_they_are_and_have_whole_signatures(kind: type) -> None:
    assert vars(kind).get("__doc__"), f"{kind.__name__} has no text of its own"
    bare = [
        f"{member}({parameter.name})"
        for member, value in inspect.getmembers(kind, inspect.isfunction)
        if not member.startswith("_") and _is_ours(value)
        for parameter in inspect.signature(value).parameters.values()
        if parameter.name != "self" and parameter.annotation is inspect.Parameter.empty
    ]
    assert bare == []


@pytest.mark.parametrize("function", _FUNCTIONS)
def test_public_functions_say_what_they_promise(function: Callable[..., object]) -> None:
    assert inspect.getdoc(function)
    bare = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.annotation is inspect.Parameter.empty
    ]
    assert bare == []


@pytest.mark.parametrize("door", _DOORS, ids=lambda door: door.__name__)
def test_what_a_door_offers_is_sorted_and_there(door: types.ModuleType) -> None:
    assert all(hasattr(door, name) for name in door.__all__)
    kinds = (lambda name: name.isupper(), lambda name: name[0].isupper(), lambda name: name[0].islower())
    assert door.__all__ == sorted(
        door.__all__, key=lambda name: (next(i for i, is_kind in enumerate(kinds) if is_kind(name)), name)
    )


def test_the_door_of_workflows_offers_just_this() -> None:
    assert set(workflows.__all__) >= {"StepContext", "StepError", "Workflow", "WorkflowProvider", "step"}
    assert not [name for name in workflows.__all__ if name in eventbus.__all__], "one name, one door"


def test_every_error_of_workflows_is_offered_and_drawn() -> None:
    offered = {name for name in workflow_errors.__all__ if inspect.isclass(getattr(workflow_errors, name))}
    assert offered <= set(workflows.__all__)
    assert set(_drawn(workflow_errors.__doc__ or "")) == offered
