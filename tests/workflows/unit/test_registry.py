"""The registry: the workflows that a process knows."""

from __future__ import annotations

from typing import Any

import pytest

from eventbus import DefinitionError
from workflows.definition.workflow import Workflow
from workflows.errors import StepNotFound
from workflows.registry import StepRegistry


async def a(ctx: Any) -> int: ...
async def b(ctx: Any) -> int: ...
async def undo(ctx: Any, result: int) -> None: ...


def _shop(version: str | None = None) -> Workflow[Any, Any]:
    workflow = Workflow("shop", version=version)
    workflow.step(a).rollback(undo)
    return workflow.then(b)


def test_what_is_registered_is_found() -> None:
    registry, shop = StepRegistry(), _shop()
    assert registry.register(shop) == [shop]
    assert registry.workflow("shop") is registry.workflow("shop", shop.version) is shop
    assert registry.get("shop", "a") is registry.get("shop", "a", shop.version) is shop.steps["a"]
    assert (registry.has("shop"), registry.has("shop", "a"), registry.has("shop", "b", shop.version)) == (
        True,
        True,
        True,
    )
    assert (registry.rollback_of("shop", "a"), registry.rollback_of("shop", "b")) == (undo, None)
    assert (registry.steps("shop"), registry.versions("shop")) == (["a", "b"], [shop.version])
    assert (list(registry), len(registry)) == ([shop], 1)


def test_the_same_step_name_in_two_workflows_means_two_steps() -> None:
    registry, shop, other = StepRegistry(), _shop(), Workflow("other").then(a)
    registry.register(shop)
    registry.register(other)
    assert registry.get("shop", "a") is shop.steps["a"]
    assert registry.get("other", "a") is other.steps["a"]
    assert registry.rollback_of("other", "a") is None


def test_what_is_not_registered_is_an_error_with_both_names() -> None:
    registry = StepRegistry()
    with pytest.raises(
        StepNotFound, match=r"^step 'a' of workflow 'shop' is not registered in this process; reg"
    ):
        registry.get("shop", "a")
    registry.register(_shop("2"))
    with pytest.raises(
        StepNotFound, match=r"step 'c' of workflow 'shop' .*known here: steps 'a', 'b'"
    ) as raised:
        registry.get("shop", "c")
    assert (raised.value.workflow, raised.value.step, raised.value.version) == ("shop", "c", None)
    with pytest.raises(
        StepNotFound, match=r"step 'a' of workflow 'shop' in version '1' .*: versions '2'"
    ) as raised:
        registry.get("shop", "a", "1")
    assert raised.value.version == "1"
    with pytest.raises(StepNotFound, match=r"^workflow 'x' is not .*known here: workflows 'shop'"):
        registry.workflow("x")


def test_asking_never_raises() -> None:
    registry = StepRegistry()
    registry.register(_shop("2"))
    for place in (("x", "a", None), ("shop", "x", None), ("shop", "a", "1")):
        assert registry.rollback_of(*place) is None
        assert not registry.has(*place)
    assert (registry.steps("x"), registry.steps("shop", "1"), registry.versions("x")) == ([], [], [])


def test_several_versions_live_side_by_side_and_the_newest_is_the_default() -> None:
    registry, old, new = StepRegistry(), _shop("1"), Workflow("shop", version="2").then(b)
    registry.register(new)
    registry.register(old)
    assert registry.versions("shop") == ["2", "1"]
    assert registry.workflow("shop") is old
    assert registry.get("shop", "b", "2") is new.steps["b"]
    assert (registry.steps("shop", "2"), list(registry)) == (["b"], [new, old])


def test_registering_again_changes_nothing() -> None:
    registry, shop = StepRegistry(), _shop()
    registry.register(shop)
    assert registry.register(shop) == []
    assert len(registry) == 1


def test_another_definition_of_one_name_and_version_is_refused() -> None:
    registry, shop = StepRegistry(), _shop()
    registry.register(shop)
    with pytest.raises(
        DefinitionError, match=rf"another workflow 'shop' .* version '{shop.version}' already"
    ):
        registry.register(_shop())
    assert registry.workflow("shop") is shop


def test_sub_workflows_are_registered_with_the_outer_one_or_not_at_all() -> None:
    inner = Workflow("inner").then(a)
    outer = Workflow("outer").then(inner)
    registry = StepRegistry()
    assert registry.register(outer) == [outer, inner]
    assert registry.register(inner) == []
    assert registry.get("inner", "a") is inner.steps["a"]
    clash = Workflow("new").then(Workflow("inner").then(a))
    with pytest.raises(DefinitionError, match=r"another workflow 'inner' is registered"):
        registry.register(clash)
    assert not registry.has("new")
    clash.then(b)  # what was refused is not closed


def test_two_sub_workflows_of_one_name_and_version_are_refused() -> None:
    outer = Workflow("outer").then(Workflow("inner").then(a))
    outer.flow(Workflow("inner").then(a), name="second")
    with pytest.raises(DefinitionError, match=r"another workflow 'inner' is registered"):
        StepRegistry().register(outer)


def test_a_definition_that_does_not_pass_its_check_is_not_registered() -> None:
    registry, wrong = StepRegistry(), Workflow("shop")
    wrong.step(a, after="x")
    with pytest.raises(DefinitionError, match=r"step 'a' of workflow 'shop' comes after 'x'"):
        registry.register(wrong)
    with pytest.raises(DefinitionError, match=r"expected a workflow to register, got: 5"):
        registry.register(5)  # pyright: ignore[reportArgumentType]
    assert len(registry) == 0


def test_a_registered_workflow_takes_no_further_step() -> None:
    shop = _shop()
    StepRegistry().register(shop)
    with pytest.raises(DefinitionError, match=r"step 'c' of workflow 'shop' comes too late"):
        shop.step(a, name="c")


def test_clear_forgets_and_registries_are_independent() -> None:
    one, other, shop = StepRegistry(), StepRegistry(), _shop()
    one.register(shop)
    other.register(shop)
    one.clear()
    assert (len(one), one.has("shop"), other.has("shop")) == (0, False, True)
