"""What a state machine may be: everything that could not run is refused where it is defined."""

from __future__ import annotations

import types
from typing import Any, Generic, TypeVar

import msgspec
import pytest

from eventbus import DefinitionError, PayloadError, Retry
from workflows import END, MachineContext, Settled, StateMachine, transition
from workflows.registry import StepRegistry

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")


class Draft(msgspec.Struct):
    text: str = ""


class Verdict(msgspec.Struct):
    ok: bool


class Review(StateMachine[Draft], name="review", start="draft"):
    @transition("draft", to="waiting", retry=Retry(attempts=3), error_place="broken")
    async def prepare(self, ctx: MachineContext[Draft]) -> None: ...

    @transition("waiting", to="approved", wait=Verdict, when=lambda _, verdict: verdict.ok, priority=1)
    async def approve(self, ctx: MachineContext[Draft], verdict: Verdict) -> None: ...

    @transition(["waiting", "broken"], to="draft", wait=None)
    async def again(self, ctx: MachineContext[Draft], payload: None) -> None: ...

    @transition("approved", to=END)
    async def publish(self, ctx: MachineContext[Draft]) -> str:
        return ""


async def body(self: Any, ctx: MachineContext[Draft]) -> None: ...


async def with_verdict(self: Any, ctx: MachineContext[Draft], verdict: Verdict) -> None: ...


async def with_settled(self: Any, ctx: MachineContext[Draft], settled: Settled) -> None: ...


def make(start: str = "a", **methods: Any) -> type[StateMachine[Draft]]:
    """Make a machine; a method is a function and the options of its transition."""
    space: dict[str, Any] = {}
    for name, (function, source, options) in methods.items():

        async def each(self: Any, *args: Any, _function: Any = function) -> Any:
            return await _function(self, *args)

        each.__name__ = name
        each.__signature__ = __import__("inspect").signature(function)  # type: ignore[attr-defined]
        each.__annotations__ = function.__annotations__
        space[name] = transition(source, **options)(each)
    bases: Any = (StateMachine[Draft],)
    import types

    return types.new_class("Made", bases, {"start": start}, lambda namespace: namespace.update(space))


def test_a_definition_tells_its_places_and_its_edges_as_plain_values() -> None:
    definition = Review.definition
    assert definition.places == ("approved", "broken", "draft", "waiting")
    assert [tuple(edge)[:5] for edge in definition.edges] == [
        ("draft", "waiting", "prepare", "automatic", False),
        ("waiting", "approved", "approve", "waiting", True),
        ("waiting", "draft", "again", "waiting", False),
        ("broken", "draft", "again", "waiting", False),
        ("approved", END, "publish", "automatic", False),
        ("draft", "broken", "prepare", "error", False),
    ]
    assert [edge.transition for edge in definition.edges if edge.priority] == ["approve"]
    assert (definition.input, definition.output) == (Draft, str)


def test_an_option_that_there_is_not_is_refused_with_the_one_that_is_near() -> None:
    options: dict[str, Any] = {"start": "draft", "name": "wrong", "concurency": 3}
    with pytest.raises(DefinitionError, match=r"machine 'wrong' has no option .* mean concurrency\?"):
        types.new_class("Wrong", (Review,), options)


def test_the_version_is_the_list_of_places_unless_one_is_given() -> None:
    class Versioned(StateMachine[Draft], name="review", start="draft", version="2"):
        @transition("draft", to=END)
        async def publish(self, ctx: MachineContext[Draft]) -> None: ...

    assert Review.definition.version == "places:approved,broken,draft,waiting"
    assert Versioned.definition.version == "2"
    assert Review.definition.knows("places:draft")
    assert not Review.definition.knows("2")
    assert not Versioned.definition.knows("places:draft")


def test_a_transition_checks_the_payload_that_triggers_it() -> None:
    assert Review.approve.encode(Verdict(ok=True)) == '{"ok":true}'
    with pytest.raises(PayloadError, match="the payload of transition 'approve'"):
        Review.approve.encode("yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(DefinitionError, match="waits for no trigger"):
        Review.prepare.encode(None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


_AUTO = ("a", {"to": END})

_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "has no transitions"),
    ({"start": "z", "go": (body, "a", {"to": END})}, "no transition of .* leads out of its start 'z'"),
    ({"start": END, "go": (body, "a", {"to": END})}, "starts at END"),
    ({"start": "a b", "go": (body, "a", {"to": END})}, "expected a place of start"),
    ({"go": (body, "a", {"to": "nowhere"})}, "leads to 'nowhere', and no transition leads out"),
    ({"go": (body, "a", {"to": END}), "lost": (body, "b", {"to": END})}, "never comes to 'b'"),
    (
        {"one": (body, "a", {"to": END}), "two": (body, "a", {"to": END})},
        "transitions 'one' and 'two' have no guard and the same priority",
    ),
    (
        {
            "go": (body, "a", {"to": END, "priority": 1}),
            "no": (with_verdict, "a", {"to": END, "wait": Verdict}),
        },
        "'go' has no guard, so it fires at once and 'no' never does",
    ),
    (
        {"go": (body, "a", {"to": END}), "no": (with_settled, "a", {"to": END, "after": "all"})},
        "'go' has no guard, so it fires at once and 'no' never does",
    ),
    (
        {
            "go": (body, "a", {"to": END, "priority": 1}),
            "no": (body, "a", {"to": END, "when": lambda ctx: True}),
        },
        "'go' has no guard, so it fires at once and 'no' never does",
    ),
    (
        {
            "go": (with_settled, "a", {"to": END, "after": "all_settled", "priority": 1}),
            "no": (with_settled, "a", {"to": END, "after": "all", "when": lambda ctx, settled: True}),
        },
        "'go' has no guard, so it fires at the end of the children and 'no' never does",
    ),
]


@pytest.mark.parametrize(("methods", "told"), _REFUSED, ids=[told for _, told in _REFUSED])
def test_a_machine_that_could_not_run_is_refused(methods: dict[str, Any], told: str) -> None:
    with pytest.raises(DefinitionError, match=told):
        make(**methods)


def test_a_fallback_of_a_lower_priority_and_a_guard_beside_it_are_fine() -> None:
    machine = make(
        go=(body, "a", {"to": END}),
        first=(body, "a", {"to": END, "when": lambda ctx: True}),
        second=(body, "a", {"to": END, "when": lambda ctx: True, "priority": 2}),
    )
    assert [each.name for each in machine.definition.out_of["a"]] == ["second", "first", "go"]


_WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (body, {"source": END}, "leads out of END"),
    (body, {"source": []}, "expected the source"),
    (body, {"source": ["a", "a"]}, "names a source twice"),
    (body, {"to": "no place!"}, "expected a place"),
    (body, {"wait": Verdict}, "to take 3 parameters"),
    (with_verdict, {}, "to take 2 parameters"),
    (with_verdict, {"wait": Draft}, "is annotated as Verdict, but it gets Draft"),
    (with_verdict, {"after": "all"}, "is annotated as Verdict, but it gets Settled"),
    (with_settled, {"after": "some"}, "'all' or 'all_settled'"),
    (with_settled, {"after": "all", "wait": Verdict}, "has wait and after"),
    (lambda self, ctx: None, {}, "name of a step"),
    (body, {"when": lambda: True}, "expected the guard of transition 'body'"),
    (body, {"priority": "high"}, "expected priority"),
    (body, {"error_place": END}, "error_place of transition 'body' is END"),
    (body, {"error_place": "a"}, "is 'a', where it begins"),
    (body, {"retry": 3}, "expected retry"),
    (body, {"timeout": -1}, "timeout"),
]


@pytest.mark.parametrize(("function", "options", "told"), _WRONG, ids=[told for *_, told in _WRONG])
def test_a_transition_that_does_not_fit_is_refused(function: Any, options: dict[str, Any], told: str) -> None:
    options = {"source": "a", "to": END, **options}
    with pytest.raises(DefinitionError, match=told):
        transition(options.pop("source"), **options)(function)


def test_a_plain_method_is_refused_and_so_is_a_plain_rollback() -> None:
    def plain(self: Any, ctx: Any) -> None: ...

    with pytest.raises(DefinitionError, match="is a plain function; make it `async def`"):
        transition("a", to=END)(plain)  # pyright: ignore[reportArgumentType, reportCallIssue]
    made = transition("a", to=END)(body)
    with pytest.raises(DefinitionError, match="the rollback of transition 'body' is a plain function"):
        made.rollback(plain)
    made.rollback(body)
    with pytest.raises(DefinitionError, match="has two rollbacks"):
        made.rollback(body)


def test_a_class_without_a_start_or_without_a_state_is_refused() -> None:
    with pytest.raises(DefinitionError, match="has no start"):

        class NoStart(StateMachine[Draft], name="x"):  # pyright: ignore[reportUnusedClass]
            @transition("a", to=END)
            async def go(self, ctx: MachineContext[Draft]) -> None: ...

    with pytest.raises(DefinitionError, match="does not say what its state is"):

        class NoState(  # pyright: ignore[reportUnusedClass]
            StateMachine,  # pyright: ignore[reportMissingTypeArgument]
            start="a",
        ):
            @transition("a", to=END)
            async def go(self, ctx: MachineContext[Any]) -> None: ...


def test_a_class_that_no_worker_could_make_is_refused() -> None:
    """A flow of it was stopped, and then for ever about to be undone."""
    with pytest.raises(DefinitionError, match="the __init__ of class Needy needs arguments"):

        class Needy(StateMachine[Draft], start="a"):  # pyright: ignore[reportUnusedClass]
            def __init__(self, client: str) -> None: ...

            @transition("a", to=END)
            async def go(self, ctx: MachineContext[Draft]) -> None: ...


def test_a_transition_cannot_take_the_name_of_the_definition() -> None:
    with pytest.raises(DefinitionError, match="stands where the definition of the class does"):

        class Odd(StateMachine[Draft], start="a"):  # pyright: ignore[reportUnusedClass]
            @transition("a", to=END)
            async def definition(  # pyright: ignore[reportAssignmentType, reportIncompatibleVariableOverride]
                self, ctx: MachineContext[Draft]
            ) -> None: ...


class Base(StateMachine[list[T]], Generic[T, U]):
    """A base class of machines, whose state is a list of what their class says."""

    @staticmethod
    def hint(value: U) -> U:
        return value


def test_the_state_of_a_class_is_what_its_generic_bases_make_of_it() -> None:
    class Middle(Base[T, str], Generic[T]): ...

    class Numbers(Middle[int], start="a"):
        @transition("a", to=END)
        async def go(self, ctx: MachineContext[list[int]]) -> None: ...

    class More(Numbers, start="a", name="more"):
        @transition("a", to=END, when=lambda _: True, priority=1)
        async def other(self, ctx: MachineContext[list[int]]) -> None: ...

    assert Numbers.definition.input == list[int]
    assert More.definition.input == list[int]
    assert sorted(More.definition.transitions) == ["go", "other"]
    with pytest.raises(DefinitionError, match="does not say what its state is"):

        class Open(Middle[V], Generic[V], start="a"):  # pyright: ignore[reportUnusedClass]
            @transition("a", to=END)
            async def go(self, ctx: MachineContext[Any]) -> None: ...


def test_a_registry_knows_one_definition_by_name_and_version() -> None:
    registry = StepRegistry()
    registry.register(Review)
    registry.register(Review)
    assert registry.machine("review") is Review.definition
    assert registry.machine("review", "places:draft,old") is Review.definition
    assert registry.machine("review", "2") is None

    class Other(StateMachine[Draft], name="review", start="draft", version="places"):
        @transition("draft", to=END)
        async def publish(self, ctx: MachineContext[Draft]) -> None: ...

    registry.register(Other)
    assert registry.machine("review", "places") is Other.definition
    with pytest.raises(DefinitionError, match="expected a workflow"):
        registry.register(StateMachine)
