"""A namespace of the inspector: the calls for one noun, such as `inspector.jobs`; and its old names.

What must always hold: an old name answers as the new one does.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from eventbus.emit.route import Routes
from eventbus.lifecycle import Lifecycle
from eventbus.settings.settings import Settings

__all__ = ["Namespace", "OldName"]

R = TypeVar("R")


class Namespace:
    """The calls of the inspector for one noun. The class is named as its attribute: `Jobs` as `jobs`.

    Each call raises ProviderStopped while the provider is not started, and StoreError when the server does
    not answer within `call_timeout`. That counts for the whole call and is `reply_timeout` by default.
    """

    def __init__(self, life: Lifecycle, settings: Settings, routes: Routes) -> None:
        self._life = life
        self._settings = settings
        self._routes = routes


class OldName(Generic[R]):
    """A name that a call had before there were namespaces, for one release: it warns, and makes the call.

    As an attribute of the inspector it is a method of it. As the `__call__` of a namespace it lets that be
    called as the method that had its name: `inspector.jobs("order.placed")`.
    """

    def __init__(self, new: Callable[..., R]) -> None:
        self._space, _, self._method = new.__qualname__.rpartition(".")
        self._space = self._space.lower()
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = self._space if name == "__call__" else name

    def __get__(self, holder: Any, owner: type) -> Callable[..., R]:
        """Return the call, for the inspector or the namespace that it is asked of."""

        def call(*given: Any, **options: Any) -> R:
            warnings.warn(
                f"inspector.{self._name}(...) is deprecated: use inspector.{self._space}.{self._method}(...)",
                DeprecationWarning,
                stacklevel=2,
            )
            space = holder if isinstance(holder, Namespace) else getattr(holder, self._space)
            return getattr(space, self._method)(*given, **options)

        return call
