"""An event with an error of a constructor of its own, which a handler raises in any kind of pool."""

from __future__ import annotations

from eventbus import Event

__all__ = ["NotFound", "find", "missing", "missing_in_thread"]


class NotFound(Exception):
    """Its arguments are not those of its constructor."""

    def __init__(self, sku: str, *, left: int) -> None:
        super().__init__(f"no article {sku}")
        self.sku = sku
        self.left = left


find = Event("find", payload=str, errors=[NotFound])


async def missing(sku: str) -> None:
    """Fail."""
    raise NotFound(sku, left=0)


def missing_in_thread(sku: str) -> None:
    """Fail."""
    raise NotFound(sku, left=0)
