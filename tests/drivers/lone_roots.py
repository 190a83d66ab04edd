"""Lone roots under test: trees that begin without members, added in either of two ways."""

from __future__ import annotations

from typing import Any, Literal

from drivers.tree_driver import ROOTS, TreeDriver, make_tree, pieces_of

from eventbus.store.calls.tree_store import TreeVerdict

__all__ = ["WAYS", "Way", "add_root", "is_brief", "lists"]

Way = Literal["alone", "tree"]
"""How a root is added: as an emission is, or by the call of trees."""
WAYS: tuple[Way, ...] = ("alone", "tree")


async def add_root(
    driver: TreeDriver, way: Way, root: str = "f", *, reply: bool = False, **given: Any
) -> TreeVerdict:
    tree = make_tree({}, root=root, **given)
    assert tree.is_lone
    if way == "tree":
        return await driver.send(pieces_of(tree, reply=reply)[0])
    (verdict,) = await driver.add_alone(tree, reply=reply)
    return verdict


async def is_brief(driver: TreeDriver, job: str = "f") -> bool:
    """Return whether the record says by its state alone that it is a root."""
    first: str = await driver.shard.command("GETRANGE", driver.shard.key("job", job), 0, 0)
    return first in (")", "*")


async def lists(driver: TreeDriver) -> dict[str, list[str]]:
    """Return the roots that are listed, by list, and what has a time."""
    kinds = ("ready", "ready+", "delayed", "parked", "roots", "completed", "failed", "cancelled")
    found = {kind: await driver.shard.members(kind, ROOTS) for kind in kinds}
    found["due"] = await driver.shard.members("due", "")
    return {kind: members for kind, members in found.items() if members}
