"""Import paths: the names by which another process of the same program finds a function or an event.

The file of a program that was run directly (`python app.py`) can hold them too. The other process loads
that file under the name `__mp_main__`, as multiprocessing does, so that code under
`if __name__ == "__main__":` does not run there.

What must always hold: an import path names exactly one object, and only names travel, no code.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from eventbus.errors import DefinitionError

_MAIN = ("__main__", "__mp_main__")


class ImportPath(msgspec.Struct, frozen=True, omit_defaults=True):
    """A name in a module. `file` is set if the module is a program that was run directly."""

    module: str
    name: str
    file: str = ""

    def __str__(self) -> str:
        return f"{self.file or self.module}:{self.name}"


def import_path_of_function(function: Any, what: str) -> ImportPath:
    """Return the import path of `function`; `what` describes it in the error.

    Raises DefinitionError for a function without a name of its own in a module: a lambda, a function
    inside a function, a method of an object, a partial.
    """
    name: str = getattr(function, "__qualname__", "")
    module: Any = getattr(function, "__module__", None)
    if not inspect.isroutine(function) or inspect.ismethod(function) or "<" in name or not module:
        raise DefinitionError(
            f'expected {what} to be a function at the top level of a module, for pool="process" finds it '
            f"there by name; got: {name or type(function).__name__}"
        )
    return _place(module, name, what)


def import_path_of_event(event: object, near: str, what: str) -> ImportPath:
    """Return the import path of `event` as `import_path_of_object` does."""
    return import_path_of_object(
        event, near, what, why='a handler with pool="process" finds the types of its event there'
    )


def import_path_of_object(wanted: object, near: str, what: str, *, why: str) -> ImportPath:
    """Return the import path of any object; search the module `near` first, then all others.

    `what` describes the object in the error, and `why` says what the path is for. Raises DefinitionError if
    no module, and no class at the top level of one, holds the object.
    """
    others = [name for name in sys.modules if name != near and name not in _MAIN]
    for module in (near, *others, "__main__"):
        name = _name_in(sys.modules.get(module), wanted)
        if name is not None:
            return _place(module, name, what)
    raise DefinitionError(f"expected {what} to be a name at the top level of a module: {why}")


def find(place: ImportPath) -> Any:
    """Import the module of a path and return the object there. Raises whatever the import raises."""
    return _inside(_load(place.file) if place.file else importlib.import_module(place.module), place.name)


def is_found_here(place: ImportPath, function: Any) -> bool:
    """Return whether the path leads to this function in this process. Its module must be imported already."""
    try:
        return _inside(sys.modules[function.__module__], place.name) is function
    except (KeyError, AttributeError):
        return False


def _inside(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


def _place(module: str, name: str, what: str) -> ImportPath:
    if module not in _MAIN:
        return ImportPath(module, name)
    main = sys.modules[module]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name not in _MAIN:  # python -m NAME
        return ImportPath(spec.name, name)
    file = getattr(main, "__file__", None)
    if not file or not Path(file).is_file():
        raise DefinitionError(
            f'{what} lies in no file, so pool="process" cannot find it from another process; '
            "move it into a module"
        )
    return ImportPath("__main__", name, str(Path(file).resolve()))


def _name_in(module: ModuleType | None, wanted: object) -> str | None:
    if module is None:
        return None
    for name, value in list(vars(module).items()):
        if value is wanted:
            return name
        if isinstance(value, type) and value.__module__ == module.__name__:
            inner = next((attribute for attribute, held in vars(value).items() if held is wanted), None)
            if inner is not None:
                return f"{name}.{inner}"
    return None


def _load(file: str) -> ModuleType:
    """Load the file of a program as a module, once."""
    known = sys.modules.get("__mp_main__")
    # Importing multiprocessing makes `__mp_main__` another name of the main module.
    if known is not None and getattr(known, "__file__", None) == file:
        return known
    loader = SourceFileLoader("__mp_main__", file)
    spec = importlib.util.spec_from_file_location("__mp_main__", file, loader=loader)
    assert spec is not None  # noqa: S101  (it has a loader)
    module = importlib.util.module_from_spec(spec)
    before = sys.modules["__main__"]
    sys.modules["__mp_main__"] = sys.modules["__main__"] = module
    try:
        loader.exec_module(module)
    except BaseException:  # undo both names, so that a later call loads the file again
        sys.modules["__main__"] = before
        if known is None:
            del sys.modules["__mp_main__"]
        else:
            sys.modules["__mp_main__"] = known
        raise
    return module
