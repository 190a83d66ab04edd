"""Import paths: what another process can find by name, and what it cannot."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from importable import process_handlers

from eventbus import DefinitionError, Event
from eventbus.handlers.process.import_path import (
    ImportPath,
    find,
    import_path_of_event,
    import_path_of_function,
    is_found_here,
)


class Events:
    placed = Event("placed", payload=int, result=int)


class Worker:
    @staticmethod
    def work(payload: Any) -> Any:
        return payload

    def method(self, payload: Any) -> Any:
        return payload

    def __call__(self, payload: Any) -> Any:
        return payload


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        (process_handlers.crunch, "importable.process_handlers:crunch"),
        (math.factorial, "math:factorial"),
        (Worker.work, f"{__name__}:Worker.work"),
    ],
)
def test_a_function_is_found_where_it_says(function: Any, shown: str) -> None:
    place = import_path_of_function(function, "the handler")
    assert str(place) == shown
    assert is_found_here(place, function)
    if place.module != __name__:  # pytest imports its modules in a way of its own
        assert find(place) is function


def test_one_whose_name_means_another_is_told_from_it() -> None:
    place = import_path_of_function(process_handlers.shadowed, "the handler")
    assert str(place) == "importable.process_handlers:double"
    assert not is_found_here(place, process_handlers.shadowed)
    assert not is_found_here(ImportPath("importable.process_handlers", "nothing"), process_handlers.double)


@pytest.mark.parametrize(
    "function",
    [
        lambda payload: payload,
        Worker().method,
        Worker(),
        functools.partial(process_handlers.double),
        [].append,
    ],
)
def test_what_has_no_name_of_its_own_is_refused(function: Any) -> None:
    with pytest.raises(
        DefinitionError, match="expected the handler to be a function at the top level of a mod"
    ):
        import_path_of_function(function, "the handler")


def test_a_function_inside_a_function_is_refused() -> None:
    def inside(payload: Any) -> Any:
        return payload

    with pytest.raises(DefinitionError, match=r"finds it there by name; got: .*<locals>\.inside"):
        import_path_of_function(inside, "the handler")


def test_an_event_is_found_where_a_module_or_a_class_in_it_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert import_path_of_event(
        process_handlers.crunched, "importable.process_handlers", "event"
    ) == ImportPath("importable.process_handlers", "crunched")
    far: Any = ModuleType("far")
    far.away = Event("away")
    monkeypatch.setitem(sys.modules, "far", far)
    assert import_path_of_event(far.away, "nowhere", "event") == ImportPath("far", "away")
    assert import_path_of_event(Events.placed, __name__, "event") == ImportPath(__name__, "Events.placed")
    with pytest.raises(DefinitionError, match="expected event 'x' to be a name at the top level of a module"):
        import_path_of_event(Event("x"), __name__, "event 'x'")


@pytest.fixture(autouse=True)
def nothing_is_loaded_for_good() -> Iterator[None]:
    sys.modules.pop("__mp_main__", None)  # multiprocessing, once imported, has put itself there
    yield
    sys.modules.pop("__mp_main__", None)


def _run_as_main(monkeypatch: pytest.MonkeyPatch, **attributes: Any) -> Any:
    main: Any = ModuleType("__main__")
    vars(main).update(attributes)

    def handler(payload: Any) -> Any:
        return payload

    handler.__module__, handler.__qualname__ = "__main__", "handler"
    main.handler = handler
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main


def test_a_program_run_directly_is_found_by_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("name = __name__\nclass Handlers:\n    kept = object()\n")
    main = _run_as_main(monkeypatch, __file__=str(program))
    place = import_path_of_function(main.handler, "the handler")
    assert place == ImportPath("__main__", "handler", str(program))
    assert str(place) == f"{program}:handler"
    assert find(ImportPath("__main__", "name", str(program))) == "__mp_main__"
    assert (
        find(ImportPath("__main__", "Handlers.kept", str(program))) is sys.modules["__main__"].Handlers.kept
    )


def test_a_program_is_found_also_where_multiprocessing_was_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.write_text("name = __name__\n")
    main = _run_as_main(monkeypatch, __file__="another")
    monkeypatch.setitem(sys.modules, "__mp_main__", main)  # as its import does
    assert find(ImportPath("__main__", "name", str(program))) == "__mp_main__"
    assert find(ImportPath("__main__", "name", str(program))) == "__mp_main__"


def test_a_program_that_fails_when_loaded_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text("1 / 0")
    main = _run_as_main(monkeypatch)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            find(ImportPath("__main__", "name", str(program)))
    assert sys.modules["__main__"] is main
    assert "__mp_main__" not in sys.modules


def test_a_module_run_directly_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    main = _run_as_main(monkeypatch, __spec__=process_handlers.__spec__)
    assert import_path_of_function(main.handler, "the handler") == ImportPath(
        "importable.process_handlers", "handler"
    )


def test_what_was_typed_in_lies_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    main = _run_as_main(monkeypatch)
    with pytest.raises(DefinitionError, match="the handler lies in no file, so pool"):
        import_path_of_function(main.handler, "the handler")
