"""A namespace of the inspector: the calls for one noun, such as `inspector.jobs`; and its old names.

What must always hold: an old name answers as the new one does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

from eventbus.emit.route import Routes
from eventbus.lifecycle import Lifecycle
from eventbus.model.durations import Duration
from eventbus.model.old_name import warn_of_old_name
from eventbus.settings.settings import Settings
from eventbus.store.store import Store

R = TypeVar("R")


class Namespace:
    """The calls of the inspector for one noun. The class is named as its attribute: `Jobs` as `jobs`.

    Each call raises ProviderStopped while the provider is not started, and StoreError when the server does
    not answer in time; see `Inspector.within`.
    """

    def __init__(
        self, life: Lifecycle, settings: Settings, routes: Routes, call_timeout: Duration | None = None
    ) -> None:
        self._life = life
        self._settings = settings
        self._routes = routes
        self._call_timeout = call_timeout

    def _store(self, purpose: str) -> Store:
        return self._life.running(purpose).store

    def _begin(self, purpose: str) -> tuple[Store, float]:
        """Return the store, and the deadline of a call that begins now. Raises ProviderStopped."""
        return self._store(purpose), self._deadline()

    def _deadline(self) -> float:
        """Return the deadline of a call that begins now."""
        return self._settings.deadline(self._call_timeout)

    def _within(self, call_timeout: Duration) -> Self:
        return type(self)(self._life, self._settings, self._routes, call_timeout)


class OldName(Generic[R]):
    """A name that a call had before there were namespaces, for one release: it warns, and makes the call.

    As an attribute of the inspector it is a method of it. As the `__call__` of a namespace it lets that be
    called as the method that had its name: `inspector.jobs("order.placed")`. It takes the `call_timeout` that
    each call had.
    """

    def __init__(self, new: Callable[..., R]) -> None:
        self._space, _, self._method = new.__qualname__.rpartition(".")
        self._space = self._space.lower()
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = self._space if name == "__call__" else name

    def __get__(self, holder: Any, owner: type) -> Callable[..., R]:
        """Return the call, for the inspector or the namespace that it is asked of."""

        def call(*given: Any, call_timeout: Duration | None = None, **options: Any) -> R:
            warn_of_old_name(f"inspector.{self._name}(...)", f"inspector.{self._space}.{self._method}(...)")
            space = holder if isinstance(holder, Namespace) else getattr(holder, self._space)
            if call_timeout is not None:
                space = space._within(call_timeout)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            return getattr(space, self._method)(*given, **options)

        return call
