"""Loads the provider of a program by its import path, `MODULE:PROVIDER`."""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from types import ModuleType
from typing import Any

from eventbus.cli.failures import CommandError, import_hint, is_debugging, one_line
from eventbus.errors import EventBusError
from eventbus.model.names import shown
from eventbus.provider import EventProvider


def load_provider(place: str) -> EventProvider:
    """Import the module, also from the current folder, and return the provider in it.

    Raises a CommandError that says what is missing, or an EventBusError that the module itself raises.
    """
    module_name, _, path = place.partition(":")
    if not module_name or not path or not all(part.isidentifier() for part in module_name.split(".")):
        raise CommandError(f"expected MODULE:PROVIDER such as app:provider, got: {shown(place)}")
    module = _import(module_name)
    found: Any = module
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise CommandError(f"module {module_name} has no {path!r}; {_providers_in(module)}") from None
    if not isinstance(found, EventProvider):
        raise CommandError(f"{place} is no EventProvider but {shown(found)}; {_providers_in(module)}")
    return found


def with_settings(provider: EventProvider, **settings: Any) -> EventProvider:
    """Change settings of a provider that is not started. A setting of None stays. Raises ConfigError."""
    given = {name: value for name, value in settings.items() if value is not None}
    provider.settings = dataclasses.replace(provider.settings, **given)
    return provider


def _import(name: str) -> ModuleType:
    if os.getcwd() not in sys.path:  # noqa: PTH109  (text, as sys.path has it)
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        return importlib.import_module(name)
    except EventBusError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise CommandError(
                f"no module {error.name!r} in {os.getcwd()} or among the installed ones; "  # noqa: PTH109
                "run this in the folder that holds it"
            ) from error
        said = f"module {name} imports {error.name!r}, which is not installed"
        raise CommandError(said + import_hint()) from error
    except Exception as error:
        why = import_hint() if isinstance(error, ImportError) else ""
        hint = why or ("" if is_debugging() else "; --debug shows the traceback")
        raise CommandError(f"module {name} cannot be imported: {one_line(error)}{hint}") from error


def _providers_in(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, EventProvider)]
    if not names:
        return "it holds no EventProvider"
    return f"there is: {', '.join(f'{module.__name__}:{name}' for name in names)}"
